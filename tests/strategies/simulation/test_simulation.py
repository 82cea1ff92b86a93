"""Simulations against the lowering that the runtime uses: the same rows, bytes, memory and times, after any change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from lowered_step import assert_as_lowered, drawn, expanded, lowered, planned
from naive_order import in_order
from naive_plan import planned_price

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.step_program import Program
from maniple.operators.plan.weight_home import default_homes
from maniple.process.error import RequestError
from maniple.regions import movement_plan, privilege
from maniple.regions.columns import merging
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.history import ELEMENTS
from maniple.regions.columns.validity import READ, READ_WRITE, REDUCE, WRITE_DISCARD
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.fragment import NODE, SPACE, Fragment, FragmentKey, HostDistance
from maniple.runtime.analysis.move_table import tabulate
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse_by_use
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Requirement
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.order import first_come
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.traffic import price
from maniple.strategies.simulation.region_cache import NOWHERE, RegionCache, RegionRows, Shapes, Use, boxes_of
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator
SHAPES = Shapes()
PRIVILEGES = {
    READ: privilege.READ,
    READ_WRITE: privilege.READ_WRITE,
    WRITE_DISCARD: privilege.WRITE_DISCARD,
    REDUCE: privilege.reduce("+"),
}


SMALL: tuple[tuple[str, int, dict[str, int]], ...] = (
    ("resnet18", 4, {"image": 32, "classes": 10, "shrink": 32}),  # composites: batch normalization
    ("gpt", 4, {"words": 50, "steps": 8, "width": 16, "heads": 2, "layers": 1}),  # random numbers, shared weights
    ("transformer", 4, {"words": 40, "steps": 6, "width": 16, "heads": 2, "inner": 16, "layers": 1}),
    ("nmt", 4, {"words": 40, "width": 8, "layers": 1, "steps": 6, "chunk": 2}),
)


@pytest.mark.parametrize(("name", "batch", "sizes"), SMALL, ids=[name for name, _, _ in SMALL])
def test_models_are_simulated_as_they_are_lowered(name: str, batch: int, sizes: dict[str, int]) -> None:
    """Composites that are split and made whole, buffers, random numbers, weights that operators share."""
    graph, machine, chance = model(name, batch=batch, **sizes), Machine.preset("cpu:2x2"), Random(5)
    simulation = Simulation(graph, machine, planned(graph, machine, "random", 1))
    before = simulation.makespan_ns
    for seed in range(2):
        simulation.propose(dict(chance.sample(planned(graph, machine, "random", 20 + seed).operators, 3)))
        if seed == 0:
            simulation.reject()
            assert simulation.makespan_ns == before
    assert_as_lowered(simulation)


@pytest.mark.parametrize("machine", ["cpu:2x1", "cpu:2x2"])
def test_many_contributions_of_one_memory_are_merged(machine: str) -> None:
    """A weight that is used at 20 places: more of its gradients wait in a memory than the runtime lets wait."""
    assert merging.MOST_PENDING == movement_plan.MOST_PENDING
    graph, world = Graph("shared"), Machine.preset(machine)
    x, y = graph.input("x", (4, 6)), graph.input("y", (4,), dtype="int64")
    weight = graph.parameter("w", (6, 6))
    for _ in range(20):
        x = graph.linear(x, 6, weight=weight, bias=False)
    graph.loss(graph.cross_entropy(x, y))
    for seed in range(3):
        simulation = Simulation(graph, world, planned(graph, world, "random", seed))
        assert_as_lowered(simulation)
    schedule, _ = lowered(graph, world, planned(graph, world, "data_parallel", 0))
    merges = [row for row in range(len(schedule)) if schedule.label(row) == "fold w.grad"]
    assert len(merges) > 1


def test_a_layer_whose_weight_is_not_trained_is_simulated_as_it_is_lowered() -> None:
    """Half of the operations of its backward pass are those of a gradient that nobody wants."""
    graph, machine = Graph("frozen"), Machine.preset("cpu:2x1")
    x, y = graph.input("x", (64, 512)), graph.input("y", (64,), dtype="int64")
    frozen = graph.parameter("w", (512, 512), requires_grad=False)
    h = graph.linear(graph.linear(x, 512), 512, weight=frozen, bias=False)
    graph.loss(graph.cross_entropy(h, y))
    assert_as_lowered(Simulation(graph, machine, planned(graph, machine, "data_parallel", 0)))


@pytest.mark.parametrize("seed", range(12))
def test_every_proposal_gives_what_lowering_the_plan_gives(seed: int) -> None:
    chance, graph, machine, plan = drawn(seed)
    simulation = Simulation(graph, machine, plan)
    assert_as_lowered(simulation)
    for number in range(4):
        before = simulation.makespan_ns
        other = planned(graph, machine, "random", 1000 * seed + number)
        chosen = chance.sample(other.operators, chance.randint(1, 2))
        simulation.propose(dict(chosen))
        assert_as_lowered(simulation)
        if chance.random() < 0.5:
            simulation.accept()
        else:
            simulation.reject()
            assert simulation.makespan_ns == before
            assert_as_lowered(simulation)


@pytest.mark.parametrize("seed", range(400, 408))
def test_weights_live_where_the_runtime_would_keep_them(seed: int) -> None:
    chance, graph, machine, _ = drawn(seed)
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel", 0))
    for number in range(4):
        simulation.propose(dict(planned(graph, machine, "random", 1000 * seed + number).operators))
        plan = simulation.plan
        assert plan.weights == default_homes(graph, plan.operators, machine)
        simulation.accept() if chance.random() < 0.5 else simulation.reject()


@pytest.mark.parametrize("seed", range(300, 306))
def test_a_limit_says_whether_a_proposal_exceeds_it(seed: int) -> None:
    """And no more: what is given up is taken back whole."""
    chance, graph, machine, plan = drawn(seed)
    simulation = Simulation(graph, machine, plan)
    for number in range(6):
        before = simulation.makespan_ns
        changes = dict(chance.sample(planned(graph, machine, "random", 1000 * seed + number).operators, 2))
        makespan = simulation.propose(changes)
        simulation.reject()
        limit = int(makespan * chance.choice((0.3, 0.7, 0.99, 1.0, 1.2)))
        found = simulation.propose(changes, limit_ns=limit)
        assert limit < found <= makespan if makespan > limit else found == makespan
        if makespan > limit:
            with pytest.raises(RequestError, match="given up at its limit"):
                simulation.accept()
        simulation.reject()
        assert simulation.makespan_ns == before
        assert simulation.propose(changes) == makespan
        simulation.accept()
    assert_as_lowered(simulation)


def test_caches_keep_so_much_and_no_more() -> None:
    """What was found longest ago goes, and is analysed again when it is needed."""
    _, graph, machine, plan = drawn(4)
    cache = RegionCache(machine, kept=3)
    simulation = Simulation(graph, machine, plan, cache=cache)
    assert len(cache._found) == 3
    assert simulation.makespan_ns == Simulation(graph, machine, plan).makespan_ns
    shapes, points = Shapes(kept=1), np.arange(1)
    box = boxes_of([(0, Rect((0,), (4,)))])
    first = shapes.shape(READ, points, points, box)
    assert shapes.shape(READ, points, points, box) is first
    other = shapes.shape(REDUCE, points, points, box)
    again = shapes.shape(READ, points, points, box)
    assert len({first.number, other.number, again.number}) == 3


def placed(launch: Launch, requirement: Requirement) -> Use:
    """A use as arrays."""
    points = [point for point, rect in enumerate(requirement.rects) if rect.volume]
    numbers: dict[tuple[int, ...], int] = {}
    colors = [numbers.setdefault(launch.points[point].color, len(numbers)) for point in points]
    boxes = boxes_of((0, rect) for point in points for rect in requirement.rects[point].rects)
    asked = requirement.privilege
    access = REDUCE if asked.reduces else READ if not asked.writes else WRITE_DISCARD
    access = READ_WRITE if asked.reads and asked.writes else access
    shape = SHAPES.shape(access, np.asarray(points, dtype=np.int64), np.asarray(colors, dtype=np.int64), boxes)
    processors = np.asarray([launch.points[point].processor for point in points], dtype=np.int64)
    return Use(shape, processors, (shape.number, processors.tobytes()))


def assert_region_as_analysed(
    machine: Machine, cache: RegionCache, program: Program, number: int, fragment: Fragment
) -> None:
    region = program.regions()[number]
    uses = [
        placed(launch, requirement)
        for launch in program.launches
        for requirement in launch.requirements
        if requirement.region is region
    ]
    home = boxes_of((memory, rect) for memory, rects in program.homes.get(region.id, ()) for rect in rects)
    rows = cache.rows((region.bounds.hi, region.itemsize), home, uses)
    assert_as_analysed(rows, fragment)
    assert_as_charged(rows, machine, region, fragment)


def assert_as_analysed(rows: RegionRows, fragment: Fragment) -> None:
    columns = (fragment.serves, fragment.kinds, fragment.processors)
    assert rows.moves[:, :3].tolist() == np.column_stack(columns).tolist()
    volumes = fragment.volumes
    folded = np.bincount(fragment.accesses[:, NODE], volumes[fragment.accesses[:, SPACE]], len(fragment.kinds))
    expected = np.where(fragment.kinds == RowKind.FOLD, folded, fragment.elements)
    assert rows.moves[:, ELEMENTS].tolist() == expected.tolist()
    assert rows.tasks.tolist() == fragment.tasks[:, :2].tolist()
    found = {(first, second) for first, second in rows.edges.tolist() if first != second}
    assert found == {(first, second) for first, second in fragment.edges.tolist()}


def assert_as_charged(rows: RegionRows, machine: Machine, region: LogicalRegion, fragment: Fragment) -> None:
    """Every movement takes as long, and holds every lane as long, as in the schedule that the runtime would run."""
    moves, members = tabulate(fragment, region.bounds, region.itemsize, Network.of(machine).line)
    prices = price(Network.of(machine), region.itemsize, moves, members)
    held = np.split(rows.held[:, :2], np.cumsum(rows.columns[:, 2]))
    assert rows.columns[:, 1].tolist() == prices.durations.tolist()
    assert rows.held.tolist() == prices.held.tolist()
    for number in range(len(fragment.kinds)):
        expected = planned_price(machine, fragment, number, region.bounds, region.itemsize)
        assert (rows.columns[number, 1], [tuple(hold) for hold in held[number].tolist()]) == expected


@pytest.mark.parametrize("seed", range(200, 212))
def test_compiled_analysis_finds_what_the_runtime_finds(seed: int) -> None:
    """The same movements in the same order, and the same dependences: launches that come one by one are oracles."""
    _, graph, machine, plan = drawn(seed)
    program = expanded(graph, machine, plan)
    cache, near = RegionCache(machine), HostDistance.of(machine)
    for number, key in enumerate(program.keys(machine)):
        assert_region_as_analysed(machine, cache, program, number, analyse_by_use(key, near))


def tiles(chance: Random, bounds: tuple[int, ...]) -> list[Rect]:
    """A region cut at random places, the same ones along an axis."""
    cuts = [sorted({0, extent, *chance.sample(range(extent), chance.randint(0, 3))}) for extent in bounds]
    return [
        Rect(tuple(low for low, _ in sides), tuple(high for _, high in sides))
        for sides in product(*(list(pairwise(axis)) for axis in cuts))
    ]


def random_uses(chance: Random, bounds: tuple[int, ...], machine: Machine) -> Iterator[tuple[int, list[Rect], Column]]:
    """Uses that a program may make of a region: those that write have tiles, those that read or reduce may overlap."""
    for number in range(chance.randint(2, 24)):
        access = (
            chance.choice([READ, READ, READ_WRITE, WRITE_DISCARD, REDUCE, REDUCE, REDUCE]) if number else WRITE_DISCARD
        )
        rects = tiles(chance, bounds)
        if access in (READ, REDUCE):
            rects = [chance.choice(rects + tiles(chance, bounds)) for _ in range(chance.randint(1, 8))]
        width = chance.randint(1, len(machine.processors))
        where = [chance.randrange(width) for _ in rects]
        yield access, rects, np.asarray(where, dtype=np.int64)


def drawn_region(chance: Random, machine: Machine) -> tuple[RegionRows, LogicalRegion, Fragment]:
    """A random region as the simulator and as the runtime analyse it."""
    bounds = tuple(chance.randint(4, 9) for _ in range(chance.randint(1, 3)))
    uses, key = [], []
    for access, rects, processors in random_uses(chance, bounds, machine):
        points = np.arange(len(rects))
        shape = SHAPES.shape(access, points, points, boxes_of((0, rect) for rect in rects))
        uses.append(Use(shape, processors, (shape.number, processors.tobytes())))
        tasks = enumerate(zip(rects, processors.tolist(), strict=True))
        memories = [processor.memory for processor in machine.processors]
        placed = [PlacedUse(point, (point,), by, memories[by], rect) for point, (rect, by) in tasks]
        key.append((PRIVILEGES[access], tuple(placed)))
    region = LogicalRegion(0, "drawn", Rect.of_shape(bounds), chance.choice(["int8", "float32", "int64"]))
    fragment = analyse_by_use(FragmentKey(region.bounds, (), tuple(key)), HostDistance.of(machine))
    return RegionCache(machine).rows((bounds, region.itemsize), NOWHERE, uses), region, fragment


OTHER_BOXES = pytest.mark.xfail(
    strict=True, reason="cells in the form of an L are other boxes than the runtime's, so others fold some of them"
)


@pytest.mark.parametrize("seed", [*range(13), pytest.param(13, marks=OTHER_BOXES), *range(14, 60)])
def test_random_regions_are_analysed_as_the_runtime_does(seed: int) -> None:
    """Boxes that overlap, contributions that are merged, grids of several axes: plans have few of these."""
    chance = Random(seed)
    machine = Machine.preset(chance.choice(["p100x4", "k80x8", "cpu:2x3"]))
    rows, _, fragment = drawn_region(chance, machine)
    assert_as_analysed(rows, fragment)


@pytest.mark.parametrize("seed", range(60, 84))
def test_movements_of_random_regions_are_charged_as_the_runtime_does(seed: int) -> None:
    """Where processors copy, by the lines of strided tiles."""
    chance = Random(seed)
    machine = Machine.preset(chance.choice(["cpu:2x1", "cpu:4x1", "cpu:3x2", "p100x4"]))
    rows, region, fragment = drawn_region(chance, machine)
    assert_as_charged(rows, machine, region, fragment)


@pytest.mark.parametrize("seed", range(100, 106))
def test_full_simulations_agree_with_the_delta_simulation(seed: int) -> None:
    _, graph, machine, plan = drawn(seed)
    simulation = Simulation(graph, machine, plan)
    duration, held, successors, lanes = simulation.columns()
    begin, sequence, makespan = first_come(duration, held, successors, lanes)
    assert makespan == simulation.makespan_ns
    (starts, on, spans), (firsts, targets) = held, successors
    bounds = zip(duration.tolist(), pairwise(starts.tolist()), strict=True)
    rows = {
        row: (taken, list(zip(on[first:last].tolist(), spans[first:last].tolist(), strict=True)))
        for row, (taken, (first, last)) in enumerate(bounds)
    }
    pairs = zip(np.repeat(np.arange(len(duration)), np.diff(firsts)).tolist(), targets.tolist(), strict=True)
    again = in_order(sequence.tolist(), rows, pairs)
    assert {row: at + rows[row][0] for row, at in enumerate(begin.tolist())} == again
    assert max(again.values()) == makespan


def test_a_prediction_adds_up() -> None:
    _, graph, machine, plan = drawn(7)
    simulation = Simulation(graph, machine, plan)
    schedule, makespan = lowered(graph, machine, plan)
    found = simulation.predict()
    assert (found.step_ns, found.rows, found.bytes) == (makespan, len(schedule), schedule.total_bytes)
    path = found.critical_path
    assert path[0][1] == 0
    assert path[-1][2] == makespan
    assert dict(found.sources) == {"analytic": len(schedule)}
    events = simulation.timeline().events
    assert max(event.time_ns for event in events) == makespan
    names = {event.name for event in events if event.category != "memory"}
    assert names == {schedule.label(row) for row in range(len(schedule))}


def test_proposals_are_accepted_or_rejected_one_at_a_time() -> None:
    _, graph, machine, plan = drawn(3)
    simulation = Simulation(graph, machine, plan)
    with pytest.raises(RequestError, match="there is no proposal"):
        simulation.accept()
    name, config = plan.operators[0]
    simulation.propose({name: config})
    with pytest.raises(RequestError, match="a proposal is under way"):
        simulation.propose({name: config})
    simulation.reject()


def test_a_proposal_for_an_operator_that_is_not_there() -> None:
    _, graph, machine, plan = drawn(3)
    with pytest.raises(RequestError, match="operator 'conv9'"):
        Simulation(graph, machine, plan).propose({"conv9": plan.operators[0][1]})


def test_simulations_that_share_a_cache_know_whose_use_is_whose() -> None:
    """Of another graph first: uses of equal numbers would be taken for each other's."""
    machine = Machine.preset("p100x4")
    cache = RegionCache(machine)
    for name in ("digits_cnn", "mlp"):
        for batch in (8, 12):
            graph = model(name, batch=batch)
            plan = planned(graph, machine, "random", batch)
            shared, own = Simulation(graph, machine, plan, cache=cache), Simulation(graph, machine, plan)
            assert shared.makespan_ns == own.makespan_ns
            for key, (rows, _) in own.parts()[1].items():
                assert np.array_equal(rows.columns, shared.parts()[1][key][0].columns)
