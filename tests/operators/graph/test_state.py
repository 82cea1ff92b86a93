"""State dicts: the names torch has, values that trainers begin with, and what does not fit."""

from __future__ import annotations

import pytest
import torch

import maniple as mp
from maniple.operators.operator.operator import Initial
from maniple.process.error import RequestError, RunError


def network() -> mp.Graph:
    g = mp.Graph("net")
    x, y = g.input("x", (4, 3)), g.input("y", (4,), dtype="int64")
    g.buffer("scale", (2,), "float32", Initial("constant", 3.0))
    g.buffer("scratch", (1,), "int64", persistent=False)
    g.loss(g.cross_entropy(g.linear(g.batch_norm(x), 5), y))
    return g


def trainer(g: mp.Graph) -> mp.Trainer:
    return mp.Trainer(g, mp.search(g, mp.Machine.cpu(1)), optimizer=mp.SGD(lr=0.1))


BATCH = {"x": torch.arange(12.0).reshape(4, 3), "y": torch.tensor([0, 1, 2, 3])}


def test_names_are_those_of_torch_in_order_of_creation() -> None:
    state = network().state_dict()
    assert list(state) == [
        "scale",
        "batch_norm.running_mean",
        "batch_norm.running_var",
        "batch_norm.weight",
        "batch_norm.bias",
        "linear.weight",
        "linear.bias",
    ]
    assert torch.equal(state["scale"], torch.tensor([3.0, 3.0]))


def test_a_trainer_begins_with_what_was_loaded_and_gives_it_back() -> None:
    module = torch.nn.Linear(3, 5)
    g = network()
    before = g.fingerprint()
    g.load_state_dict({f"linear.{key}": value for key, value in module.state_dict().items()}, strict=False)
    assert g.fingerprint() == before
    smaller = g.with_batch(2)
    assert torch.equal(smaller.state_dict()["linear.weight"], module.weight.detach())
    with trainer(g) as first:
        assert torch.equal(first.state_dict()["linear.weight"], module.weight.detach())
        first.step(**BATCH)
        kept = first.state_dict()
        loss = first.step(**BATCH)
    with trainer(network()) as second:
        assert not torch.equal(second.state_dict()["linear.weight"], kept["linear.weight"])
        second.load_state_dict(kept)
        assert second.step(**BATCH) == loss


BAD = {
    "missing": ({}, "7 of 8 entries are missing, the first is 'scale'"),
    "unknown": ({"linear.wieght": torch.ones(5, 3)}, "no parameter or buffer 'linear.wieght'.*linear.weight"),
    "misshaped": ({"linear.weight": torch.ones(3, 5)}, r"expected shape \(5, 3\) of float32, got \(3, 5\)"),
    "another dtype": ({"linear.bias": torch.ones(5).double()}, r"got \(5,\) of float64"),
    "no values": ({"linear.bias": torch.ones(5, device="meta")}, "expected a tensor with values, got .* meta"),
    "no tensor": ({"linear.bias": [1.0]}, "expected a tensor with values, got list"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    entries, message = BAD[name]
    g = network()
    state = {} if name == "missing" else {**g.state_dict(), **entries}
    with pytest.raises(RequestError, match=message):
        g.load_state_dict(state)  # type: ignore[arg-type]


DECLARED = {
    "integer parameter": (lambda g: g.parameter("p", (2,), "int64"), "expected dtype float32 or float64, got int64"),
    "half parameter": (lambda g: g.parameter("p", (2,), "bfloat16"), 'semantics={"precision": "bf16"}'),
    "complex parameter": (lambda g: g.parameter("p", (2,), "complex64"), "dtype 'complex64' is not supported"),
    "empty parameter": (lambda g: g.parameter("p", (0,)), "expected extents >= 1"),
    "buffer of another shape": (lambda g: g.assign(g.handle("scale"), g.handle("linear")), r"expected shape \(2,\)"),
    "two next values": (
        lambda g: g.assign(g.handle("batch_norm.running_mean"), g.handle("batch_norm.1")),
        "has a next value already",
    ),
    "an input as next value": (lambda g: g.assign(g.handle("scale"), g.handle("x")), "an operator's result, got input"),
    "integers as loss": (lambda g: g.loss(g.handle("y")), "expected a scalar"),
}


@pytest.mark.parametrize("name", DECLARED)
def test_declarations_that_do_not_fit_are_refused(name: str) -> None:
    act, message = DECLARED[name]
    with pytest.raises(RequestError, match=message):
        act(network())


def test_a_graph_whose_parameters_are_all_frozen_has_nothing_to_train() -> None:
    g = mp.Graph("frozen")
    x, y = g.input("x", (4, 3)), g.input("y", (4,), dtype="int64")
    weight = g.parameter("w", (5, 3), requires_grad=False)
    g.loss(g.cross_entropy(g.linear(x, 5, bias=False, weight=weight), y))
    with pytest.raises(RequestError, match="depends on no trained parameter"):
        trainer(g)


def test_a_nan_loss_stops_the_trainer_and_debugging_names_the_operator() -> None:
    broken = {**BATCH, "x": BATCH["x"] * float("inf")}
    with trainer(network()) as one:
        one.step(**BATCH)
        with pytest.raises(RunError, match="the loss of step 1 is NaN"):
            one.step(**broken)
        with pytest.raises(RunError, match="goes no further: the loss of step 1 is NaN"):
            one.step(**BATCH)
    with mp.debug(), pytest.raises(RunError, match="operator batch_norm gave the first NaN"), trainer(network()) as two:
        two.step(**broken)


def test_a_batch_on_another_device_is_refused() -> None:
    with (
        trainer(network()) as one,
        pytest.raises(RequestError, match="expected a tensor on the CPU or on CUDA, got one on meta"),
    ):
        one.step(x=BATCH["x"].to("meta"), y=BATCH["y"])
