"""Rules of several operators as one: factors that meet in a tensor are one, and what one keeps whole stays whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.fusion.chain_rule import ChainRule, chain_rule


def graph(function: Callable[[Tensor, Tensor], Tensor]) -> Graph:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return function(x, self.weight).sum()

    return mp.from_torch(Module(), (torch.ones(2, 3, 3),))


def of(found: Graph, *names: str) -> ChainRule | None:
    nodes = [found.node(name) for name in names]
    made = {tensor for node in nodes for tensor in node.results}
    read = dict.fromkeys(operand for node in nodes for operand in node.operands if operand is not None)
    return chain_rule(found, nodes, [each for each in read if each not in made], [nodes[-1].results[0]])


def test_factors_that_meet_are_one() -> None:
    """The weight repeats along the first two dimensions."""
    found = of(graph(lambda x, w: torch.tanh(x * w)), "mul", "tanh")
    assert found is not None
    operands, _, result = found.text.partition(" -> ")
    first, second = operands.split(", ")
    assert first == result
    assert first.endswith(f" {second}")
    assert set(found.names.values()) == set(result.split())


def test_what_one_keeps_whole_is_whole() -> None:
    found = of(graph(lambda x, w: torch.softmax(x * w, 2).cumsum(1).tanh()), "cumsum", "tanh")
    assert found is not None
    assert [name.endswith("!") for name in found.text.partition(" -> ")[2].split()] == [False, True, False]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        pytest.param(lambda x, w: (x * w) @ (x + w), ("mul", "matmul"), id="one tensor along other factors"),
        pytest.param(lambda x, w: (x * w).flatten(1).tanh(), ("mul", "flatten"), id="a compound"),
        pytest.param(lambda x, w: torch.tanh(x * w)[:, 1:], ("tanh", "slice"), id="a window"),
    ],
)
def test_some_have_no_rule_together(function: Callable[[Tensor, Tensor], Tensor], names: tuple[str, ...]) -> None:
    found = graph(function)
    present = [node.name for node in found.nodes]
    assert set(names) <= set(present), present
    rule = of(found, *names)
    if "matmul" in names:  # one factor of each operand is the other's: no diagonal comes of it
        assert rule is None or len(set(rule.text.partition(" -> ")[2].split())) == 3
    else:
        assert rule is None
