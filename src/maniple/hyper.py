"""Hyper-parameters of a training: the numbers of its optimizer that may change from step to step, group by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch

from maniple.operators.training.optimizer import frozen_option
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []

REST = ""
"""What the group of all parameters is called that no pattern matches."""


@final
class Hyper:
    """The numbers of an optimizer, under torch's names: ``hyper["lr"]``, and ``hyper["*.bias", "lr"]`` of a group.

    What is set counts from the next step that is submitted on; steps under way keep theirs. Every rank sets the same.

    Args:
        optimizer: of the training.
        enter: called before the first change, where the numbers are bound into the updates until then.
    """

    def __init__(self, optimizer: AbstractOptimizer, enter: Callable[[], None]) -> None:
        self._optimizer, self._enter, self._entered = optimizer, enter, optimizer.enters
        self._own = [optimizer.of_row(row) for row in range(optimizer.rows[0])]
        self._rows: list[dict[str, Any]] = [own.arguments() for own in self._own]
        self._names = [REST, *(pattern for pattern, _ in optimizer.groups)]
        self._torch: GroupsOfHyper | None = None

    def __getitem__(self, key: str | tuple[str, str]) -> Any:
        """Give a number: of the parameters that no group has, or of a group."""
        group, name = (REST, key) if isinstance(key, str) else key
        place = self._place(group)
        self._check_known(name, [place])
        return self._rows[place][name]

    def __setitem__(self, key: str | tuple[str, str], value: float | tuple[float, ...]) -> None:
        """Set a number, of all groups whose optimizer has it or of one.

        Raises:
            RequestError: no such number or group, a value out of range, or one that needs state that is not kept.
        """
        group, name = (None, key) if isinstance(key, str) else key
        rows = [*range(len(self._rows))] if group is None else [self._place(group)]
        self._check_known(name, rows)
        rows = [row for row in rows if name in self._own[row].arguments()]
        for row in rows:
            self._check(name, value, row)
        self._let_in()
        for row in rows:
            self._rows[row][name] = value

    def rows(self) -> list[dict[str, Any]]:
        """Give the numbers of each group, that of all others first."""
        return [{name: row[name] for name in own.arguments()} for own, row in zip(self._own, self._rows, strict=True)]

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the numbers that `rows` gave, whatever file they were in meanwhile.

        Raises:
            RequestError: they are of other groups, or of another optimizer; none is taken then.
        """
        given = self.check(rows)
        if any(value != mine[name] for mine, row in zip(self._rows, given, strict=True) for name, value in row.items()):
            self._let_in()
        for mine, theirs in zip(self._rows, given, strict=True):
            mine.update(theirs)

    def check(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Give the numbers that `rows` gave as they may be taken; see `restore`.

        Raises:
            RequestError: they may not.
        """
        names = [sorted(own.arguments()) for own in self._own]
        if [sorted(row) for row in rows] != names:
            told = "; ".join(", ".join(row) for row in names)
            raise RequestError(f"hyper: expected {told} for each of {len(self._rows)} groups, got {rows}")
        given = [{name: frozen_option(value) for name, value in row.items()} for row in rows]
        for place, row in enumerate(given):
            for name, value in row.items():
                if value != self._rows[place][name]:
                    self._check(name, value, place)
        return given

    def table(self, step: int) -> torch.Tensor | None:
        """Give the numbers of a step as its updates read them; None where they are bound into them.

        Args:
            step: its number, from 1.

        Raises:
            RequestError: a scheduler set what is no number.
        """
        if not self._entered:
            return None
        for place, (own, row) in enumerate(zip(self._own, self._rows, strict=True)):
            for name in own.arguments():
                self._check(name, row[name], place)
        if self._torch is not None:
            self._torch.stepped()
        table = torch.zeros(self._optimizer.rows, dtype=torch.float64)
        for target, numbers in zip(table, self._flat(), strict=True):
            target[: 1 + len(numbers)] = torch.tensor((float(step), *numbers), dtype=torch.float64)
        return table

    def torch_optimizer(self) -> torch.optim.Optimizer:
        """Give what torch's schedulers take: the numbers are its groups' own."""
        if self._torch is None:
            self._let_in()
            self._torch = GroupsOfHyper(self._rows)
        return self._torch

    def __str__(self) -> str:
        """What ranks compare: nothing where no number can have changed."""
        if not self._entered:
            return ""
        return " with " + "; ".join(", ".join(f"{number:.17g}" for number in numbers) for numbers in self._flat())

    def _flat(self) -> list[tuple[float, ...]]:
        """The numbers of each group, as its optimizer orders them."""
        return [own.flat(row) for own, row in zip(self._own, self._rows, strict=True)]

    def _let_in(self) -> None:
        if not self._entered:
            self._enter()
            self._entered = True

    def _place(self, group: str) -> int:
        if group not in self._names:
            raise RequestError(f"hyper: the optimizer has no group {group!r}{nearest(group, self._names)}")
        return self._names.index(group)

    def _check_known(self, name: str, rows: Sequence[int]) -> None:
        """Refuse what is no number of any of some groups."""
        there = [*dict.fromkeys(known for row in rows for known in self._own[row].arguments())]
        if name not in there:
            kinds = " or ".join(dict.fromkeys(self._own[row].title for row in rows))
            raise RequestError(f"hyper: {kinds} has no number {name!r}{nearest(name, there)}")

    def _check(self, name: str, value: Any, row: int) -> None:
        of = f" of group {self._names[row]!r}" if self._names[row] != REST else ""
        count = len(self._own[row].pairs.get(name, ("",)))
        parts = tuple(value) if isinstance(value, tuple | list) else (value,)
        numbers = [_real(part) for part in parts]
        good = len(parts) == count and all(isfinite(number) and number >= 0 for number in numbers)
        if not good or (name == "betas" and max(numbers) >= 1):
            wanted = "two numbers in [0, 1)" if name == "betas" else "a finite number >= 0"
            raise RequestError(f"hyper: {name}{of}: expected {wanted}, got {value!r}")
        if any(numbers) and self._own[row].stays_zero(name):
            raise RequestError(
                f"hyper: {name}{of}: expected 0, got {value!r}: the optimizer was made with {name}=0 and keeps no "
                f"state for another; make it with {name} > 0"
            )


def _real(value: object) -> float:
    """A number in double precision; NaN of what is none, or is too large for it."""
    if isinstance(value, bool) or not isinstance(value, int | float | torch.Tensor):
        return nan
    try:
        return float(value)
    except (OverflowError, RuntimeError, ValueError):  # torch's, of a tensor of several numbers
        return nan


@final
class GroupsOfHyper(torch.optim.Optimizer):
    """A torch optimizer that updates nothing: its groups hold the numbers of a training, for schedulers to change.

    Args:
        rows: the groups, which stay where they are.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        own = [{*row, "params"} for row in rows]
        for row in rows:
            row["params"] = [torch.nn.Parameter(torch.zeros(0))]
        self._made = False
        super().__init__(rows, {name: value for name, value in rows[0].items() if name != "params"})
        for row, names in zip(rows, own, strict=True):  # torch gives each group the numbers of the first
            for name in row.keys() - names:
                del row[name]
        self._made = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take a group while it is made, and refuse every other: an optimizer's groups are patterns of names.

        Args:
            param_group: as torch has it.

        Raises:
            RequestError: it is made.
        """
        if self._made:
            raise RequestError(
                "torch_optimizer(): add_param_group would update nothing: the trainer's optimizer says which "
                "parameters are a group; make it with groups={pattern: arguments}"
            )
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> NoReturn:
        """Refuse: the trainer's step updates.

        Raises:
            RequestError: always.
        """
        del closure
        raise RequestError("torch_optimizer() is for learning rate schedulers: the trainer's step updates parameters")

    def stepped(self) -> None:
        """Have schedulers know that a step was taken."""
        self._opt_called = True

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the numbers of another's groups.

        Args:
            state_dict: what ``state_dict`` gave, whatever file it was in meanwhile.
        """
        for mine, theirs in zip(self.param_groups, state_dict["param_groups"], strict=True):
            mine.update({name: frozen_option(value) for name, value in theirs.items() if name != "params"})
