"""`maniple.testing`: worlds of one process, and the check that a strategy keeps the laws."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

import maniple as mp
from maniple.operators.plan.plan import Plan
from maniple.process.error import RequestError, RunError
from maniple.runtime.control.world import World
from maniple.strategies.interface.placement import complete, split_sample
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.testing import check_strategy, local_worlds, run_on_worlds

# Worlds


def test_local_worlds_number_their_nodes() -> None:
    worlds = local_worlds(4, nodes=2, processors=3, cores=2)
    assert [(world.rank, world.node, world.ranks_per_node) for world in worlds] == [
        (0, 0, 2),
        (1, 0, 2),
        (2, 1, 2),
        (3, 1, 2),
    ]
    assert [world.place() for world in worlds] == [
        "node 0 (rank 0)",
        "node 0 (rank 1)",
        "node 1 (rank 2)",
        "node 1 (rank 3)",
    ]
    assert {world.hosts for world in worlds} == {("host0", "host0", "host1", "host1")}
    assert [world.transport.rank for world in worlds if world.transport is not None] == [0, 1, 2, 3]


def test_ranks_spread_evenly_over_nodes_or_not_at_all() -> None:
    with pytest.raises(RequestError, match="evenly over 2 nodes, got 3"):
        local_worlds(3, nodes=2)


def test_one_rank_needs_no_transport() -> None:
    (world,) = local_worlds(1)
    assert world.transport is None


def test_a_program_runs_on_every_world() -> None:
    def program(world: World) -> list[bytes]:
        return list(world.control.gather(bytes([world.rank])))

    assert run_on_worlds(local_worlds(3), program) == [[b"\0", b"\1", b"\2"]] * 3


def test_what_one_rank_raises_stops_the_others() -> None:
    def program(world: World) -> object:
        if world.rank == 1:
            raise ZeroDivisionError("one over zero")
        return world.control.gather(b"")

    with pytest.raises(ZeroDivisionError, match="one over zero"):
        run_on_worlds(local_worlds(3), program)


def test_ranks_that_do_not_end_are_named() -> None:
    event = threading.Event()

    def program(world: World) -> object:
        return world.rank == 0 or event.wait(30)

    try:
        with pytest.raises(RunError, match="rank 1 did not end within 0 s"):
            run_on_worlds(local_worlds(2), program, deadline_s=0.2)
    finally:
        event.set()


# Strategies


def network(dtype: str = "float64") -> mp.Graph:
    graph = mp.Graph("network")
    x, y = graph.input("x", (6, 5), dtype), graph.input("y", (6,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 7)), 3), y))
    return graph


class Halves(AbstractDirectStrategy):
    """What data parallelism does."""

    name = "halves"

    def plan(self, problem: Problem) -> Plan:
        operators = tuple(
            (node.name, split_sample(problem.graph, node, problem.machine)) for node in problem.graph.nodes
        )
        return complete(problem, self.name, operators)


class Moody(Halves):
    """Another plan each time."""

    name = "moody"
    moods: Iterator[int] = iter(range(100))

    def plan(self, problem: Problem) -> Plan:
        return replace(super().plan(problem), explanation=(("linear", (("mood", next(self.moods)),)),))


class Abroad(Halves):
    """Names a processor that is not there."""

    name = "abroad"

    def plan(self, problem: Problem) -> Plan:
        found = super().plan(problem)
        name, first = found.operators[0]
        away = replace(first, processors=tuple(processor + 7 for processor in first.processors))
        return replace(found, operators=((name, away), *found.operators[1:]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("machine", [mp.Machine.cpu(2), mp.Machine.cpu(1, ranks=2)], ids=["threads", "ranks"])
@pytest.mark.parametrize("strategy", ["model_parallel", "random", Halves])
def test_a_strategy_that_keeps_the_laws(
    strategy: str | type[AbstractDirectStrategy], machine: mp.Machine, dtype: str
) -> None:
    plan = check_strategy(strategy, network(dtype), machine, seed=3)
    assert plan.strategy == (strategy if isinstance(strategy, str) else "halves")


def test_a_strategy_that_breaks_a_law() -> None:
    with pytest.raises(RunError, match="'moody': expected the same plan of seed 0 each time"):
        check_strategy(Moody, network(), mp.Machine.cpu(2))
    with pytest.raises(RequestError, match="processor 7 does not exist"):
        check_strategy(Abroad, network(), mp.Machine.cpu(2))


def test_losses_that_are_not_those_of_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    step = mp.Trainer.step

    def wrong(trainer: mp.Trainer, **batch: object) -> float:
        return step(trainer, **batch) * (1.0 + 1e-6 * (len(trainer.machine.processors) - 1))  # type: ignore[arg-type]

    monkeypatch.setattr(mp.Trainer, "step", wrong)
    with pytest.raises(RunError, match=r"expected loss .* of one processor in step 0, got"):
        check_strategy(Halves, network(), mp.Machine.cpu(2))
