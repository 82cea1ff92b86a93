"""Expansion: the launches that a graph and a plan come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

import maniple as mp
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.fusion.fused_launch import home_names
from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.operators.lowering.weight import Weight, weights
from maniple.process.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.schedule import RowKind

SGD = mp.SGD(lr=0.1, momentum=0.9)
PLAIN = mp.SGD(lr=0.1)


def network() -> mp.Graph:
    g = mp.Graph("g")
    x, y = g.input("x", (8, 2)), g.input("y", (8,), dtype="int64")
    logits = g.linear(g.relu(g.linear(x, 4)), 3)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g


def expand(
    graph: mp.Graph, machine: mp.Machine, optimizer: mp.SGD = PLAIN, *, whole: bool = False
) -> tuple[Expansion, dict[str, Weight]]:
    """Expand a data-parallel plan.

    Args:
        whole: every processor keeps a copy of every weight, instead of a block of it.
    """
    plan = mp.search(graph, machine)
    if whole:
        processors = tuple(processor.id for processor in machine.processors)
        homes = [
            (name, replace(home, degrees=(1,) * len(home.degrees), processors=processors, replicas=len(processors)))
            for name, home in plan.weights
        ]
        plan = replace(plan, weights=tuple(homes))
        plan.validate(graph, machine)
    table = RegionTable()
    held = weights(graph, plan, machine, optimizer, table)
    return Expansion(graph, plan, machine, held, table), held


def names(program: Program) -> list[str]:
    return [launch.name for launch in program.launches]


def test_a_step_is_inputs_forward_loss_backward_with_updates_as_gradients_are_complete() -> None:
    expansion, _ = expand(network(), mp.Machine.cpu(1))
    assert names(expansion.training_step(PLAIN)) == [
        "x.input",
        "y.input",
        "linear.forward",
        "relu.forward",
        "linear_1.forward",
        "cross_entropy.forward",
        "loss.fetch",
        "cross_entropy.backward",
        "linear_1.backward",
        "linear_1.weight_gradient",
        "linear_1.weight+linear_1.bias.update",
        "relu.backward",
        "linear.weight_gradient",
        "linear.weight+linear.bias.update",
    ]


def test_an_evaluation_computes_what_its_outputs_need_and_no_more() -> None:
    expansion, _ = expand(network(), mp.Machine.cpu(1))
    program = expansion.evaluation()
    assert names(program) == ["x.input", "linear.forward", "relu.forward", "linear_1.forward", "logits.fetch"]
    assert (list(expansion.inputs), list(expansion.results)) == (["x"], ["logits"])


def test_parameters_are_fetched_whole_by_every_memory() -> None:
    machine = mp.Machine.cpu(1, ranks=3)
    expansion, held = expand(network(), machine)
    program = expansion.fetch_weights()
    assert names(program) == [f"{weight.name}.fetch" for weight in held.values()]
    for launch, weight in zip(program.launches, held.values(), strict=True):
        assert [point.processor for point in launch.points] == [0, 1, 2]
        (requirement,) = launch.requirements
        assert requirement.privilege == READ
        assert set(requirement.rects) == {weight.value.bounds}


def test_weights_live_where_the_plan_puts_them_with_their_state() -> None:
    machine = mp.Machine.cpu(2, ranks=2)
    _, held = expand(network(), machine, SGD, whole=True)
    for weight in held.values():
        assert [state.name for state in weight.states] == [f"{weight.name}.{name}" for name in SGD.state_names]
        # Four replicas in two memories are two copies.
        assert [(point.processor, point.replica) for point in weight.points] == [(0, 0), (2, 1)]
        assert weight.home == ((0, (weight.value.bounds,)), (1, (weight.value.bounds,)))


def test_what_lasts_is_at_home_before_and_after_a_step() -> None:
    expansion, held = expand(network(), mp.Machine.cpu(1, ranks=2), SGD)
    program = expansion.training_step(SGD)
    lasting = {region.id: weight.home for weight in held.values() for region in (weight.value, *weight.states)}
    assert program.homes == lasting


def test_gradients_of_a_shared_weight_are_reduced_and_its_update_waits_for_both() -> None:
    g = mp.Graph("shared")
    x, y = g.input("x", (8, 3)), g.input("y", (8,), dtype="int64")
    both = g.add(g.linear(x, 3, name="a"), g.linear(g.relu(x), 3, name="b"))
    g.loss(g.cross_entropy(g.linear(g.add(both, g.relu(both)), 3), y))
    expansion, _ = expand(g, mp.Machine.cpu(1))
    program = expansion.training_step(PLAIN)
    written = {}
    for launch in program.launches:
        for requirement in launch.requirements:
            if requirement.region.name == f"{g.node('add').name}.grad" or ".grad" in requirement.region.name:
                written.setdefault(requirement.region.name, []).append(requirement.privilege)
    several = [privileges for privileges in written.values() if privileges.count(reduce("+")) == 2]
    assert several, written
    for privileges in written.values():
        kinds = [privilege for privilege in privileges if privilege != READ]
        assert kinds in ([WRITE_DISCARD], [reduce("+")], [reduce("+")] * 2), privileges


@pytest.mark.parametrize("whole", [False, True])
def test_data_parallel_gradients_are_summed_where_their_weights_live(whole: bool) -> None:
    """Weights in blocks: gradients are scattered, and values gathered for the next step; whole weights: all-reduced."""
    machine = mp.Machine.cpu(1, ranks=4)
    g = mp.Graph("g")
    x, y = g.input("x", (8, 4)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 4)), 4), y))
    expansion, held = expand(g, machine, whole=whole)
    program = expansion.training_step(PLAIN)
    updates = [launch for launch in program.launches if launch.name.endswith(".update")]
    assert sorted(name for launch in updates for name in home_names(launch)) == sorted(held)
    for launch in updates:
        privileges = [requirement.privilege for requirement in launch.requirements]
        assert privileges == [READ_WRITE, READ] * len(home_names(launch))
    schedule = lower(program, FragmentCache(machine))
    moved = {
        schedule.regions[int(schedule.region[row])].name: RowKind(int(schedule.kind[row]))
        for row in range(len(schedule))
        if schedule.processor[row] < 0
    }
    loss = moved.pop("cross_entropy")
    assert loss == RowKind.ALL_REDUCE
    expected = {
        f"{weight.name}.grad": RowKind.ALL_REDUCE if whole else RowKind.REDUCE_SCATTER for weight in held.values()
    }
    if not whole:
        expected |= {weight.name: RowKind.ALL_GATHER for weight in held.values()}
    assert moved == expected


def test_inputs_are_launched_where_their_readers_are() -> None:
    machine = mp.Machine.cpu(2, ranks=2)
    expansion, _ = expand(network(), machine)
    program = expansion.training_step(PLAIN)
    arrival = program.launches[0]
    assert [(point.processor, point.replica) for point in arrival.points] == [(0, 0), (2, 1)]
    assert arrival.requirements[0].rects == (Rect((0, 0), (4, 2)), Rect((4, 0), (8, 2)))


def test_a_graph_without_a_loss_has_no_step() -> None:
    g = mp.Graph("g")
    g.output("y", g.relu(g.input("x", (4, 2))))
    trained = network()
    expansion, held = expand(trained, mp.Machine.cpu(1))
    with pytest.raises(RequestError, match="graph 'g' has no loss"):
        Expansion(g, expansion.plan, expansion.machine, held, RegionTable()).training_step(PLAIN)
