"""Builder methods for layout: what torch gives, under random plans, with gradients; and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.operator.builder import Tensor as Handle
from maniple.process.error import RequestError

TOLERANCE = 1e-12  # of float64, after one step

METHODS: dict[str, tuple[Callable[[Graph, Handle], Handle], Callable[[Tensor], Tensor]]] = {
    "concat": (lambda g, h: g.concat([h, h, g.slice(h, 1, 1, 2)], 1), lambda h: torch.concat([h, h, h[:, 1:2]], 1)),
    "slice": (lambda g, h: g.slice(h, -1, 1, -1, 2), lambda h: h[..., 1:-1:2]),
    "split": (lambda g, h: g.concat(g.split(h, 2, 2)[::-1], 2), lambda h: torch.concat(torch.split(h, 2, 2)[::-1], 2)),
    "split in sections": (
        lambda g, h: g.concat(g.split(h, [1, 2], 1)[::-1], 1),
        lambda h: torch.concat(torch.split(h, [1, 2], 1)[::-1], 1),
    ),
    "permute": (lambda g, h: g.permute(h, (0, 2, 1)), lambda h: torch.permute(h, (0, 2, 1))),
    "pad": (
        lambda g, h: g.pad(h, (2, 1, -1, 3), 0.5),
        lambda h: torch.nn.functional.pad(h, (2, 1, -1, 3), value=0.5),
    ),
    "gather": (
        lambda g, h: g.gather(h, 2, read(g, "places")),
        lambda h: torch.gather(h, 2, places()),
    ),
    "tril": (lambda g, h: g.tril(h, 1), lambda h: torch.tril(h, 1)),
    "triu": (lambda g, h: g.triu(h), torch.triu),
    "where": (
        lambda g, h: g.where(read(g, "condition"), h, g.relu(h)),
        lambda h: torch.where(condition(), h, h.relu()),
    ),
}


def places() -> Tensor:
    return torch.randint(5, (4, 3, 2), generator=torch.Generator().manual_seed(1))


def condition() -> Tensor:
    return torch.rand(4, 1, 5, generator=torch.Generator().manual_seed(2)) > 0.5


def read(g: Graph, name: str) -> Handle:
    """An input that only some methods read."""
    shape, dtype = {"places": ((4, 3, 2), "int64"), "condition": ((4, 1, 5), "bool")}[name]
    return g.input(name, shape, dtype)


def graph(method: Callable[[Graph, Handle], Handle]) -> Graph:
    g = Graph("layout")
    x = g.input("x", (4, 3, 5), "float64")
    h = g.linear(x, 5, bias=False, name="first")
    found = method(g, h)
    g.loss(g.mse_loss(found, g.buffer("zeros", found.shape, "float64")))
    return g


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_what_torch_gives_under_any_plan(name: str) -> None:
    build, judge = METHODS[name]
    g = graph(build)
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = g.state_dict(seed=0)["first.weight"].requires_grad_()
    loss = judge(x @ weight.T).square().mean()
    loss.backward()
    assert weight.grad is not None
    for seed in range(4):
        plan = mp.search(g, mp.Machine.cpu(3), strategy="random", seed=seed)
        with mp.Trainer(g, plan, optimizer=mp.SGD(lr=1.0), seed=0) as trainer:
            given = {"x": x, "places": places(), "condition": condition()}
            named = {tensor.name: given[tensor.name] for tensor in g.inputs}
            assert trainer.step(**named) == pytest.approx(loss.item(), rel=0, abs=TOLERANCE)
            after = trainer.parameters()["first.weight"]
            assert torch.allclose(after, weight.detach() - weight.grad, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (lambda g, h: g.concat([]), "at least one tensor"),
        (lambda g, h: g.concat([h, read(g, "places")], 2), "differ along dimension 2 alone"),
        (lambda g, h: g.slice(h, 1, 2, 2), "expected elements in 2:2 of dimension 1"),
        (lambda g, h: g.slice(h, 3), r"slice.dim: expected a dimension of 'first' \(4, 3, 5\), got 3"),
        (lambda g, h: g.slice(h, 1, step=0), "slice.step"),
        (lambda g, h: g.split(h, [1, 1], 1), "add up to 3"),
        (lambda g, h: g.split(h, 0, 1), "at least 1 element"),
        (lambda g, h: g.permute(h, (0, 1, 1)), "an order of 3 dimensions"),
        (lambda g, h: g.pad(h, (1,)), "two for each dimension"),
        (lambda g, h: g.pad(h, (-3, -3)), "does not fit"),
        (lambda g, h: g.gather(h, 1, read(g, "condition")), "an int64 index that fits"),
        (lambda g, h: g.tril(g.slice(g.handle("x"), 0, 0, 1), 0, "x"), "has that name already|'x'"),
        (lambda g, h: g.where(h, h, h), "where: expected bool and twice one dtype"),
        (lambda g, h: g.where(read(g, "condition"), h, g.slice(h, 1, 0, 2)), "shapes that repeat to one"),
    ],
)
def test_what_does_not_fit_is_refused(method: Callable[[Graph, Handle], object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        graph(method)  # type: ignore[arg-type]
