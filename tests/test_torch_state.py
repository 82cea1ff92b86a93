"""The state of an optimizer by torch's names: torch goes on where ours was, and ours where torch was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import maniple as mp
from maniple.operators.training.optimizer import AbstractOptimizer

CHANCE = torch.Generator().manual_seed(3)
BATCHES = [
    (torch.randn(8, 5, generator=CHANCE, dtype=torch.float64), torch.randint(3, (8,), generator=CHANCE))
    for _ in range(8)
]
GROUPS = {"*.bias": {"lr": 0.02}}
Make = Callable[[Any], torch.optim.Optimizer]
CASES: dict[str, tuple[AbstractOptimizer, type[torch.optim.Optimizer]]] = {
    "AdamW": (mp.optim.AdamW(lr=0.01, weight_decay=0.1, groups=GROUPS), torch.optim.AdamW),
    "Adam": (mp.optim.Adam(lr=0.01, amsgrad=True), torch.optim.Adam),
    "SGD": (mp.SGD(0.1, 0.9, nesterov=True), torch.optim.SGD),
    "averaged": (mp.optim.averaged(mp.SGD(0.1, 0.9, groups=GROUPS)), torch.optim.SGD),
    "by torch": (mp.optim.by_torch(torch.optim.RMSprop, lr=0.01, momentum=0.5), torch.optim.RMSprop),
}


def network() -> mp.Graph:
    graph = mp.Graph("two layers")
    x, y = graph.input("x", (8, 5), dtype="float64"), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 6, name="a")), 3, name="b"), y))
    return graph


def trainer(optimizer: AbstractOptimizer) -> mp.Trainer:
    (world,) = mp.testing.local_worlds(1)
    plan = mp.search(network(), mp.Machine.preset("cpu:1"))
    return mp.Trainer(network(), plan, optimizer=optimizer, world=world)


def step(values: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer, number: int) -> None:
    x, y = BATCHES[number]
    optimizer.zero_grad()
    hidden = F.relu(F.linear(x, values["a.weight"], values["a.bias"]))
    F.cross_entropy(F.linear(hidden, values["b.weight"], values["b.bias"]), y).backward()
    optimizer.step()


def as_torch(
    values: dict[str, torch.Tensor], kind: type[torch.optim.Optimizer], grouped: bool
) -> torch.optim.Optimizer:
    """Torch's optimizer as it is made with no word of ours: its numbers come with the state."""
    if not grouped:
        return kind(values.values())  # type: ignore[call-arg]
    weights = [value for name, value in values.items() if not name.endswith("bias")]
    biases = [value for name, value in values.items() if name.endswith("bias")]
    return kind([{"params": weights}, {"params": biases}])  # type: ignore[call-arg]


@pytest.mark.parametrize("case", CASES)
def test_each_goes_on_where_the_other_was(case: str) -> None:
    """Four steps of ours and two of torch's are six of ours; and two more of ours are eight."""
    optimizer, kind = CASES[case]
    with trainer(optimizer) as ours:
        for number in range(4):
            ours.step(*BATCHES[number])
        values = {name: value.requires_grad_() for name, value in ours.parameters().items()}
        theirs = as_torch(values, kind, grouped=bool(optimizer.groups))
        theirs.load_state_dict(mp.optim.to_torch(ours))
        for number in (4, 5):
            ours.step(*BATCHES[number])
            step(values, theirs, number)
        for name, value in ours.parameters().items():
            torch.testing.assert_close(value, values[name].detach(), rtol=0, atol=1e-12)
        with trainer(optimizer) as again:
            again.load_state_dict({name: value.detach() for name, value in values.items()})
            mp.optim.from_torch_state(again, theirs.state_dict())
            for number in (6, 7):
                ours.step(*BATCHES[number])
                again.step(*BATCHES[number])
            for name, value in ours.parameters().items():
                torch.testing.assert_close(value, again.parameters()[name], rtol=0, atol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    with trainer(mp.optim.AdamW()) as ours:
        ours.step(*BATCHES[0])
        state = mp.optim.to_torch(ours)
        for change, message in (
            (dict, "expected a state_dict"),
            (
                lambda: {**state, "state": {}},
                r"expected a tensor 'exp_avg' of parameter 0, which is 'a\.weight'; it has",
            ),
            (lambda: {**state, "param_groups": []}, "expected 4 parameters, as many as are trained; got 0"),
        ):
            with pytest.raises(mp.RequestError, match=message):
                mp.optim.from_torch_state(ours, change())
        with pytest.raises(mp.RequestError, match=r"wrong: a\.bias, a\.bios"):
            mp.optim.to_torch(ours, ["a.weight", "a.bios", "b.weight", "b.bias"])
        assert mp.optim.to_torch(ours)["param_groups"][0]["lr"] == 1e-3
