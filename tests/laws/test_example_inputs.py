"""Law 1 for every way of giving example inputs: aliases, views, nested, by keyword, defaults, None, no tensors.

Each way is imported once from examples of zeros, and then trained and evaluated on values that all differ, with whole
and smaller batches, beside the same module in torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from example_inputs import (
    BATCH,
    EXAMPLES,
    RATE,
    WAYS,
    WIDTH,
    Net,
    OnlyFirst,
    Plain,
    Sample,
    arguments,
    drawn,
    imported,
    in_torch,
    same,
)
from tolerance import TOLERANCE, violations
from torch import Tensor

import maniple as mp
from maniple.operators.graph.batch import check_batch
from maniple.process.error import RequestError


@pytest.mark.parametrize("name", WAYS)
def test_a_step_takes_what_the_module_takes(name: str) -> None:
    way = WAYS[name]
    torch.manual_seed(len(name))
    module = way.module()
    graph = imported(way, module, same())
    assert [tensor.name for tensor in graph.inputs] == way.inputs.split()
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE)) as trainer:
        for step, samples in enumerate((BATCH, 4, 1) if name in {"two", "deep"} else (BATCH, 4)):
            args, named = arguments(way, drawn(step, samples))
            loss, out = in_torch(way, module, drawn(step, samples))
            (shown,) = trainer.evaluate(**by_input(graph, args, named)).values()
            assert not violations(f"{name}, output for {samples}", shown, out.detach(), TOLERANCE["float64"])
            assert trainer.step(*args, **named) == pytest.approx(loss.item(), rel=1e-10)
            loss.backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(RATE * parameter.grad)
                    parameter.grad = None
        for key, value in trainer.state_dict().items():
            assert not violations(key, value, module.state_dict()[key], TOLERANCE["float64"])


def by_input(graph: mp.Graph, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a call by the graph's names of them, in their order."""
    found = graph.arguments.by_name(args, named, [tensor.name for tensor in graph.inputs])
    return {key: value for key, value in found.items() if isinstance(value, Tensor)}


@cache
def of_tensors_apart(name: str) -> str:
    """The fingerprint of an import whose examples share nothing."""
    return imported(WAYS[name], WAYS[name].module(), drawn(0, BATCH)).fingerprint()


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", ["two", "deep", "a loss"])
def test_examples_of_one_storage_are_inputs_of_their_own(name: str, examples: str) -> None:
    way = WAYS[name]
    assert imported(way, way.module(), EXAMPLES[examples]()).fingerprint() == of_tensors_apart(name)


def test_a_parameter_of_the_module_may_be_an_example() -> None:
    module = Plain()
    graph = mp.from_torch(module, (module.layer.weight, module.layer.weight))
    assert [tensor.name for tensor in graph.inputs] == ["x", "y"]
    assert graph.node("layer").operands == (0, 2, 3)


class Opaque:
    def __init__(self, held: object) -> None:
        self.held = held


