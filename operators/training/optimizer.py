"""The interface of optimizers: the state of a parameter, the numbers that an update reads, the update, and its cost.

What a training step does with an optimizer, for a parameter `w` whose home is two blocks:

    hyper.input    the numbers of this step arrive in the memory of each home: a row for each parameter group
    w.update       block by block: reads the gradient and its group's row, changes the value and the state

             step   lr     weight_decay   momentum
    row 0    17     0.1    0.01           0.9         whatever no group names
    row 1    17     0.1    0              0.9         the group "*.bias"

The numbers enter as the clock does, so they may be others in every step, and each of two steps under way has its own.

A group may have an optimizer of its own: its row has the numbers of that one, and the rows are as long as the longest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, ItemsView, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, final

from maniple.operators.training.block import Block, can_share_kernel
from maniple.operators.training.loss_scale import LossScale, checked_scale
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.element_rule import ElementRule
    from maniple.operators.training.parameter import Parameter

__all__: list[str] = []

Options = tuple[tuple[str, object], ...]
Groups = tuple[tuple[str, "Options | AbstractOptimizer"], ...]
"""Patterns of names of parameters, and the arguments that differ for them, or another optimizer."""
OF_ALL = ("clip_norm", "clip_value", "loss_scale")
"""What an optimizer does with the gradients of all parameters, whatever their group."""
EITHER = "|"
"""Between patterns any of which may match."""


@final
class State(NamedTuple):
    """What an optimizer keeps of a parameter: of its shape and dtype, at its home.

    Args:
        name: as torch's state has it.
        fill: what it holds before the first step.
    """

    name: str
    fill: float = 0.0


class AbstractOptimizer(ABC):
    """How a gradient changes a parameter. An optimizer is a frozen dataclass: equal ones are the same.

    Fields that every optimizer has beside its own:

        groups      arguments that differ for parameters whose name a pattern matches, or another optimizer for these;
                    the first that matches counts; a pattern may be several with ``|`` between them
        clip_norm   the most that the norm of all gradients together may be, as ``torch.nn.utils.clip_grad_norm_``
        clip_value  the most that an element of a gradient may be, as ``clip_grad_value_``, after ``clip_norm``
        loss_scale  how the scale of the loss changes under a plan of precision fp16; None: as GradScaler's by default
    """

    __slots__ = ()

    numbers: ClassVar[tuple[str, ...]]
    """What may change from step to step, in the order in which updates read it, after the number of the step."""
    pairs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Arguments that hold several of these numbers."""
    whole: ClassVar[bool] = False
    """Whether an update needs all of a parameter, which then lives in one block."""
    groups: Any
    clip_norm: float | None
    clip_value: float | None
    loss_scale: LossScale | None

    @property
    @abstractmethod
    def states(self) -> tuple[State, ...]:
        """The state that a parameter has."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """The operations that the update of one element counts for."""

    @abstractmethod
    def bind_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        states: tuple[Tensor, ...],
        cores: int,
        row: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> Callable[[], None]:
        """A function that updates a block in place each time that it is called.

        Args:
            parameter: The block's value; read and written.
            gradient: The block's gradient; only read.
            states: As ``states`` lists them; read and written.
            cores: The cores that the processor owns.
            row: The numbers of the step: its number from 1, then ``numbers``, float64; only read. None: those that the
                optimizer was made with, where these do not change.
            squares: The sum of the squares of all gradients, one float64, where they are clipped by norm.
        """

    def bind_updates(
        self, blocks: Sequence[Block], cores: int, row: Tensor | None = None, squares: Tensor | None = None
    ) -> Callable[[], None]:
        """A function that updates blocks of several weights in place each time that it is called.

        On CUDA it is one kernel for all, where a rule of elements is known and they lie without gaps.

        Args:
            blocks: At least one.
            cores: See ``bind_update``, as are ``row`` and ``squares``, which are those of all.
            row: Likewise.
            squares: Likewise.
        """
        rule = self.rule
        if rule is not None and can_share_kernel(blocks):
            from maniple.operators.training.block_cuda_kernels import bind_rule
            from maniple.runtime.devices.cuda_kernels import current_stream

            return bind_rule(rule, self, blocks, row, squares, current_stream())
        bodies = [self.bind_update(*block, cores, row, squares) for block in blocks]
        if len(bodies) == 1:
            return bodies[0]

        def update() -> None:
            for body in bodies:
                body()

        return update

    @abstractmethod
    def bind_direction(
        self, parameter: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
    ) -> Callable[[], None]:
        """A function that writes what the next update will subtract, as far as the state says, each time it is called.

        It is what ``bind_update`` would subtract of the gradient that the state expects: the mean of gradients that
        Adam keeps, without its bias; of a momentum the gradient that leaves it as it is. No state is changed.

        Args:
            parameter: The block's value; only read, as are the states.
            states: As ``states`` lists them.
            cores: The cores that the processor owns.
            row: The numbers of the next step; see ``bind_update``.
            target: What is subtracted; written.

        Raises:
            RequestError: The optimizer does not know it.
        """

    @property
    def rule(self) -> ElementRule | None:
        """What it does to each element, where it goes element by element and that is known here."""
        return None

    def option(self, name: str) -> Any:
        """An argument that is no number, by name."""
        return getattr(self, name)

    @property
    def title(self) -> str:
        """What messages call it: the name of what updates."""
        return type(self).__name__

    @property
    def keeps_average(self) -> bool:
        """Whether an average of each parameter is a part of the state."""
        return False

    @property
    def enters(self) -> bool:
        """Whether the numbers enter each step as a region, and are not bound into the bodies of the updates."""
        return True

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the state."""
        return tuple(state.name for state in self.states)

    def work(self, extents: Sequence[Any]) -> Any:
        """The operations of an update of a block.

        Args:
            extents: the block's; of several blocks a column for each dimension.
        """
        return self.flops * prod(extents)

    def cost(self, extents: Sequence[Any], itemsize: int) -> tuple[Any, Any]:
        """The operations of an update of a block, and the bytes that it reads or writes.

        Args:
            extents: see ``work``.
            itemsize: bytes of an element.
        """
        return self.work(extents), (2 + len(self.states)) * itemsize * prod(extents)

    @property
    def rows(self) -> tuple[int, int]:
        """The shape of the region of numbers: a row for each group and one for the rest."""
        others = [given for _, given in self.groups if isinstance(given, AbstractOptimizer)]
        return 1 + len(self.groups), 1 + max(len(each.numbers) for each in (self, *others))

    def row_of(self, name: str) -> int:
        """The row that the update of a parameter reads."""
        return next((n for n, (pattern, _) in enumerate(self.groups, 1) if _matches(name, pattern)), 0)

    def row_in(self, numbers: Tensor, row: int) -> Tensor:
        """Its numbers of a step, of the region that holds those of all groups."""
        return numbers[row, : 1 + len(self.numbers)]

    def of(self, name: str) -> Self:
        """The optimizer with the arguments of a parameter's group."""
        return self.of_row(self.row_of(name))

    def of_row(self, row: int) -> Self:
        """The optimizer with the arguments of a group; its states and its update are those of its parameters."""
        return self if not self.groups else _of_row(self, row)

    def stays_zero(self, name: str) -> bool:
        """Whether a number that is 0 cannot become another: the state that it needs is not kept.

        Args:
            name: of the number, as ``arguments`` has it.
        """
        del name
        return False

    def varying(self) -> Self:
        """The optimizer whose numbers enter each step."""
        return self

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same with other arguments, and without groups."""
        return replace(self, groups=(), **options)  # type: ignore[type-var]

    @property
    def options_of_groups(self) -> frozenset[str]:
        """The arguments that may differ between groups."""
        own: tuple[Any, ...] = fields(self)  # type: ignore[arg-type]
        return frozenset(each.name for each in own) - {
            "groups",
            "clip_norm",
            "clip_value",
            "loss_scale",
            "enters_always",
        }

    def arguments(self) -> dict[str, float | tuple[float, ...]]:
        """The numbers as torch's arguments, by name."""
        joined = {part for parts in self.pairs.values() for part in parts}
        return {
            name: getattr(self, name)
            for name in (*(number for number in self.numbers if number not in joined), *self.pairs)
        }

    def flat(self, arguments: Mapping[str, Any]) -> tuple[float, ...]:
        """The numbers, in order, of torch's arguments by name."""
        parts = {part: arguments[pair][n] for pair, names in self.pairs.items() for n, part in enumerate(names)}
        return tuple(float(parts[number] if number in parts else arguments[number]) for number in self.numbers)

    def check_parameter(self, name: str, shape: Sequence[int]) -> None:
        """Refuse a parameter that cannot be updated; any can, by most optimizers.

        Args:
            name: the parameter's.
            shape: its shape.

        Raises:
            RequestError: it cannot.
        """
        del name, shape

    def check_parameters(self, parameters: Sequence[Parameter]) -> None:
        """Refuse a group that is none's, and a parameter that cannot be updated.

        Args:
            parameters: all of them.

        Raises:
            RequestError: a pattern matches no parameter, or an optimizer is not for one.
        """
        names = [tensor.name for tensor in parameters]
        for pattern in [each for group, _ in self.groups for each in group.split(EITHER)]:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise RequestError(
                    f"{type(self).__name__}.groups: {pattern!r} matches no parameter{nearest(pattern, names)}"
                )
        for tensor in parameters:
            if tensor.requires_grad:
                self.of(tensor.name).check_parameter(tensor.name, tensor.shape)

    def _check(self) -> None:
        """Check what every optimizer has, and freeze the groups."""
        kind = type(self).__name__
        for name, value in self.arguments().items():
            for part in value if name in self.pairs else (value,):  # type: ignore[union-attr]
                check_number(f"{kind}.{name}", part)
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None:
                check_number(f"{kind}.{name}", value)
                if value == 0:
                    raise RequestError(f"{kind}.{name}: expected a number > 0 or None, got {value!r}")
        object.__setattr__(self, "loss_scale", checked_scale(f"{kind}.loss_scale", self.loss_scale))
        object.__setattr__(self, "groups", self._freeze(self.groups))

    def _freeze(self, groups: object) -> Groups:
        kind = type(self).__name__
        if not isinstance(groups, Mapping | tuple):
            raise RequestError(f"{kind}.groups: expected patterns of names with arguments, got {groups!r}")
        own = self.options_of_groups
        frozen: list[Any] = []
        for group in groups.items() if isinstance(groups, Mapping) else groups:
            if not isinstance(group, tuple) or len(group) != 2 or not isinstance(group[0], str):
                raise RequestError(f"{kind}.groups: expected patterns of names with arguments, got {group!r}")
            pattern, given = group
            if isinstance(given, AbstractOptimizer):
                frozen.append((pattern, _of_group(f"{kind}.groups[{pattern!r}]", given)))
                continue
            pairs = given.items() if isinstance(given, Mapping) else given
            if not isinstance(pairs, tuple | ItemsView) or not all(isinstance(p, tuple) and len(p) == 2 for p in pairs):
                raise RequestError(
                    f"{kind}.groups[{pattern!r}]: expected arguments by name, such as {{'lr': 0.1}}, got {given!r}"
                )
            options = {name: frozen_option(value) for name, value in pairs}
            for option in options:
                if option not in own:
                    raise RequestError(
                        f"{kind}.groups[{pattern!r}]: no argument {option!r} of a group{nearest(str(option), own)}"
                    )
            frozen.append((pattern, tuple(options.items())))
            try:
                self.with_options(options)
            except RequestError as error:
                raise RequestError(f"{kind}.groups[{pattern!r}]: {error}") from None
        return tuple(frozen)


