"""View groups: which tensors lie in which, and when their operators need no launch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import maniple as mp
from maniple.operators.lowering.expansion import Expansion, training_step
from maniple.operators.lowering.fusion.fused_launch import home_names
from maniple.operators.lowering.view_group import ViewGroup, step_targets, view_groups
from maniple.operators.lowering.weight import weights
from maniple.operators.plan.plan import Plan
from maniple.operators.rules.configuration import OperatorPlan
from maniple.regions.privilege import WRITE_DISCARD, reduce
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.launch import Launch

SGD = mp.SGD(lr=0.1)


class Heads(nn.Module):
    """Attention of two heads of four features, as GPT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Give the loss."""
        samples, places, _ = x.shape
        parts = self.into(x).view(samples, places, 3, 2, 4)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values)
        return ((self.out(mixed.transpose(1, 2).reshape(samples, places, 8)) - y) ** 2).mean()


def heads() -> mp.Graph:
    return mp.from_torch(Heads(), (torch.randn(4, 5, 8), torch.randn(4, 5, 8)))


def groups(graph: mp.Graph) -> list[ViewGroup]:
    return list(view_groups(graph, step_targets(graph, training=True)))


def planned(graph: mp.Graph, machine: mp.Machine, **degrees: dict[str, int]) -> Plan:
    """A plan of one part, but for the operators that degrees are given for."""
    plan = mp.search(graph, machine, strategy="data_parallel")
    found = []
    for name, config in plan.operators:
        split = tuple((factor, degrees.get(name, {}).get(factor, 1)) for factor, _ in config.degrees)
        count = 1
        for _, degree in split:
            count *= degree
        found.append((name, OperatorPlan(split, tuple(n % len(machine.processors) for n in range(count)))))
    return Plan(plan.graph, plan.machine, tuple(found), plan.weights)


def expanded(graph: mp.Graph, plan: Plan, machine: mp.Machine) -> tuple[dict[str, Launch], tuple[str, ...]]:
    """The launches of a step by name, and the operators that have none."""
    table = RegionTable()
    expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, SGD, table), table)
    program = expansion.training_step(SGD)
    return {launch.name: launch for launch in program.launches}, expansion.elided


def attention_of(graph: mp.Graph) -> str:
    return next(node.name for node in graph.nodes if node.operator.name == "scaled_dot_product_attention")


def test_queries_keys_and_values_lie_in_what_the_layer_gives_and_its_result_in_what_the_next_one_reads() -> None:
    graph = heads()
    first, second = groups(graph)
    names = {tensor.id: tensor.name for tensor in graph.tensors}
    assert names[first.root] == "into"
    assert len(first.members) == 9  # and a reshape, a permutation, three slices without and with their axis of one
    assert names[second.root].startswith("reshape")
    assert {names[tensor] for tensor in second.members} >= {attention_of(graph)}


def test_what_is_used_where_it_lies_has_no_task() -> None:
    graph, machine = heads(), mp.Machine.cpu(1)
    launches, elided = expanded(graph, planned(graph, machine), machine)
    assert set(elided) == {node.name for node in graph.nodes if node.operator.name == "aten_linear"} - {"mean", "sub"}
    assert not any(name.rpartition(".")[0] in elided for name in launches)
    found = launches[f"{attention_of(graph)}.forward"]
    assert [(need.region.name, str(need.rects[0])) for need in found.requirements[:3]] == [
        ("into", "[0:4, 0:5, 0:8]"),
        ("into", "[0:4, 0:5, 8:16]"),
        ("into", "[0:4, 0:5, 16:24]"),
    ]
    whole = training_step(graph, planned(graph, machine), machine, SGD, views=False).launches
    fused = sum(len(home_names(launch)) - 1 for launch in launches.values() if home_names(launch))
    assert len(whole) - len(launches) == 2 * len(elided) + fused


def test_gradients_of_parts_that_are_all_of_the_root_are_each_written() -> None:
    graph, machine = heads(), mp.Machine.cpu(1)
    launches, _ = expanded(graph, planned(graph, machine), machine)
    added = [n for n in launches[f"{attention_of(graph)}.backward"].requirements if n.region.name == "into.grad"]
    assert [need.privilege for need in added] == [WRITE_DISCARD] * 3
    assert [str(need.rects[0]) for need in added] == ["[0:4, 0:5, 0:8]", "[0:4, 0:5, 8:16]", "[0:4, 0:5, 16:24]"]


def test_a_split_by_heads_uses_boxes_and_one_by_features_of_values_does_not() -> None:
    graph, machine = heads(), mp.Machine.cpu(2)
    name = attention_of(graph)
    _, elided = expanded(graph, planned(graph, machine, **{name: {"h": 2}}), machine)
    assert len(elided) == 10
    _, elided = expanded(graph, planned(graph, machine, **{name: {"q": 2}}), machine)
    assert len(elided) == 10
    _, elided = expanded(graph, planned(graph, machine, out={"k": 4}), machine)  # four parts of two heads of four
    assert len(elided) == 10
    _, elided = expanded(graph, planned(graph, machine, **{name: {"e": 2}}), machine)
    assert elided == ()


def test_two_readers_of_all_that_a_tensor_has_both_add_to_its_gradient() -> None:
    graph, machine = mp.Graph("twice"), mp.Machine.cpu(1)
    x, y = graph.input("x", (4, 6)), graph.input("y", (4, 12))
    h = graph.linear(x, 12)
    apart = graph.reshape(graph.relu(graph.reshape(h, (4, 3, 4))), (4, 12))
    graph.loss(graph.mse_loss(graph.add(h, apart), y))
    launches, elided = expanded(graph, planned(graph, machine), machine)
    assert len(elided) == 2
    written = [n.privilege for name in ("relu.backward", "add.backward") for n in launches[name].requirements]
    assert written.count(reduce("+")) == 2


def test_a_slice_that_leaves_something_out_keeps_its_task_where_it_has_a_gradient() -> None:
    """Nobody else would make the rest of the gradient zero."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((torch.relu(self.layer(x)[:, :4]) - y) ** 2).mean()

    graph, machine = mp.from_torch(Half(), (torch.randn(4, 6), torch.randn(4, 4))), mp.Machine.cpu(1)
    assert len(groups(graph)) == 1
    _, elided = expanded(graph, planned(graph, machine), machine)
    assert elided == ()


@pytest.mark.parametrize("kind", ["input", "loss"])
def test_what_comes_from_outside_or_goes_there_is_in_no_group(kind: str) -> None:
    graph = mp.Graph("ends")
    x, y = graph.input("x", (4, 6)), graph.input("y", (4, 6))
    h = graph.reshape(x, (4, 2, 3)) if kind == "input" else x
    graph.loss(graph.mse_loss(graph.reshape(graph.linear(graph.reshape(h, (4, 6)), 6), (4, 6)), y))
    found = {tensor for group in groups(graph) for tensor in group.members}
    assert not found & {graph.tensor("x").id, graph.loss_tensor}
