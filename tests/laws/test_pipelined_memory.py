"""Law 10 and the memory of pipelines: what is accumulated is held once, and 1F1B holds what its order says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from pipelined_networks import PROCESSORS, batches, in_stages, perceptron
from thread_ranks import run_on_worlds

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.operators.plan.plan import OperatorPlan, Plan, WeightPlan
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.machine_memory import planned_bytes
from maniple.runtime.schedule.schedule import Schedule
from maniple.testing import local_worlds

SAMPLES = 16  # of a micro-batch
APART = [[stage] for stage in range(PROCESSORS)]
OPTIMIZER = mp.SGD(lr=0.1)
# Ranks that share memory, ranks on hosts of their own, and devices.
MACHINES = (Machine.preset("cpu:4x1"), Machine.cpu(1, ranks=4, nodes=4), Machine.preset("p100x4"))


def planned(order: str, micro_batches: int, again: tuple[str, ...] = (), batch: int = 0) -> tuple[mp.Graph, Plan]:
    """Four stages with their weights beside them."""
    graph = perceptron(batch or SAMPLES * micro_batches, PROCESSORS)
    plan = in_stages(graph, APART, order, micro_batches, again).plan
    where = dict(plan.operators)
    homes = tuple(
        (
            tensor.name,
            WeightPlan(
                (1,) * len(tensor.shape), where.get(tensor.name.partition(".")[0], where["embedding"]).processors
            ),
        )
        for tensor in graph.lasting
    )
    return graph, replace(plan, weights=homes)


def program(order: str, micro_batches: int, machine: Machine = MACHINES[0], **how: object) -> Program:
    return training_step(*planned(order, micro_batches, **how), machine, OPTIMIZER)  # type: ignore[arg-type]


def schedule(made: Program, machine: Machine = MACHINES[0]) -> Schedule:
    return lower(made, FragmentCache(machine))


def peaks(order: str, micro_batches: int, machine: Machine) -> list[int]:
    """What each memory holds at most, without the labels, which the mean of the loss counts whole."""
    made = program(order, micro_batches, machine)
    found = list(planned_bytes(schedule(made, machine), set(made.homes)))
    found[-1] -= 8 * SAMPLES * micro_batches
    return found


@pytest.mark.parametrize("machine", MACHINES, ids=["one host", "four hosts", "devices"])
def test_what_1f1b_holds_does_not_grow_with_micro_batches(machine: Machine) -> None:
    few, many = peaks("1f1b", 8, machine), peaks("1f1b", 16, machine)
    assert all(more <= 1.05 * less for less, more in zip(few, many, strict=True)), (few, many)
    all_first = peaks("gpipe", 8, machine), peaks("gpipe", 16, machine)
    assert all(more > 1.6 * less for less, more in zip(*all_first, strict=True)), all_first


def test_an_input_arrives_where_and_when_micro_batches_take_it() -> None:
    """Of two stages whose samples two processors share, with a skip of the input to the second.

    micro-batch    0                    1                    2
    processor 0    x#0[0:2] linear      x#1[0:2] linear      x#2[0:1] linear      the first half of each
    processor 2    x#0[0:2] add         x#1[0:2] add         x#2[0:1] add
    """
    g = mp.Graph("skip")
    x, labels = g.input("x", (10, 6)), g.input("labels", (10,), "int64")
    g.loss(g.cross_entropy(g.add(g.linear(x, 6), x), labels))
    shared = {"linear": (0, 1), "add": (2, 3), "cross_entropy": (2, 3)}
    degrees = {node.name: tuple((f.name, 1 + (f.name in "bi0")) for f in g.bound(node).factors) for node in g.nodes}
    assert all(2 in dict(found).values() for found in degrees.values()), degrees
    operators = tuple((name, OperatorPlan(degrees[name], where)) for name, where in shared.items())
    weights = tuple((t.name, WeightPlan((1,) * len(t.shape), (0,))) for t in g.lasting)
    plan = Plan(g.fingerprint(), "by hand", operators, weights)
    plan = plan.with_pipeline([["linear"], ["add", "cross_entropy"]], order="1f1b", micro_batches=3)
    made = training_step(g, plan, MACHINES[0], OPTIMIZER)
    lowered = schedule(made)
    arrivals = {launch.name: launch for launch in made.launches if ".input" in launch.name}
    assert list(arrivals) == ["labels.input", "x.input#0", "x.input#1", "x.input#2"]
    taken = [[str(rect) for rect in arrivals[f"x.input#{part}"].requirements[0].rects] for part in range(3)]
    assert taken == [["[0:2, 0:6]", "[2:4, 0:6]"] * 2, *[["[0:2, 0:6]", "[2:3, 0:6]"] * 2] * 2]
    held: dict[int, int] = {}
    for one in lowered.instances:
        if lowered.regions[one.region].name.startswith("x#"):
            held[one.memory] = held.get(one.memory, 0) + one.rect.volume
    assert held == {0: 6 * 6, 1: 4 * 6, 2: 6 * 6, 3: 4 * 6}  # each sample once: no hull over all micro-batches
    for processor in range(PROCESSORS):
        own = sorted(np.flatnonzero(lowered.processor == processor), key=lowered.order.__getitem__)
        names = [lowered.launches[lowered.launch[row]].name for row in own if lowered.launch[row] >= 0]
        reader = ("linear", "add")[processor // 2]
        for part in range(3):
            before = names[: names.index(f"{reader}.forward#{part}")]
            assert f"x.input#{part}" in before
            assert f"x.input#{part + 2}" not in before  # and no earlier than a micro-batch ahead


@pytest.mark.parametrize("order", ["1f1b", "zb_h1"])
def test_what_is_accumulated_is_held_once(order: str) -> None:
    """A gradient of a weight, or of a loss, has one instance in each memory, however many micro-batches add to it."""
    for micro_batches in (2, 8):
        lowered = schedule(program(order, micro_batches))
        lasting = {tensor.name for tensor in planned(order, 1)[0].lasting}
        held = [lowered.regions[number].name for number in lowered.instances.region.tolist()]
        for name in lasting:
            assert held.count(f"{name}.grad") <= 1 + (name == "table"), name


def test_equal_micro_batches_are_analysed_once() -> None:
    """Launches grow with micro-batches, and what is analysed of them does not."""
    counts = []
    for micro_batches in (1, 2, 8):
        made, cache = program("1f1b", micro_batches, batch=64), FragmentCache(MACHINES[0])
        keys = made.keys(cache.machine)
        counts.append((len(made.launches), len(set(keys)), len(keys)))
    (few, alone, _), *others = counts
    for launches, different, regions in others:
        assert launches > few
        assert regions > alone
        assert different <= alone + 2


@pytest.mark.parametrize("again", [("relu",), ("relu_1", "relu_2"), ("linear_1", "relu_1"), ("embedding", "dropout")])
def test_what_is_kept_falls_by_exactly_what_is_computed_again(again: tuple[str, ...]) -> None:
    graph, _ = planned("1f1b", 4)
    kept, without = (kept_bytes(program("1f1b", 4, again=names)) for names in ((), again))
    fallen = {name: size for name, size in kept.items() if name not in without}
    chosen = {result for name in again for result in graph.node(name).results}
    wanted = {graph.tensors[result].name for result in chosen} & {name.partition("#")[0] for name in kept}
    crossing = {"relu", "relu_1", "relu_2"}  # the next stage reads them in its backward, and was sent them
    assert {name.partition("#")[0] for name in fallen} == wanted - crossing | set()
    assert all(without[name] == size for name, size in kept.items() if name in without)


def kept_bytes(made: Program) -> dict[str, int]:
    """The bytes of what forward writes and backward reads, by region."""
    written, found = set(), {}
    for launch in made.launches:
        part = launch.name.partition("#")[0].rpartition(".")[2]
        for requirement in launch.requirements:
            region = requirement.region
            if part == "forward" and not requirement.privilege.reads:
                written.add(region.id)
            elif part in {"backward", "weight_gradient"} and requirement.privilege.reads and region.id in written:
                found[region.name] = region.bounds.volume * region.itemsize
    return found


@pytest.mark.parametrize(("order", "micro_batches"), [("1f1b", 8), ("gpipe", 5), ("early_backward", 8), ("zb_h2", 7)])
def test_a_schedule_has_as_many_micro_batches_under_way_as_its_order_says(order: str, micro_batches: int) -> None:
    """Without turns whoever is ready first goes first, and 1F1B comes out nearly as all forward first."""
    graph, plan = planned(order, micro_batches)
    made = program(order, micro_batches)
    found = plan.order(graph)
    assert found is not None
    assert under_way(schedule(made)) == list(found.in_flight())
    if order == "1f1b":
        free = replace(made, launches=tuple(replace(launch, in_turn=False) for launch in made.launches))
        assert under_way(schedule(free)) != list(found.in_flight())


def under_way(lowered: Schedule) -> list[int]:
    """The most micro-batches of each processor between their first forward and their last backward."""
    found = []
    for processor in range(PROCESSORS):
        rows = [row for row in range(len(lowered)) if lowered.processor[row] == processor and lowered.launch[row] >= 0]
        spans: dict[str, list[int]] = {}
        for row in sorted(rows, key=lowered.order.__getitem__):
            name, mark, part = lowered.launches[lowered.launch[row]].name.partition("#")
            if mark and not name.endswith(".again"):
                spans.setdefault(part, []).append(int(lowered.order[row]))
        ends = [(min(places), max(places)) for places in spans.values()]
        found.append(max(sum(low <= place <= high for low, high in ends) for place, _ in ends))
    return found


@pytest.mark.parametrize(
    "make",
    [
        partial(local_worlds, 2, shared=True),
        partial(local_worlds, 2, shuffle=3),
        partial(local_worlds, 2, device="null"),
    ],
    ids=["shared memory", "copy engines", "devices"],
)
def test_the_allocator_hands_out_no_more_for_more_micro_batches(make: Callable[[], list[World]]) -> None:
    """Measured: of 1F1B the same for 8 micro-batches and for 24, but for the inputs; not so all forward first."""

    def measured(order: str, micro_batches: int) -> list[int]:
        graph = perceptron(4 * micro_batches, 2)
        plan = in_stages(graph, [[0], [1]], order, micro_batches).plan

        def body(world: World) -> int:
            with mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world) as trainer:
                for batch in batches(graph, 3)[:2]:
                    trainer.step(**batch)
                return sum(memory.allocated_bytes() for memory in RankRuntime.of(world).memories.values())

        inputs = 8 * 4 * micro_batches
        return [size - (2 if rank == 0 else 1) * inputs for rank, size in enumerate(run_on_worlds(make(), body))]

    few, many = measured("1f1b", 8), measured("1f1b", 24)
    assert all(more <= 1.05 * less for less, more in zip(few, many, strict=True)), (few, many)
    few, many = measured("gpipe", 8), measured("gpipe", 24)
    assert all(more >= 1.5 * less for less, more in zip(few, many, strict=True)), (few, many)