def is_finite(value: float) -> bool:
    """Whether a number is one in double precision too: an integer may be too large for it."""
    try:
        return isfinite(value)
    except OverflowError:
        return False


def frozen_option(value: Any) -> Any:
    """An argument that may be a key: a list as a tuple, as torch takes either."""
    return tuple(value) if isinstance(value, list) else value


def check_number(where: str, value: object) -> None:
    """Refuse what is no finite number >= 0.

    Raises:
        RequestError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value) or value < 0:
        raise RequestError(f"{where}: expected a finite number >= 0, got {value!r}")


def _matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(name, each) for each in pattern.split(EITHER))


def _of_group(where: str, given: AbstractOptimizer) -> AbstractOptimizer:
    """An optimizer of a group, whose numbers enter each step.

    Raises:
        RequestError: it has groups, or does what is done with the gradients of all parameters.
    """
    told = [name for name in ("groups", *OF_ALL) if getattr(given, name) not in (None, ())]
    if told or given.keeps_average:
        wrong = ", ".join(told) or "an average"
        raise RequestError(f"{where}: expected an optimizer without {wrong}: that is for all, around the groups")
    return given.varying()


@lru_cache(maxsize=1024)
def _of_row(optimizer: Any, row: int) -> Any:
    given = optimizer.groups[row - 1][1] if row else ()
    if isinstance(given, AbstractOptimizer):
        return replace(given, **{name: getattr(optimizer, name) for name in OF_ALL})  # type: ignore[type-var]
    return optimizer.varying().with_options(dict(given))
