"""The state of an optimizer by torch's names: what the `state_dict` of the same optimizer in `torch.optim` holds.

    ours                              torch's, of parameters in the order of the groups
    step                              state[0]["step"], of every parameter; SGD has none
    linear.weight.exp_avg             state[0]["exp_avg"]
    linear.weight.momentum            state[0]["momentum_buffer"]
    hyper["lr"], hyper["*.bias", "lr"]    param_groups[0]["lr"], param_groups[1]["lr"]

What torch keeps elsewhere, the scale of the loss and averages of weights, is in neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from maniple.operators.lowering.weight import STEP
from maniple.operators.training.averaging import Averaged
from maniple.operators.training.torch_rule import TorchRule
from maniple.process.error import RequestError

if TYPE_CHECKING:
    import torch

    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.trainer import Trainer

__all__: list[str] = []

TORCH_NAMES = {"momentum": "momentum_buffer"}
"""What of the state torch calls otherwise."""
COUNTLESS = ("SGD",)
"""Optimizers whose state has no number of steps."""


def to_torch(trainer: Trainer, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Give what torch's optimizer takes by `load_state_dict`, on every rank.

    Args:
        trainer: whose optimizer's state it is.
        names: the trained parameters in the order in which torch's optimizer was given them, group by group; by default
            the graph's order within each group of ours.

    Raises:
        RequestError: names that are not those of the trained parameters.
    """
    import torch  # an optimizer can be named, and a plan searched for it, without torch

    optimizer = trainer.optimizer
    state, groups = trainer.optimizer_state(), _groups(trainer, names)
    found: dict[int, dict[str, torch.Tensor]] = {}
    for number, name in enumerate(name for group in groups for name in group):
        kept = {TORCH_NAMES.get(each, each): state[f"{name}.{each}"] for each in _inner(optimizer).of(name).state_names}
        counted = kept and _kind(optimizer) not in COUNTLESS and int(state[STEP]) > 0
        if int(state[STEP]) > 0 and kept:
            found[number] = {**({STEP: state[STEP].to(torch.float32)} if counted else {}), **kept}
    first, table = 0, []
    for row, group in enumerate(groups):
        pattern = None if row == 0 else optimizer.groups[row - 1][0]
        numbers = {
            name: trainer.hyper[name] if pattern is None else trainer.hyper[pattern, name]
            for name in optimizer.arguments()
        }
        flags = _defaults(_inner(optimizer).of_row(row))
        table.append({**flags, **numbers, "params": [*range(first, first + len(group))]})
        first += len(group)
    return {"state": found, "param_groups": [group for group in table if group["params"] or len(table) == 1]}


def from_torch_state(trainer: Trainer, given: Mapping[str, Any], names: Sequence[str] | None = None) -> None:
    """Take what torch's optimizer of the same kind gave by `state_dict`, the same on every rank; numbers are `hyper`'s.

    Args:
        trainer: whose optimizer takes it.
        given: what torch's gave.
        names: see ``to_torch``.

    Raises:
        RequestError: an entry is missing, or one does not fit; nothing is written then.
    """
    import torch

    order = [name for group in _groups(trainer, names) for name in group]
    if not isinstance(given, Mapping) or not {"state", "param_groups"} <= given.keys():
        raise RequestError("torch's optimizer state: expected a state_dict, with 'state' and 'param_groups'")
    places = [place for group in given["param_groups"] for place in group["params"]]
    if len(places) != len(order):
        raise RequestError(
            f"torch's optimizer state: expected {len(order)} parameters, as many as are trained; got {len(places)}"
        )
    state, optimizer = trainer.optimizer_state(), _inner(trainer.optimizer)
    steps = set()
    for name, place in zip(order, places, strict=True):
        entry = given["state"].get(place, {})
        for each in optimizer.of(name).state_names:
            theirs = TORCH_NAMES.get(each, each)
            if not isinstance(entry.get(theirs), torch.Tensor):
                raise RequestError(
                    f"torch's optimizer state: expected a tensor {theirs!r} of parameter {place}, which is {name!r}; "
                    f"it has {', '.join(map(repr, entry)) or 'nothing'}"
                )
            state[f"{name}.{each}"] = entry[theirs]
        if STEP in entry:
            steps.add(int(entry[STEP]))
    if len(steps) > 1:
        raise RequestError(f"torch's optimizer state: expected one number of steps, got {sorted(steps)}")
    if steps:
        state[STEP] = torch.tensor(steps.pop())
    elif int(state[STEP]) == 0:
        state[STEP] = torch.tensor(1)  # of SGD: a first step would take the whole gradient
    trainer.load_optimizer_state(state)


def _groups(trainer: Trainer, names: Sequence[str] | None) -> list[list[str]]:
    trained = [tensor.name for tensor in trainer.graph.parameters if tensor.requires_grad]
    if names is not None and sorted(names) != sorted(trained):
        wrong = sorted(set(names) ^ set(trained))
        raise RequestError(f"names: expected each trained parameter once; wrong: {', '.join(wrong) or 'one twice'}")
    groups: list[list[str]] = [[] for _ in range(trainer.optimizer.rows[0])]
    for name in trained if names is None else names:
        groups[trainer.optimizer.row_of(name)].append(name)
    return groups


def _inner(optimizer: AbstractOptimizer) -> AbstractOptimizer:
    return optimizer.inner if isinstance(optimizer, Averaged) else optimizer


def _kind(optimizer: AbstractOptimizer) -> str:
    own = _inner(optimizer)
    return own.kind if isinstance(own, TorchRule) else type(own).__name__


def _defaults(optimizer: AbstractOptimizer) -> dict[str, Any]:
    """The arguments of torch's optimizer, with the flags of ours."""
    import torch

    theirs: torch.optim.Optimizer = getattr(torch.optim, _kind(optimizer))([torch.nn.Parameter(torch.zeros(1))])
    own = dict(optimizer.options) if isinstance(optimizer, TorchRule) else {}
    return {name: own.get(name, getattr(optimizer, name, value)) for name, value in theirs.defaults.items()}