X = torch.zeros(BATCH, WIDTH, dtype=torch.float64)
BESIDE = WAYS["a dictionary beside"].module


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ((X, Opaque(X)), r"'extra' is of type Opaque and holds a tensor, extra\.held, which would be a constant"),
        (
            (X, {"y": Opaque([{"deep": X}])}),
            r"'extra\.y' is of type Opaque and holds a tensor, extra\.y\.held\.0\.deep",
        ),
        ((X, {"y": {1: Opaque(Opaque(X))}}), r"extra\.y\.1\.held\.held, which would be a constant; pass it in a dict"),
        ((X, {"y": {X}}), r"'extra\.y' is of type set and holds a tensor"),
        ((X, {"y": iter([X])}), r"'extra\.y' is of type list_iterator, into which .* pass a list"),
        ((X, {"y": X.numpy()}), r"'extra\.y' is of type ndarray, whose values would be constants; pass a tensor"),
        ((X, {"y": [np.ones(3)]}), r"'extra\.y\.0' is of type ndarray"),
        ((X, {1: X, "1": X}), r"two of the example inputs are called 'extra\.1'"),
        ((X, {"y": X.to_sparse()}), r"'extra\.y' is torch\.sparse_coo; expected a dense tensor"),
        ((X, {"y": X.to("meta")}), r"'extra\.y' is on meta, the module on cpu"),
        ((2.0, {"y": 3.0}), r"no tensor among the example inputs \(x, extra\); expected at least one"),
        ({"x": X, "labels": X}, r"takes \(x.*, extra.*\): .*pass \(\{\.\.\.\},\) for one argument that is a dict"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_tensors_that_would_be_constants_are_refused_by_name(examples: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        mp.from_torch(BESIDE(), examples)


@pytest.mark.parametrize(
    ("name", "args", "named", "said"),
    [
        (
            "a dictionary beside",
            (X, X),
            {},
            r"'extra' of graph 'InSecond' takes extra\.y; got 'extra', a tensor of shape",
        ),
        ("a dictionary beside", (X, {"z": X}), {}, r"takes extra\.y; got 'extra\.z'"),
        (
            "a dictionary beside",
            (X, {"y": X, "scale": 3.0}),
            {},
            r"'extra\.scale' .* was 2\.0 at the import .* got 3\.0",
        ),
        ("a dictionary beside", (X, {}), {}, r"input 'extra\.y' is missing; expected x, extra\.y"),
        ("a dictionary beside", (X,), {"extra.z": X}, r"has no input 'extra\.z'; did you mean 'extra\.y'"),
        ("None", (X, X, X), {}, r"'mask' .* was None at the import .* got a tensor of shape \(6, 5\)"),
        ("None and a flag", (X, None, X, True), {}, r"'use' .* was False at the import .* got True"),
        ("two", (X, X, X), {}, r"expected at most 2 inputs \(x, y\), got 3"),
        ("two", (X, [X]), {}, r"input 'y': expected a torch\.Tensor, got list"),
    ],
)
def test_a_step_that_is_given_something_else_is_refused(
    name: str, args: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    graph = graph_of(name)
    with pytest.raises(RequestError, match=said):
        check_batch(graph, args, named, [tensor.name for tensor in graph.inputs])


@cache
def graph_of(name: str) -> mp.Graph:
    return imported(WAYS[name], WAYS[name].module(), same())


def test_what_was_fixed_may_be_left_out_or_given_again() -> None:
    for name, calls in {
        "None and a flag": [(X, X), (X, None, X), (X, None, X, False)],
        "a dictionary beside": [(X, {"y": X}), (X, {"y": X, "scale": 2.0})],
        "one that nothing reads": [(X, X, X)],
        "a frozen dataclass": [(Sample(X, X, 2.0),), ({"x": X, "y": X},)],
    }.items():
        graph = graph_of(name)
        needed = [tensor.name for tensor in graph.inputs]
        for args in calls:
            assert list(check_batch(graph, args, {}, needed)[0]) == needed, (name, args)


def test_an_input_that_nothing_reads_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    imported(WAYS["one that nothing reads"], OnlyFirst(), same())
    assert "OnlyFirst: nothing reads these inputs, and a step does without them:\n  unused\n" in capsys.readouterr().err


def test_a_module_that_reads_no_input_is_refused() -> None:
    class Deaf(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer.weight.sum()

    with pytest.raises(RequestError, match=r"read none of the example inputs \(x\); use them in forward"):
        mp.from_torch(Deaf(), (X,))


def test_an_input_of_a_graph_built_by_hand_that_nothing_reads_is_refused() -> None:
    g = mp.Graph("mine")
    x, y = g.input("x", (4, 2)), g.input("y", (4,), dtype="int64")
    g.input("weights", (4,))
    g.loss(g.cross_entropy(g.linear(x, 3), y))
    with pytest.raises(RequestError, match=r"graph 'mine': no operator reads input 'weights'; remove it, or use it"):
        mp.search(g, mp.Machine.cpu(1), strategy="data_parallel")
