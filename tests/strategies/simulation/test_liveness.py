"""Liveness: what lives when, against the lowered schedule, against every instant, and against what is allocated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.plan.plan import Plan
from maniple.operators.training.descent import SGD
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.memory.memory_plan import ALIGNMENT
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.search.memory_fit import needed_bytes
from maniple.strategies.simulation.allocation import allocated_bytes
from maniple.strategies.simulation.liveness import Liveness
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.timing.tables import DURATION, END, KEY

OPTIMIZER = SGD(lr=0.1, momentum=0.9)


def planned(graph: Graph, machine: Machine, strategy: str, seed: int = 0) -> Plan:
    return STRATEGIES.lookup(strategy)().plan(Problem(graph, machine, seed=seed))


def columns(rows: list[tuple[int, int, int, int]]) -> Liveness:
    """LiveRanges of (memory, begin, nanoseconds, bytes)."""
    table = np.asarray(rows, dtype=np.int64).reshape(-1, 4)
    return Liveness(
        np.arange(len(table)), table[:, 0], table[:, 1], table[:, 1] + table[:, 2], table[:, 3], table[:, 0] < 0
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=12
    )
)
def test_steps_and_peaks_are_those_of_every_instant(rows: list[tuple[int, int, int, int]]) -> None:
    liveness = columns(rows)
    peaks = liveness.peaks(3)
    for memory in range(3):
        at = [
            sum(size for m, begin, long, size in rows if m == memory and begin <= t < begin + long) for t in range(20)
        ]
        times, held = liveness.steps(memory)
        place = np.searchsorted(times, np.arange(20), side="right") - 1
        assert [int(held[p]) if p >= 0 else 0 for p in place] == at
        assert peaks[memory] == max(at)
        when, alive = liveness.at_peak(memory)
        assert sum(size for _, size in alive) == max(at)
        assert when == (at.index(max(at)) if max(at) else 0)


@pytest.mark.simulator
def test_the_table_of_the_docstring() -> None:
    """The first processor makes h and sends it away; the second sends its gradient back, and hears of it no more."""
    graph, machine = Graph("sent"), Machine.preset("p100x2")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    first = graph.relu(graph.linear(x, 4))
    graph.loss(graph.cross_entropy(graph.linear(first, 2), y))
    names = [node.name for node in graph.nodes]
    placed = tuple((node.name, whole(graph, node, int(node.id > 1))) for node in graph.nodes)
    simulation = Simulation(graph, machine, complete(Problem(graph, machine), "manual", placed))
    lives = lived(simulation)
    step = simulation.makespan_ns
    rows = {row.name.partition("[")[0]: row for row in simulation.name_rows()}
    ends = {name: int(simulation.ledger.rows[row.number, END]) for name, row in rows.items()}
    begins = {name: ends[name] - int(simulation.ledger.rows[row.number, DURATION]) for name, row in rows.items()}
    assert names == ["linear", "relu", "linear_1", "cross_entropy"]
    assert lives["linear", 0] == (begins["linear.forward"], max(ends["linear.forward"], ends["relu.forward"]))
    assert lives["relu", 1] == (begins["copy relu"], ends["linear_1.weight_gradient"])
    assert lives["relu.grad", 1] == (begins["linear_1.backward"], step)
    assert lives["linear.weight", 0] == (0, step)


def lived(simulation: Simulation) -> dict[tuple[str, int], tuple[int, int]]:
    """From the simulation: when regions live in memories."""
    liveness, names = simulation.liveness(), simulation.region_names()
    columns = (liveness.regions, liveness.memories, liveness.begins, liveness.ends)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(names[region], memory): (begin, end) for region, memory, begin, end in rows}


def lowered(simulation: Simulation) -> dict[tuple[str, int], tuple[int, int]]:
    """From the schedule of the runtime, with the simulated times: when regions are used in memories, first and last."""
    graph, machine, plan = simulation.graph, simulation.machine, simulation.plan
    program = training_step(graph, plan, machine, OPTIMIZER)
    schedule = lower(program, FragmentCache(machine))
    ledger = simulation.ledger
    rows = ledger.sequence[np.argsort(ledger.rows[ledger.sequence, KEY])]
    ends = ledger.rows[rows, END]
    begins = ends - ledger.rows[rows, DURATION]
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for row in range(len(schedule)):
        for access in schedule.accesses(row):
            instance = schedule.instances[access.instance]
            region = schedule.regions[instance.region]
            key = region.name, instance.memory
            begin, end = found.get(key, (int(begins[row]), 0))
            found[key] = min(begin, int(begins[row])), max(end, int(ends[row]))
            if region.id in program.homes:
                found[key] = 0, simulation.makespan_ns
    return found


@pytest.mark.simulator
@pytest.mark.parametrize("seed", range(6))
def test_where_memory_is_shared_a_region_lives_from_its_first_row_to_its_last(seed: int) -> None:
    graph = model("digits_cnn", batch=12)
    machine = Machine.preset("cpu:2x2")
    machine = replace(machine, hosts=tuple(replace(host, name="here") for host in machine.hosts))
    simulation = Simulation(graph, machine, planned(graph, machine, "random", seed))
    for change in range(3):
        other = planned(graph, machine, "random", 100 * seed + change)
        simulation.propose(dict(other.operators[change : change + 2]))
        found = lived(simulation)
        wanted = lowered(simulation)
        assert found.items() <= wanted.items()
        assert all(names[0] == "clock" for names in wanted.keys() - found.keys())
        liveness = simulation.liveness()
        held = np.bincount(liveness.memories, liveness.bytes, minlength=2)
        assert (simulation.memory_bytes <= held).all()
        assert (held <= simulation.memory_bytes + ALIGNMENT * 2 * len(simulation.ledger.sequence)).all()
        if change % 2:
            simulation.accept()
        else:
            simulation.reject()


MACHINES = ("p100x4", "cpu:2x2", "k80x2", "cpu:2x1", "cpu:4")
PLANS = (("data_parallel", 0), ("model_parallel", 0), ("expert", 0), *(("random", seed) for seed in range(4)))


@pytest.mark.simulator
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(("strategy", "seed"), PLANS)
def test_what_is_needed_bounds_what_is_allocated(name: str, strategy: str, seed: int) -> None:
    """And where a memory has one processor, as much lives at once under a named plan as is allocated, within 10 %."""
    graph, machine = model("digits_cnn", batch=16), Machine.preset(name)
    plan = planned(graph, machine, strategy, seed)
    simulation = Simulation(graph, machine, plan)
    allocated = np.asarray(allocated_bytes(graph, machine, plan, OPTIMIZER))
    assert (np.asarray(needed_bytes(simulation)) >= allocated).all()
    living = simulation.liveness().peaks(len(machine.memories))
    assert (living <= simulation.memory_bytes + ALIGNMENT * 2 * len(simulation.ledger.sequence)).all()
    if strategy != "random" and len(machine.processors) == len(machine.memories):
        assert abs(max(living) - max(allocated)) <= 0.1 * max(allocated)
