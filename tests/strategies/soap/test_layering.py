"""Layerings: the plan of a recurrent network, the table's blocks, and what a search makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import NS
from maniple.strategies.soap.layering import Layering, layerings, least_loaded
from maniple.strategies.soap.soap import Soap
from maniple.zoo.catalogue import entry


def test_every_layer_is_on_a_block_of_its_own() -> None:
    machine = Machine.preset("k80x8")
    graph = model("rnnlm", batch=4, **entry("rnnlm").reduced)
    plan = Layering(2).plan(Problem(graph, machine))
    plan.validate(graph, machine)
    found = {name: plan.operator(name).processors for name in ("lstm.layers.0", "lstm.layers.1", "classifier")}
    assert set(found.values()) <= {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert len(set(found.values())) == 3
    for layer in (0, 1):
        assert plan.operator(f"lstm.layers.{layer}_1").processors == found[f"lstm.layers.{layer}"]
        assert plan.weight(f"lstm.layers.{layer}.weight_hh_l0").processors == found[f"lstm.layers.{layer}"]


def test_what_neighbours_share() -> None:
    """The tables: samples, or the features of layers that can be cut so; a step of a recurrent layer cannot."""
    machine = Machine.preset("k80x4")
    graph = model("rnnlm", batch=4, **entry("rnnlm").reduced)
    for features, embedding, classifier in ((1, "b", "b"), (2, "d", "n")):
        plan = Layering(2, features).plan(Problem(graph, machine))
        plan.validate(graph, machine)
        found = {name: plan.operator(name) for name in ("embedding", "classifier", "lstm.layers.0", "lstm.layers.1")}
        cuts = [[factor for factor, degree in own.degrees if degree > 1] for own in found.values()]
        assert cuts == [[embedding], [classifier], ["b"], ["b"]]
        assert {own.processors for own in found.values()} == {(0, 1), (2, 3)}
    plan = Layering(4, 2).plan(Problem(graph, Machine.preset("k80x8")))
    own = plan.operator("classifier")
    assert [(factor, degree) for factor, degree in own.degrees if degree > 1] == [("b", 2), ("n", 2)]
    assert len(own.processors) == 4


def test_the_last_layer_on_several_blocks() -> None:
    """The last column of the table: the classifier by feature over all, its losses by class where the classes are."""
    machine = Machine.preset("k80x4")
    graph = model("rnnlm", batch=4, **entry("rnnlm").reduced)
    plan = Layering(2, 2, 4).plan(Problem(graph, machine))
    plan.validate(graph, machine)
    found = {name: plan.operator(name) for name in ("embedding", "classifier", "classifier_1", "cross_entropy_loss")}
    cuts = [[(factor, degree) for factor, degree in own.degrees if degree > 1] for own in found.values()]
    assert cuts == [[("d", 2)], [("n", 4)], [("n", 4)], [("c", 4)]]
    assert found["classifier"].processors == found["cross_entropy_loss"].processors == (0, 1, 2, 3)
    assert plan.operator("lstm.layers.0").processors in {(0, 1), (2, 3)}


def test_losses_cut_by_class_need_no_scores_of_others() -> None:
    """Each processor has the scores of its classes; where losses are cut by sample, scores have to change places."""
    machine = Machine.preset("k80x4")
    graph = model("rnnlm", batch=4, **entry("rnnlm").reduced)
    problem = Problem(graph, machine)
    given = {graph.tensors[node.results[0]].name for node in graph.nodes if node.name.startswith("classifier")}
    # Where the plan allows it they lie as the losses read them: a reshape has no task.
    read = {graph.tensors[node.operands[0] or 0].name for node in graph.nodes if node.name.startswith("cross_entropy")}

    def moved(plan: Plan) -> set[str]:
        spans = Simulation(graph, machine, plan).timeline().spans
        return {span.name.split()[-1] for span in spans if span.category not in {"launch", "task"}}

    plan = Layering(2, 2, 4).plan(problem)
    assert not (given | read) & moved(plan)
    by_sample = dict(DataParallel().plan(problem).operators)
    losses = {name: by_sample[name] for name, _ in plan.operators if name.startswith(("flatten", "cross_entropy"))}
    others = tuple((name, losses.get(name, own)) for name, own in plan.operators)
    assert read <= moved(complete(problem, "by sample", others))


def test_the_blocks_of_the_table() -> None:
    assert least_loaded((0, 40, 40, 20), 2, (1, 1, 1, 1)) == (1, 0, 1, 0)
    assert least_loaded((0, 40, 40, 20), 2, (1, 1, 1, 2)) == (0, 0, 1, 0)


@given(work=st.lists(st.integers(0, 50), max_size=8), blocks=st.integers(1, 4))
def test_no_block_has_much_more_than_the_mean(work: list[int], blocks: int) -> None:
    """Graham's bound: the mean, and a part of the largest."""
    places = least_loaded(work, blocks, [1] * len(work))
    loads = [sum(own for own, place in zip(work, places, strict=True) if place == block) for block in range(blocks)]
    assert sum(loads) == sum(work)
    assert max(loads) <= sum(work) / blocks + (1 - 1 / blocks) * max(work, default=0)


@given(work=st.lists(st.tuples(st.integers(0, 50), st.sampled_from((1, 2, 4))), max_size=8))
def test_wide_layers_go_to_the_group_that_has_the_least_then(work: list[tuple[int, int]]) -> None:
    sizes, widths = [size for size, _ in work], [width for _, width in work]
    places, loads = least_loaded(sizes, 8, widths), [0.0] * 8
    for item in sorted(range(len(work)), key=lambda item: (-sizes[item], item)):
        width = widths[item]
        highest = {first: max(loads[first : first + width]) for first in range(0, 8, width)}
        assert highest[places[item]] == min(highest.values())
        for block in range(places[item], places[item] + width):
            loads[block] += sizes[item] / width
    assert sum(loads) == pytest.approx(sum(sizes))


def test_which_sizes_there_are() -> None:
    recurrent = Problem(model("rnnlm", batch=4, **entry("rnnlm").reduced), Machine.preset("cpu:12"))
    # The last layer on 2 blocks of 2, 2 or 4 of 3, none of 4, for 2 do not divide 3 blocks, or 2 of 6.
    assert len(layerings(recurrent)) == 2 * len([2, 3, 4, 6]) + len([4]) + len([6, 12]) + len([12])
    # A block of 4 has processors of three hosts of 3 each, so features stay whole.
    apart = Problem(recurrent.graph, Machine.cpu(3, ranks=4))
    assert len(layerings(apart)) == len([2, 3, 4, 6]) + len([3, 6]) + len([6, 12]) + len([6, 12])
    plain = Graph("plain")
    plain.loss(plain.cross_entropy(plain.linear(plain.input("x", (2, 3)), 2), plain.input("y", (2,), dtype="int64")))
    assert layerings(Problem(plain, Machine.preset("cpu:12"))) == ()


@pytest.mark.simulator
def test_the_fastest_layering_is_a_seed() -> None:
    machine = Machine.preset("p100x8")
    problem = Problem(model("rnnlm", batch=8, **entry("rnnlm").reduced), machine)
    strategy, state = Soap(share=0), Soap(share=0).init(problem)
    while state.bound_s is None:
        state = strategy.step(state)
    times = [
        Simulation(problem.graph, machine, layering.plan(problem)).makespan_ns * NS for layering in layerings(problem)
    ]
    assert [cost for cost, name, _ in state.waiting if name == Layering.name] == [min(times)]
    assert {*times} <= {cost for cost, _ in state.found.candidates}
    assert state.found.proposals == 3 + len(times)
