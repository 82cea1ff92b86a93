"""Searches inside the stages of a pipeline: operators change, and stages, their processors and their order do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from test_move import Move, check_ratios

import maniple as mp
from maniple import cli
from maniple.operators.graph import graph_file
from maniple.operators.plan.plan import OperatorPlan, Plan
from maniple.operators.plan.weight_home import default_homes
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.space import OperatorSpace, Space, stage_processors
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.chains import Tempering
from maniple.strategies.soap.evaluation import NS, Evaluation
from maniple.strategies.soap.move import Proposal, follow, migrate, together
from maniple.strategies.soap.seeding import choices_of
from maniple.strategies.soap.soap import Soap, SoapState
from maniple.worker import _problem
from maniple.worker_pool import WorkerPool

pytestmark = pytest.mark.simulator
FOUR = Machine.preset("cpu:2x2")
SLOW = replace(FOUR, processors=tuple(replace(each, flops_per_s=1e6, launch_s=1e-7) for each in FOUR.processors))
MODEL = """
import maniple as mp

def small():
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.linear(x, 3), 3), y))
    return graph
"""
STAGES = (("linear", "relu"), ("linear_1", "cross_entropy"))


def network(width: int = 8) -> mp.Graph:
    g = mp.Graph("two layers")
    x, y = g.input("x", (8, width)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, width)), 6), y))
    return g


def pipeline(graph: mp.Graph, lanes: tuple[tuple[int, int], ...], order: str = "1f1b", parts: int = 2) -> Plan:
    """Two stages; of each the first operator is on the one processor of its lane and the second on the other."""
    on = {name: lane[place] for lane, names in zip(lanes, STAGES, strict=True) for place, name in enumerate(names)}
    operators = tuple(
        (node.name, OperatorPlan(tuple((f.name, 1) for f in graph.bound(node).factors), (on[node.name],)))
        for node in graph.nodes
    )
    plan = Plan(graph.fingerprint(), "by hand", operators, default_homes(graph, operators, FOUR))
    return plan.with_pipeline(STAGES, order=order, micro_batches=parts)


def finished(problem: Problem) -> SoapState:
    """The state when nothing is left to try; chains are short, for the descent decides what these tests ask."""
    strategy = Soap(Tempering((0.0, 0.01), length=8, patience=8), restarts=0)
    state = strategy.init(problem)
    while not strategy.terminate(state):
        state = strategy.step(state)
    return state


def test_a_finished_search_is_locally_optimal_inside_the_stages() -> None:
    """Every choice of every operator on its stage's processors, each simulated from nothing, is no faster."""
    graph = network()
    given = pipeline(graph, ((0, 1), (2, 3)))
    plan = Soap().result(finished(Problem(graph, SLOW, inside=given)))
    plan.validate(graph, SLOW)
    found = Simulation(graph, SLOW, plan).makespan_ns
    assert plan.predicted.step_s == pytest.approx(found * NS)
    assert found < 0.8 * Simulation(graph, SLOW, given).makespan_ns
    assert (plan.stages, plan.pipeline) == (given.stages, given.pipeline)
    assert dict(dict(plan.explanation)[""])["search"] == "locally optimal"
    on, tried = stage_processors(given), 0
    for name, own in zip(*_spaces(graph, given), strict=True):
        assert set(plan.operator(name).processors) <= set(on[name])
        for choice in own.choices():
            operators = tuple((each, own.plan(choice) if each == name else old) for each, old in plan.operators)
            other = replace(plan, operators=operators, weights=default_homes(graph, operators, SLOW))
            assert Simulation(graph, SLOW, other).makespan_ns >= found
            tried += 1
    assert tried > 30


def _spaces(graph: mp.Graph, inside: Plan) -> tuple[tuple[str, ...], tuple[OperatorSpace, ...]]:
    space = Space.of(graph, 4, inside)
    return space.names, space.operators


def test_ranges_are_counted_around_the_processors_of_the_stage() -> None:
    graph = network()
    plan = pipeline(graph, ((3, 1), (2, 0)))
    plan = replace(
        plan, operators=tuple((name, replace(own, recompute=name == "relu")) for name, own in plan.operators)
    )
    for name, own in zip(*_spaces(graph, plan), strict=True):
        assert own.within == ((1, 3) if name in STAGES[0] else (0, 2))
        choices = own.choices()
        plans = {own.plan(choice) for choice in choices}
        assert len(plans) == len(choices) == round(1 / own.probability(choices[0]) * len(own.strides(choices[0].tasks)))
        assert all(own.contains(choice) and own.choice(own.plan(choice)) == choice for choice in choices)
        assert all(set(found.processors) <= set(own.within) for found in plans)
        assert {found.recompute for found in plans} == {name == "relu"}
        assert own.choice(replace(plan.operator(name), processors=(1 if own.within == (0, 2) else 0,))) is None


