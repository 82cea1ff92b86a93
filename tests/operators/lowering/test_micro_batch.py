"""Micro-batches: what of a graph is cut with them, and where their tiles and regions are."""

from __future__ import annotations

import torch

import maniple as mp
from maniple.operators.lowering.micro_batch import ALL, MicroBatches


def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def network() -> mp.Graph:
    """Operators with samples and without; and one tensor that both kinds read."""
    g = mp.Graph("g")
    x, labels = g.input("x", (7, 2, 3)), g.input("labels", (7,), dtype="int64")
    h = g.linear(x, 4, name="linear")
    flat = g.flatten(h, name="flat")
    normed = g.batch_norm(flat, name="norm")
    scores = g.linear(g.call(twice, normed, name="opaque")[0], 5, name="scores")
    g.loss(g.cross_entropy(g.add(scores, g.linear(flat, 5, name="skip"), name="sum"), labels, name="loss"))
    return g


def test_samples_are_cut_evenly_and_the_largest_parts_come_first() -> None:
    parts = MicroBatches(network(), 3)
    assert parts.ranges == ((0, 3), (3, 5), (5, 7))
    assert parts.local_shape((7, 2, 4), 0) == (3, 2, 4)
    assert [parts.start(7, part) for part in range(3)] == [0, 3, 5]
    assert parts.start(14, 1) == 6  # two elements of each sample


def test_fewer_samples_make_fewer_micro_batches() -> None:
    assert MicroBatches(network().with_batch(2), 3).ranges == ((0, 1), (1, 2))
    alone = MicroBatches(network(), 1)
    assert (alone.count, alone.ranges) == (1, ())
    assert list(alone.parts(network().node("linear"))) == [ALL]


def test_what_counts_samples_and_exchanges_nothing_over_them_is_cut() -> None:
    graph = network()
    parts = MicroBatches(graph, 3)
    cut = {node.name for node in graph.nodes if parts.is_cut(node)}
    assert cut == {
        "linear",
        "flat",
        "skip",
        "sum",
        "loss",
    }  # of what a batch norm gives to `call`, nobody knows samples
    assert parts.within(graph.node("linear"), 1) == ("b", (3, 5))
    assert list(parts.parts(graph.node("norm"))) == [ALL]
    assert not MicroBatches(graph, 3, whole={"skip"}).is_cut(graph.node("skip"))


def test_a_tensor_is_kept_apart_where_all_that_use_it_are_cut() -> None:
    graph = network()
    parts = MicroBatches(graph, 3)
    apart = {tensor.name for tensor in graph.tensors if parts.apart(tensor.id)}
    assert apart == {"x", "linear", "skip", "sum"}  # the batch norm reads "flat" whole, and the loss all labels
    assert (parts.written(graph.tensor("x").id), parts.written(graph.tensor("labels").id)) == (0, None)
    assert parts.written(graph.tensor("flat").id) == 0
    assert parts.written(graph.tensor("loss").id) is None  # every micro-batch adds to it
    assert parts.axis(graph.node("loss"), "operand", 1) == 0
    assert parts.axis(graph.node("loss"), "operand", 2) is None  # the labels again, whole, for their mean


def test_the_samples_of_a_factor_that_has_more_are_cut_together() -> None:
    """Of a product of samples and steps a micro-batch has all steps of its samples."""
    g = mp.Graph("g")
    x = g.input("x", (6, 4, 3))
    g.loss(g.mse_loss(g.linear(x, 3, name="linear"), g.input("y", (6, 4, 3)), name="loss"))
    parts = MicroBatches(g, 4)
    assert parts.within(g.node("linear"), 2) == ("b", (4, 5))
    table = g.bound(g.node("linear")).table((2, *(1,) * (len(g.bound(g.node("linear")).factors) - 1)), ("b", (0, 2)))
    assert [tile.range("b") for tile in table.tiles(range(2))] == [(0, 1), (1, 2)]


def test_a_part_of_a_factor_is_split_where_it_lies_and_its_results_fold() -> None:
    g = mp.Graph("g")
    logits, labels = g.input("logits", (9, 5)), g.input("labels", (9,), dtype="int64")
    g.cross_entropy(logits, labels, name="loss")
    bound = g.bound(g.node("loss"))
    degrees = tuple(2 if factor.name == "b" else 1 for factor in bound.factors)
    table = bound.table(degrees, ("b", (4, 7)))
    assert [tile.range("b") for tile in table.tiles(range(2))] == [(4, 6), (6, 7)]
    assert bound.table((1,) * len(degrees), ("b", (4, 7))).folds == ("+",)
    assert bound.table((1,) * len(degrees), ("b", (0, 9))).folds == (None,)


def test_what_only_the_first_part_of_a_factor_uses_later_micro_batches_do_not() -> None:
    """A bias that joins a contraction, of which a micro-batch would be a part."""
    g = mp.Graph("g")
    g.linear(g.input("x", (4, 6)), 3, name="linear")
    bound = g.bound(g.node("linear"))
    whole = (1,) * len(bound.factors)
    (first,), (later,) = (bound.table(whole, ("k", part)).tiles([0]) for part in ((0, 3), (3, 6)))
    assert first.operand_rects[2] is not None
    assert later.operand_rects[2] is None


def test_what_prepares_an_input_that_is_read_whole_runs_before_all_micro_batches() -> None:
    """Labels of steps in a row, which the mean of the loss counts: a language model's."""
    g = mp.Graph("g")
    tokens, labels = g.input("tokens", (4, 3), dtype="int64"), g.input("labels", (4, 3), dtype="int64")
    scores = g.linear(g.embedding(tokens, 5, 2), 5, name="scores")
    rows = g.permute(scores, (0, 2, 1), name="rows")
    g.loss(g.cross_entropy(rows, g.permute(g.permute(labels, (1, 0)), (1, 0), name="turned"), name="loss"))
    parts = MicroBatches(g, 2)
    whole = {node.name for node in g.nodes if not parts.is_cut(node)}
    assert whole == {"permute", "turned"}
    assert parts.is_cut(g.node("loss"))
    assert not parts.apart(g.tensor("turned").id)
