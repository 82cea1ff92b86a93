"""Batches: what the tensors of one call must be."""

from __future__ import annotations

import pytest
import torch

from maniple.operators.graph.arguments import Arguments
from maniple.operators.graph.batch import BatchForm, check_batch
from maniple.operators.graph.graph import Graph
from maniple.process.error import RequestError


@pytest.fixture
def graph() -> Graph:
    g = Graph("g")
    x, y = g.input("x", (4, 2)), g.input("y", (4,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(x, 3), y))
    return g


X, Y = torch.zeros((3, 2)), torch.zeros(3, dtype=torch.int64)


def test_inputs_are_named_and_counted(graph: Graph) -> None:
    for args, kwargs in [((X, Y), {}), ((X,), {"y": Y}), ((), {"y": Y, "x": X}), (({"y": Y, "x": X},), {})]:
        found, size = check_batch(graph, args, kwargs, ["x", "y"])
        assert size == 3
        assert list(found) == ["x", "y"]
        assert found["x"] is X


BAD = [
    (X.double(), Y),
    (X[0], Y),
    (X[:, :1], Y),
    (X, Y[:2]),
    (X[:0], Y[:0]),
    (torch.zeros((5, 2)), Y.new_zeros(5)),
    (X, 3),
]


@pytest.mark.parametrize("args", [(X, Y), (X, Y)[:1], (X, Y, Y), ({"x": X, "y": Y},), *BAD])
def test_a_batch_of_all_inputs_is_checked_as_one_of_named_inputs_is(graph: Graph, args: tuple[object, ...]) -> None:
    """The short way, of tensors in the graph's order, takes and refuses what the long one does, in the same words."""
    found: list[object] = []
    for names in (None, ["x", "y"]):
        try:
            found.append(BatchForm.of(graph).check(args, {}, names))
        except RequestError as error:
            found.append(str(error))
    assert str(found[0]) == str(found[1])


def test_a_dictionary_is_what_one_argument_holds_or_a_batch_by_names() -> None:
    found = Arguments("g", {"x": ("x.a", "x.b"), "y": ("y",)})
    by_names = {"x": {"a": X, "b": Y}, "y": Y}
    for batch, kwargs in [(({"a": X, "b": Y}, Y), {}), ((by_names,), {}), (({"x.a": X, "x.b": Y, "y": Y},), {})]:
        assert found.by_name(batch, kwargs, ["x.a", "x.b", "y"]) == {"x.a": X, "x.b": Y, "y": Y}
    assert found.by_name(({"a": X, "b": Y},), {}, ["x.a"]) == {"x.a": X, "x.b": Y}
    with pytest.raises(RequestError, match=r"argument 'x' of graph 'g' takes x.a, x.b; got 'x.z'"):
        found.by_name(({"z": X, "y": Y},), {}, ["x.a"])


def test_inputs_that_are_not_needed_are_checked_and_left_out(graph: Graph) -> None:
    found, size = check_batch(graph, (), {"x": X, "y": Y}, ["x"])
    assert (list(found), size) == (["x"], 3)
    with pytest.raises(RequestError, match="'y': expected dtype int64"):
        check_batch(graph, (), {"x": X, "y": Y.float()}, ["x"])


@pytest.mark.parametrize("size", [1, 4])
def test_any_size_up_to_the_batch_is_taken(graph: Graph, size: int) -> None:
    given = {"x": torch.zeros((size, 2)), "y": torch.zeros(size, dtype=torch.int64)}
    assert check_batch(graph, (), given, ["x", "y"])[1] == size


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X, Y, Y), {}, r"expected at most 2 inputs \(x, y\), got 3"),
        ((X,), {}, "input 'y' is missing; expected x, y"),
        ((X,), {"x": X, "y": Y}, "'x' was given twice, by position and by name"),
        ((), {"x": X, "yy": Y}, "graph 'g' has no input 'yy'; did you mean 'y'"),
        ((X.double(), Y), {}, "'x': expected dtype float32, got float64"),
        (([0.0], Y), {}, r"'x': expected a torch\.Tensor, got list"),
        ((torch.zeros((3, 3)), Y), {}, r"'x': expected shape \(n, 2\) with n <= 4, got \(3, 3\)"),
        ((torch.zeros(()), Y), {}, r"'x': expected shape \(n, 2\)"),
        ((X, torch.zeros((3, 1), dtype=torch.int64)), {}, r"'y': expected shape \(n\)"),
        ((X, Y[:2]), {}, "different numbers of samples: 'x' has 3, 'y' has 2"),
        ((X[:0], Y[:0]), {}, "the batch is empty: expected at least 1 sample"),
        ((torch.zeros((5, 2)), torch.zeros(5, dtype=torch.int64)), {}, "the batch has 5 samples, the graph 4"),
    ],
)
def test_what_does_not_fit_is_refused(
    graph: Graph, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        check_batch(graph, args, kwargs, ["x", "y"])
