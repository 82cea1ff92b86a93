"""Layers: those of a recurrent network, and of one without weights."""

from __future__ import annotations

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.strategies.interface.layer import is_unrolled, layers_of
from maniple.zoo.catalogue import entry


def test_the_layers_of_a_recurrent_network() -> None:
    graph = model("rnnlm", batch=4, **entry("rnnlm").reduced)
    layers = {node.name: layer for node, layer in zip(graph.nodes, layers_of(graph), strict=True)}
    named = ("split", "embedding", "lstm.layers.0", "lstm.layers.0_1", "lstm.layers.1", "lstm.layers.1_1", "classifier")
    assert [layers[name] for name in named] == [0, 0, 1, 1, 2, 2, 3]
    assert layers[graph.nodes[-1].name] == max(layers.values()) == 3
    assert is_unrolled(graph)


def test_without_weights_there_is_one_layer() -> None:
    graph = Graph("plain")
    graph.loss(graph.cross_entropy(graph.relu(graph.input("x", (2, 3))), graph.input("y", (2,), dtype="int64")))
    assert set(layers_of(graph)) == {0}
    assert not is_unrolled(graph)


def test_a_table_that_two_kinds_of_operators_share_is_no_recurrence() -> None:
    assert not is_unrolled(model("gpt", batch=4, **entry("gpt").reduced))
