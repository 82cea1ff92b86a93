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
    plan = mp.search(network(), mp.Machine.preset("cpu:1"), optimizer=optimizer)
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
        theirs.load_state_dict(ours.torch_optimizer_state())
        for number in (4, 5):
            ours.step(*BATCHES[number])
            step(values, theirs, number)
        for name, value in ours.parameters().items():
            torch.testing.assert_close(value, values[name].detach(), rtol=0, atol=1e-12)
        with trainer(optimizer) as again:
            again.load_state_dict({name: value.detach() for name, value in values.items()})
            again.load_torch_optimizer_state(theirs.state_dict())
            for number in (6, 7):
                ours.step(*BATCHES[number])
                again.step(*BATCHES[number])
            for name, value in ours.parameters().items():
                torch.testing.assert_close(value, again.parameters()[name], rtol=0, atol=1e-12)


def test_groups_that_have_another_optimizer_are_of_another_of_torchs() -> None:
    """Four steps of ours and two of torch's two are six of ours, and two more of ours from there are eight."""
    own = mp.optim.Muon(lr=0.02, groups={"*.bias": mp.optim.AdamW(lr=0.01), "b.weight": {"lr": 0.1}})
    with trainer(own) as ours, trainer(own) as again:
        for number in range(4):
            ours.step(*BATCHES[number])
        with pytest.raises(
            mp.RequestError, match="torch has an optimizer for each of Muon, AdamW; say which, as kind="
        ):
            ours.torch_optimizer_state()
        with pytest.raises(mp.RequestError, match="no parameter has an optimizer 'Adam'; did you mean 'AdamW'"):
            ours.torch_optimizer_state("Adam")
        values = {name: value.requires_grad_() for name, value in ours.parameters().items()}
        muon = torch.optim.Muon([{"params": [values["a.weight"]]}, {"params": [values["b.weight"]]}])
        adamw = torch.optim.AdamW([values["b.bias"], values["a.bias"]])
        order = ["b.bias", "b.weight", "a.weight", "a.bias"]
        muon.load_state_dict(ours.torch_optimizer_state("Muon"))
        adamw.load_state_dict(ours.torch_optimizer_state("AdamW", order))
        assert [group["lr"] for group in (*muon.param_groups, *adamw.param_groups)] == [0.02, 0.1, 0.01]
        for number in (4, 5):
            ours.step(*BATCHES[number])
            adamw.zero_grad()
            step(values, muon, number)
            adamw.step()
        again.load_state_dict({name: value.detach() for name, value in values.items()})
        again.load_torch_optimizer_state(muon.state_dict(), "Muon")
        again.load_torch_optimizer_state(adamw.state_dict(), "AdamW", order)
        for number in (6, 7):
            ours.step(*BATCHES[number])
            again.step(*BATCHES[number])
        for name, value in ours.parameters().items():
            torch.testing.assert_close(value, again.parameters()[name], rtol=0, atol=1e-12)


class Tied(torch.nn.Module):
    """Parameters in another order than the graph's, one under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(5, 5)
        self.first = torch.nn.Linear(5, 5, bias=False)
        self.first.weight = self.last.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.last(torch.relu(self.first(x))), y)


def test_a_modules_own_order_of_parameters_and_ties() -> None:
    """`named_parameters` names a tied one once, maybe by another of its names than the graph."""
    torch.manual_seed(1)
    module = Tied()
    inputs = torch.randn(8, 5), torch.randint(5, (8,))
    graph = mp.from_torch(module, inputs)
    names = [name for name, _ in module.named_parameters()]
    (world,) = mp.testing.local_worlds(1)
    plan = mp.search(graph, mp.Machine.preset("cpu:1"))
    with mp.Trainer(graph, plan, optimizer=mp.optim.AdamW(), world=world) as ours:
        ours.step(*inputs)
        module.load_state_dict(ours.state_dict())
        theirs = torch.optim.AdamW(module.parameters())
        theirs.load_state_dict(ours.torch_optimizer_state(names=names))
        module(*inputs).backward()
        theirs.step()
        ours.step(*inputs)
        for name, value in module.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value, rtol=0, atol=1e-6)


def test_a_state_without_a_step_begins_one() -> None:
    with trainer(mp.optim.AdamW()) as ours:
        assert ours.torch_optimizer_state()["state"] == {}
        with pytest.raises(mp.RequestError, match=r"expected 'step' of parameter 0, .* it has nothing"):
            ours.load_torch_optimizer_state(ours.torch_optimizer_state())


def test_what_does_not_fit_changes_nothing() -> None:
    with trainer(mp.optim.AdamW()) as ours:
        ours.step(*BATCHES[0])
        before, rates = {**ours.parameters(), **ours.optimizer_state()}, ours.hyper.rows()
        state = ours.torch_optimizer_state()
        (group,), first = state["param_groups"], state["state"][0]
        assert group["lr"] == 1e-3

        def entry(**other: Any) -> dict[str, Any]:
            return {**state, "state": {**state["state"], 0: {**first, **other}}}

        def grouped(**other: Any) -> dict[str, Any]:
            return {**state, "param_groups": [{**group, **other}]}

        for given, message in (
            ({}, "expected a state_dict"),
            ({**state, "state": {}}, r"expected 'step' of parameter 0, which is 'a\.weight'; it has nothing"),
            (entry(exp_avg_sq=None), r"expected 'exp_avg_sq' of parameter 0, which is 'a\.weight'; it has 'step'"),
            (entry(max_exp_avg_sq=first["exp_avg"]), "has 'max_exp_avg_sq', which AdamW has not"),
            (entry(step=torch.tensor(2.0)), r"different numbers of steps: \[1, 2\]"),
            (entry(exp_avg=torch.zeros(2, 2)), r"optimizer state a\.weight\.exp_avg: expected \(6, 5\), got \(2, 2\)"),
            ({**state, "param_groups": []}, r"expected groups of \[4\] parameters"),
            (grouped(param_names=["a"] * 4), "expected parameters a.weight, .*, got a, a, a, a"),
            (grouped(maximize=True), "expected maximize=False, which cannot change in a training, got True"),
            (grouped(lr=float("nan")), "hyper: lr: expected a finite number >= 0, got nan"),
            ({**state, "param_groups": [{"params": [0, 1, 2, 3]}]}, "expected 'lr' in each group, as AdamW has it"),
        ):
            with pytest.raises(mp.RequestError, match=message):
                ours.load_torch_optimizer_state(given)
        for names, wrong in (
            (["a.weight", "a.bios", "b.weight", "b.bias"], r"a\.bias, a\.bios"),
            (["a.bias"] * 5, "a.weight"),
        ):
            with pytest.raises(mp.RequestError, match=f"expected each trained parameter once; wrong: {wrong}"):
                ours.torch_optimizer_state(names=names)
        assert ours.hyper.rows() == rates
        assert all(
            torch.equal(value, before[name]) for name, value in {**ours.parameters(), **ours.optimizer_state()}.items()
        )