@pytest.mark.parametrize("move", [follow, together, migrate], ids=lambda move: str(move.__name__))
def test_moves_keep_their_ratios_where_stages_have_other_processors(move: Move) -> None:
    """Stages of three processors and of one: what moves a class or a layer moves of it what is around the same ones."""
    graph = mp.Graph("small")
    x, y = graph.input("x", (2, 2)), graph.input("y", (2,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.linear(x, 2, bias=False), 2, bias=False), y))
    degrees = {node.name: tuple((f.name, 1) for f in graph.bound(node).factors) for node in graph.nodes}
    first, *others = degrees
    on_three = OperatorPlan(degrees[first], (0, 1, 2), 3)
    operators = (first, on_three), *((name, OperatorPlan(degrees[name], (3,))) for name in others)
    plan = Plan(graph.fingerprint(), "by hand", operators, default_homes(graph, operators, FOUR))
    space = Space.of(graph, 4, plan.with_pipeline([[first], others], micro_batches=2))
    chance = Random(11)
    here = tuple(own.draw(chance) for own in space.operators)
    while not any(move(space, here, chance) for _ in range(60)):
        here = tuple(own.draw(chance) for own in space.operators)
    check_ratios(move, space, here, chance)
    for _ in range(2000):
        for operator, choice in (move(space, here, chance) or Proposal(())).changes:
            assert space.operators[operator].contains(choice)


def test_what_is_no_pipeline_is_never_chosen() -> None:
    """Two stages that share a lane: one of them alone cannot leave a processor of it, and the simulation stands."""
    graph = network()
    given = pipeline(graph, ((0, 1), (0, 1)), order="sequential")
    space = Space.of(graph, 4, given)
    simulation = Simulation(graph, SLOW, given)
    choices = choices_of(space, given)
    assert choices is not None
    evaluation = Evaluation(simulation, space, choices)
    before = evaluation.cost
    away = space.operators[1].choice(replace(given.operator("relu"), processors=(0,)))
    assert away is not None
    assert evaluation.evaluate([(1, away)]) == float("inf")
    evaluation.reject()
    assert (evaluation.cost, evaluation.choices) == (before, choices)
    assert evaluation.move_to((choices[0], away, *choices[2:])) == float("inf")
    assert (evaluation.cost, evaluation.plan().operators) == (before, given.operators)
    state, strategy = Soap().init(Problem(graph, SLOW, inside=given)), Soap()
    for _ in range(60):
        state = strategy.step(state)
    plan = strategy.result(state)
    plan.validate(graph, SLOW)
    assert plan.predicted.step_s is not None
    assert plan.predicted.step_s < before


def test_several_processes_search_inside_stages_as_one() -> None:
    """The plan reaches the other process: the bench that it makes stands where this one's stands."""
    graph = network()
    given = Problem(graph, SLOW, seed=3, inside=pipeline(graph, ((0, 1), (2, 3))))
    told = WorkerPool(Soap(), given, 1, None)._describe()  # the message, without a process
    assert told[0] == graph_file.to_json(graph)
    heard = _problem(*told)  # type: ignore[arg-type]
    assert heard.inside == given.inside
    assert Soap().bench(heard).cost == Soap().bench(given).cost


def test_search_takes_a_plan_file_and_keeps_its_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under semantics, with other turns; what the runtime lowers is what the search simulated."""
    saved, found = tmp_path / "given.json", tmp_path / "found.json"
    model = tmp_path / "model.py"
    model.write_text(MODEL, encoding="utf-8")
    asked = ("search", f"{model}:small", "--machine", "cpu:2x2")
    turns = ("--order", "1f1b", "--micro-batches", "2")
    assert _status(*asked, "--strategy", "antichain", *turns, "-o", str(saved)) == 0
    inside = ("--inside", str(saved), "--proposals", "12")
    assert _status(*asked, *inside, "--micro-batches", "4", "-o", str(found)) == 0
    given, plan = Plan.load(saved), Plan.load(found)
    assert (plan.stages, plan.strategy) == (given.stages, "soap")
    assert plan.pipeline == replace(given.pipeline, micro_batches=4)  # type: ignore[type-var]
    assert _status(*asked, *inside, "--strategy", "reinforce") == 2
    assert (
        "strategy 'reinforce' cannot keep the stages of a plan; ask 'soap' or 'hill_climb'" in capsys.readouterr().err
    )
    assert _status(*asked, *inside, "--semantics", "batch_norm=local_stats") == 2
    assert "expected those of the plan inside whose stages is searched, none, got" in capsys.readouterr().err


def _status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


def test_a_plan_that_no_choice_is_like_is_refused_with_its_operator() -> None:
    graph = network()
    given = pipeline(graph, ((0, 1), (2, 3)))
    twice = OperatorPlan((("b", 2), *given.operator("linear").degrees[1:]), (0, 0))
    given = replace(given, operators=(("linear", twice), *given.operators[1:]))
    with pytest.raises(RequestError, match=r"inside: operator linear has b=2 on processors 0 0; .* processors 0 1"):
        mp.search(graph, SLOW, strategy="soap", proposals=5, inside=given)


def test_hill_climbing_stays_inside_too() -> None:
    graph = network()
    given = pipeline(graph, ((0, 1), (2, 3)))
    plan = mp.search(graph, SLOW, strategy="hill_climb", proposals=300, cores=1, inside=given)
    assert plan.stages == given.stages
    assert plan.predicted.step_s is not None
    assert plan.predicted.step_s < Simulation(graph, SLOW, given).makespan_ns * NS
