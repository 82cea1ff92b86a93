"""Flows against the movements that the rules of validity derive, and what a flow is made of."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.regions.columns.history import KIND, USE
from maniple.regions.columns.validity import COPY, READ
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.roofline import Rooflines
from maniple.strategies.interface.equal_split import equal_splits
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.flow import Flows
from maniple.strategies.optcnn.placed_operators import PlacedOperators
from maniple.strategies.simulation.region_cache import RegionCache, RegionRows, Shapes, Use, boxes_of

pytestmark = pytest.mark.simulator


@st.composite
def pairs(draw: st.DrawFn) -> mp.Graph:
    """Two neighbours in front of a loss: dense layers, or convolutions, whose tiles overlap."""
    graph = mp.Graph("pair")
    if draw(st.booleans()):
        x, y = graph.input("x", (8, 4, 8, 8)), graph.input("y", (8,), dtype="int64")
        hidden = graph.conv2d(x, out_channels=4, kernel_size=draw(st.sampled_from([1, 3])), padding=1)
        hidden = graph.conv2d(hidden, out_channels=4, kernel_size=draw(st.sampled_from([1, 3])))
        graph.loss(graph.cross_entropy(graph.linear(graph.flatten(hidden), 4), y))
    else:
        x, y = graph.input("x", (8, 8)), graph.input("y", (8,), dtype="int64")
        graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 8)), 4), y))
    return graph


def without_delay(name: str) -> mp.Machine:
    """A preset whose links have no latency and whose processors fold and copy in no time."""
    machine = mp.Machine.preset(name)
    return replace(
        machine,
        links=tuple(replace(link, latency_s=0.0) for link in machine.links),
        memories=tuple(replace(memory, bandwidth=1e18) for memory in machine.memories),
        processors=tuple(replace(processor, launch_s=1e-15) for processor in machine.processors),
    )


def busiest_ns(rows: RegionRows, processors: int) -> float:
    """What the busiest link carries for each use, in nanoseconds, over all uses."""
    total = 0.0
    uses = np.repeat(rows.moves[:, USE], rows.columns[:, 2])
    for use in np.unique(uses):
        held = rows.held[(uses == use) & (rows.held[:, 0] >= processors)]
        total += float(np.bincount(held[:, 0], held[:, 1]).max()) if len(held) else 0.0
    return total


@settings(max_examples=40)
@given(pairs(), st.sampled_from(["k80x4", "p100x4", "p100x8", "k80x6"]), st.integers(0, 2**32 - 1))
def test_a_flow_is_what_the_rules_of_validity_move(graph: mp.Graph, name: str, seed: int) -> None:
    machine, chance = without_delay(name), Random(seed)
    count = len(machine.processors)
    space = Space.of(graph, count)
    choices = [[Choice(degrees) for degrees in equal_splits(own.factors, count)] for own in space.operators]
    operators, flows = PlacedOperators(Problem(graph, machine), space, choices), Flows(machine)
    one, other = (operators.place(number, chance.choice(choices[number])) for number in (0, 1))
    regions = operators.regions_between(0, 1, (one, other))
    assert [region.uses[0].end[0] for region in regions] == ["value", "gradient"]
    for region in regions:
        kind = region.uses[0].end[0]
        of_writer = flows.find_made_and_read(one.of((kind, "result", 0)))
        of_reader = flows.find_made_and_read(other.of((kind, "operand", 0)))
        made, reads = (of_writer[0], of_reader[1]) if kind == "value" else (of_reader[0], of_writer[1])
        shape = graph.tensors[graph.nodes[0].results[0]].shape
        cuts = [flows.cut(shape, made)], [flows.cut(shape, read) for read in reads]
        time = float(flows.times_ns((shape, 4), *cuts).sum())
        busiest = busiest_ns(region.rows, count)
        if (region.rows.moves[:, KIND] > COPY).any():  # a collective, whose movement plan may load links less
            assert busiest <= time * (1 + 1e-3) + count * count
        else:
            assert time == pytest.approx(busiest, rel=1e-3, abs=count * count)


def test_the_table_of_the_docstring() -> None:
    machine = mp.Machine.preset("cpu:2x1")
    flows = Flows(machine)
    rows = boxes_of((n, Rect((2 * n, 0), (2 * n + 2, 4))) for n in range(2))
    columns = boxes_of((n, Rect((0, 2 * n), (4, 2 * n + 2))) for n in range(2))
    whole = boxes_of([(0, Rect((0, 0), (4, 4)))])
    by_row, by_column, at_once = (flows.cut((4, 4), table) for table in (rows, columns, whole))
    times = flows.times_ns(((4, 4), 4), [by_row, at_once], [by_column, by_row])
    links = [machine.routes.rate(link) for link in machine.routes.route(0, 1)]
    slowest, latency = min(rate[1] for rate in links), sum(rate[0] for rate in links)
    # Copying is the processors' work here: each line that a tile touches is read once and written once.
    line = 2 * 64 / float(Rooflines.of(machine).bandwidth[0])
    assert line < 32 / slowest < 2 * line
    assert times[0, 0] == pytest.approx(1e9 * (2 * line + latency))
    assert times[0, 1] == 0
    assert times[1, 0] == pytest.approx(1e9 * (4 * line + latency))
    assert times[1, 1] == pytest.approx(1e9 * (32 / slowest + latency))


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from([1, 4, 8]),
    st.sampled_from(["cpu:2x1", "k80x2"]),
)
def test_a_flow_from_one_memory_takes_as_long_as_its_copy(
    shape: list[int], axis: int, itemsize: int, name: str
) -> None:
    """Of strided tiles, too: a half of the region by any of its axes goes to another memory."""
    machine, layout = mp.Machine.preset(name), (tuple(shape), itemsize)
    whole = Rect.of_shape(shape)
    held, half = boxes_of([(0, whole)]), boxes_of([(1, whole.split(axis % len(shape), 2)[1])])
    flows, nobody = Flows(machine), np.zeros(1, dtype=np.int64)
    time = flows.times_ns(layout, [flows.cut(layout[0], held)], [flows.cut(layout[0], half)])[0, 0]
    labelled = half.copy()
    labelled[:, 0] = 0
    use = Use(Shapes().shape(READ, nobody, nobody, labelled), nobody + 1, (0, b""))
    rows = RegionCache(machine).rows(layout, held, [use])
    assert rows.columns[:, 1].tolist() == pytest.approx([time], abs=2)


def test_what_several_give_is_added_up_by_who_reads() -> None:
    machine = mp.Machine.preset("cpu:2x1")
    flows = Flows(machine)
    both = boxes_of((n, Rect((0,), (1000,))) for n in range(2))
    one = boxes_of([(0, Rect((0,), (1000,)))])
    cuts = [flows.cut((1000,), table) for table in (both, both[1:])]
    given, alone = flows.times_ns(((1000,), 4), cuts, [flows.cut((1000,), one)])[:, 0]
    launch_ns = 1e9 * machine.processors[0].launch_s
    assert given > alone + launch_ns


def test_regions_that_are_cut_alike_share_a_cut() -> None:
    flows = Flows(mp.Machine.preset("cpu:3x1"))

    def thirds(extent: int) -> list[tuple[int, Rect]]:
        return [(n, Rect((n * extent, 0), ((n + 1) * extent, 7))) for n in range(3)]

    assert flows.cut((3, 7), boxes_of(thirds(1))) == flows.cut((300, 7), boxes_of(thirds(100)))
    assert flows.cut((3, 7), boxes_of(thirds(1))) != flows.cut((6, 7), boxes_of(thirds(1)))


@pytest.mark.parametrize("missing", [0, 1])
def test_what_another_thread_has_written_half_of_is_found_anew(missing: int) -> None:
    flows, layout = Flows(mp.Machine.preset("cpu:2x1")), ((1000,), 4)
    cuts = [flows.cut((1000,), boxes_of([(n, Rect((0,), (1000,)))])) for n in range(2)]
    wanted = flows.times_ns(layout, cuts, cuts)
    for tables in flows._times.values():
        tables[missing][:] = 0.0
    assert np.array_equal(flows.times_ns(layout, cuts, cuts), wanted)
    assert np.isfinite(wanted).all()
