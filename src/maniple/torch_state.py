"""The state of an optimizer as torch's: what the `state_dict` of the same optimizer in `torch.optim` holds.

    ours                              torch's, of parameters in the order of the groups
    step                              state[0]["step"], of every parameter; SGD and Muon have none
    linear.weight.exp_avg             state[0]["exp_avg"]
    linear.weight.momentum            state[0]["momentum_buffer"]
    hyper["lr"], hyper["*.bias", "lr"]    param_groups[0]["lr"], param_groups[1]["lr"]

Groups that have another optimizer are of another state dict: torch has an optimizer for each. What torch keeps
elsewhere, the scale of the loss and averages of weights, is in none and stays; steps that were skipped do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

import torch

from maniple.operators.lowering.weight import STEP
from maniple.operators.training import loss_scale
from maniple.operators.training.averaging import Averaged
from maniple.operators.training.optimizer import frozen_option
from maniple.operators.training.torch_rule import TorchRule
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []

State = Mapping[str, torch.Tensor]
Rows = list[dict[str, Any]]
"""The numbers of each group, as `Hyper.rows` gives them."""
OURS = {"momentum_buffer": "momentum"}
"""What of torch's state has another name here."""
WAYS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""What of torch's arguments says how it computes, and nothing of what."""
WHERE = "torch's optimizer state"


@final
class Group(NamedTuple):
    """A group of torch's optimizer.

    Args:
        row: which of ours it is.
        own: the optimizer of its parameters.
        names: its parameters.
    """

    row: int
    own: AbstractOptimizer
    names: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class TorchState:
    """How torch's optimizer of a kind lists the parameters of a training.

    Args:
        groups: its groups, in order.
    """

    groups: tuple[Group, ...]

    @classmethod
    def of(
        cls, optimizer: AbstractOptimizer, graph: Graph, kind: str | None = None, names: Sequence[str] | None = None
    ) -> Self:
        """The state of an optimizer of a graph's parameters.

        Args:
            optimizer: of all of them.
            graph: the graph.
            kind: torch's name of the optimizer, where groups have several.
            names: the trained parameters in torch's order; by default the graph's. Those of other kinds do not count.

        Raises:
            RequestError: no such kind, or several and none was named; names that are not those of the parameters.
        """
        kinds: dict[str, list[str]] = {}
        for tensor in graph.parameters:
            if tensor.requires_grad:
                kinds.setdefault(optimizer.of(tensor.name).title, []).append(tensor.name)
        if kind is None and len(kinds) > 1:
            raise RequestError(f"{WHERE}: torch has an optimizer for each of {', '.join(kinds)}; say which, as kind=")
        wanted = kinds.get(next(iter(kinds), "") if kind is None else kind)
        if wanted is None:
            raise RequestError(f"{WHERE}: no parameter has an optimizer {kind!r}{nearest(str(kind), [*kinds])}")
        if names is not None:
            given = [graph.ties.get(name, name) for name in names]
            found = [name for name in given if name in wanted]
            wrong = {*given} - {name for each in kinds.values() for name in each} | {*wanted} - {*found}
            if wrong or len(found) > len(wanted):
                told = ", ".join(sorted(wrong)) or "one twice"
                raise RequestError(f"names: expected each trained parameter once; wrong: {told}")
            wanted = found
        rows = [[name for name in wanted if optimizer.row_of(name) == row] for row in range(optimizer.rows[0])]
        groups = [Group(row, _inner(optimizer.of_row(row)), tuple(mine)) for row, mine in enumerate(rows) if mine]
        return cls(tuple(groups))

    def told(self, state: State, numbers: Rows) -> dict[str, Any]:
        """The state dict.

        Args:
            state: all that our optimizer keeps.
            numbers: of each of our groups.
        """
        taken, place = int(state[STEP]) - _skipped(state), 0
        found: dict[str, Any] = {"state": {}, "param_groups": []}
        for row, own, names in self.groups:
            group, kept = _sample(own)
            places = [*range(place, place := place + len(names))]
            found["param_groups"].append({**group, **numbers[row], "params": places, "param_names": list(names)})
            for number, name in zip(places, names, strict=True) if taken > 0 and kept else ():
                found["state"][number] = {
                    key: torch.tensor(float(taken)) if key == STEP else state[f"{name}.{_ours(own, key)}"]
                    for key in kept
                }
        return found

    def taken(self, given: object, state: State, numbers: Rows) -> tuple[dict[str, torch.Tensor], Rows]:
        """What our optimizer keeps, and the numbers of its groups, with what a state dict says of them.

        Args:
            given: as `torch.optim.Optimizer.state_dict` gives it; parameters go by their names, else by their order.
            state: all that our optimizer keeps.
            numbers: of each of our groups.

        Raises:
            RequestError: it is none of the same parameters, groups and optimizer.
        """
        if not isinstance(given, Mapping) or not {"state", "param_groups"} <= given.keys():
            raise RequestError(f"{WHERE}: expected a state_dict, with 'state' and 'param_groups'")
        theirs, sizes = given["param_groups"], [len(group.names) for group in self.groups]
        if [len(group["params"]) for group in theirs] != sizes:
            raise RequestError(f"{WHERE}: expected groups of {sizes} parameters, in that order")
        found, rows, steps = dict(state), [dict(row) for row in numbers], set[int]()
        for (row, own, names), group in zip(self.groups, theirs, strict=True):
            named = group.get("param_names") or names
            if sorted(named) != sorted(names):
                raise RequestError(f"{WHERE}: expected parameters {', '.join(names)}, got {', '.join(map(str, named))}")
            rows[row] |= _numbers(own, group)
            for name, place in zip(named, group["params"], strict=True):
                kept = _kept(own, name, place, given["state"].get(place, {}))
                steps |= {int(value) for key, value in kept.items() if key == STEP}
                found |= {f"{name}.{_ours(own, key)}": value for key, value in kept.items() if key != STEP}
        if len(steps) > 1:
            raise RequestError(f"{WHERE}: parameters have seen different numbers of steps: {sorted(steps)}")
        # Of an optimizer without a count all that counts is whether there was a first step.
        taken = max(steps, default=max(1, int(state[STEP]) - _skipped(state)))
        return {**found, STEP: torch.tensor(taken + _skipped(state))}, rows


def _kept(own: AbstractOptimizer, name: str, place: object, held: Mapping[str, Any]) -> dict[str, Any]:
    """What torch keeps of a parameter, if it is what ours keeps."""
    kept = {key: value for key, value in held.items() if value is not None}
    for key in _sample(own)[1]:
        if not isinstance(kept.get(key), torch.Tensor | float | int):
            has = ", ".join(map(repr, kept)) or "nothing"
            raise RequestError(f"{WHERE}: expected {key!r} of parameter {place}, which is {name!r}; it has {has}")
    if wrong := kept.keys() - {*_sample(own)[1]}:
        told = ", ".join(map(repr, sorted(wrong)))
        raise RequestError(f"{WHERE}: parameter {place}, which is {name!r}, has {told}, which {own.title} has not")
    return kept


def _numbers(own: AbstractOptimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a group, whose other arguments must be ours."""
    sample, found = _sample(own)[0], {}
    for key in own.arguments():
        if key not in group:
            raise RequestError(f"{WHERE}: expected {key!r} in each group, as {own.title} has it")
        value = group[key]
        found[key] = float(value) if isinstance(value, torch.Tensor) else value
    for key in sorted(own.options_of_groups - found.keys() - WAYS):
        if frozen_option(group.get(key)) != frozen_option(sample.get(key)):
            raise RequestError(
                f"{WHERE}: expected {key}={sample.get(key)!r}, which cannot change in a training, got "
                f"{group.get(key)!r}"
            )
    return found


def _sample(own: AbstractOptimizer) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The group of torch's optimizer with the same arguments, and what it keeps of a parameter, by trying it out.

    Raises:
        RequestError: torch has no such optimizer.
    """
    kind = getattr(torch.optim, own.title, None)
    if kind is None:
        raise RequestError(f"torch has no optimizer {own.title!r}; take optimizer_state")
    plain = dict(own.options) if isinstance(own, TorchRule) else {n: getattr(own, n) for n in own.options_of_groups}
    small = torch.nn.Parameter(torch.zeros(1, 1))
    small.grad = torch.zeros_like(small)
    made: torch.optim.Optimizer = kind([small], **plain)
    made.step()
    (group,) = made.state_dict()["param_groups"]
    return group, tuple(key for key, value in made.state[small].items() if value is not None)


def _ours(own: AbstractOptimizer, key: str) -> str:
    """What our optimizer calls a state of torch's."""
    return key if key in own.state_names else OURS.get(key, key)


def _inner(optimizer: AbstractOptimizer) -> AbstractOptimizer:
    return optimizer.inner if isinstance(optimizer, Averaged) else optimizer


def _skipped(state: State) -> int:
    """How many steps were skipped because gradients overflowed; torch's optimizers count those that were taken."""
    found = state.get(f"{loss_scale.NAME}.{loss_scale.COUNTS[-1]}")
    return 0 if found is None else int(found)
