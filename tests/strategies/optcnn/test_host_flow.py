"""Flows between hosts: those of all pairs of boxes, to the last bit, and the cuts of which that is said."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.regions.columns.boxes import WIDTH
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.network import Network
from maniple.strategies.frontier.additive_model import additive_model
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.cut_shares import CutTable
from maniple.strategies.optcnn.flow import Flows
from maniple.strategies.optcnn.host_flow import ends_of
from maniple.strategies.simulation.region_cache import boxes_of

pytestmark = pytest.mark.simulator

MACHINES = ("h100x16", "v100x16", "p100x8", "p100x6", "k80x8", "k80x6", "cpu:2x2")
SHAPE = (24, 16, 8)


def by_pairs(machine: mp.Machine) -> Flows:
    """The oracle: flows that know nothing of hosts."""
    flows = Flows(machine)
    flows._ends = np.empty((0, 4), dtype=np.int64), 0.0
    return flows


def grid(chance: Random, processors: int) -> np.ndarray:
    """Boxes of a region on processors: a grid, each part on equally many; now and then with a part too few."""
    degrees = [chance.choice([1, 1, 2, 4, 8] if chance.random() < 0.9 else [3, 6]) for _ in SHAPE]
    parts = [Rect.of_shape(SHAPE)]
    for axis, degree in enumerate(degrees):
        parts = [part for whole in parts for part in whole.split(axis, degree)]
    everyone, each = list(range(processors)), max(1, processors // len(parts))
    if chance.random() < 0.3:
        chance.shuffle(everyone)
    labelled = [
        (everyone[(place * each + copy) % processors], part) for place, part in enumerate(parts) for copy in range(each)
    ]
    if chance.random() < 0.1:
        labelled.pop()
    return boxes_of(labelled)


@settings(max_examples=60)
@given(st.sampled_from(MACHINES), st.integers(0, 2**32 - 1))
def test_flows_by_host_are_those_of_all_pairs(name: str, seed: int) -> None:
    machine, chance = mp.Machine.preset(name), Random(seed)
    tables = [grid(chance, len(machine.processors)) for _ in range(4)]
    found = []
    for flows in (Flows(machine), by_pairs(machine)):
        cuts = [flows.cut(SHAPE, table) for table in tables]
        found.append(flows.times_ns((SHAPE, 4), cuts, cuts))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("name", "known"), [("h100x16", True), ("v100x16", True), ("h100x8", False), ("cpu:2", False)])
def test_machines_of_several_hosts_have_ends(name: str, known: bool) -> None:
    assert bool(len(ends_of(Network.of(mp.Machine.preset(name)).wires)[0])) == known


def test_routes_that_take_unequally_long_have_none() -> None:
    machine = mp.Machine.preset("h100x16")
    first = next(place for place, link in enumerate(machine.links) if "network" in (link.source, link.target))
    links = [replace(link, latency_s=1.0) if place == first else link for place, link in enumerate(machine.links)]
    assert len(ends_of(Network.of(replace(machine, links=tuple(links))).wires)[0]) == 0


def test_covers_are_those_of_the_docstring() -> None:
    table = CutTable(np.array([0, 0, 1, 1]))

    def cover(rows: list[tuple[int, float, float]]) -> tuple[int, int]:
        shares = np.zeros((len(rows), WIDTH))
        shares[:, -5:] = 1.0
        for place, (processor, low, high) in enumerate(rows):
            shares[place, [0, 1, 6]] = processor, low, high
        number = table.number(shares)
        return int(table.columns[3][number]), int(table.columns[4][number])

    quarters = [(place, place / 4, (place + 1) / 4) for place in range(4)]
    assert cover(quarters) == (1, 4)
    assert cover([(place, 0.0, 1.0) for place in range(4)]) == (4, 2)
    halves = [(place, low, low + 0.5) for low, pair in ((0.0, (0, 1)), (0.5, (2, 3))) for place in pair]
    assert cover(halves) == (2, 3)
    assert cover(quarters[:3])[0] == 0  # a quarter is nowhere
    assert cover([*halves, (0, 0.5, 1.0)])[0] == 0  # a half more often than the other
    assert cover([(0, 0.0, 0.5), (1, 0.25, 1.0)])[0] == 0  # a quarter twice
    assert cover([(0, 0.0, 1 / 3), (1, 1 / 3, 2 / 3), (2, 2 / 3, 1.0)])[0] == 0  # no few digits


@pytest.mark.parametrize("name", ["h100x16", "v100x16"])
def test_a_model_is_the_same_with_hosts_and_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions, whose halos are read twice, and layers of samples, features and contractions."""
    graph = mp.Graph("both")
    x, y = graph.input("x", (16, 4, 16, 16)), graph.input("y", (16,), dtype="int64")
    hidden = graph.relu(graph.conv2d(x, out_channels=8, kernel_size=3, padding=1))
    hidden = graph.linear(graph.flatten(graph.max_pool2d(hidden, kernel_size=2)), 32)
    graph.loss(graph.cross_entropy(graph.linear(hidden, 16), y))
    machine = mp.Machine.preset(name)
    space = Space.of(graph, len(machine.processors))
    choices = [full_splits(space, number) for number in range(len(space.names))]
    one = additive_model(Problem(graph, machine), space, choices)[0]
    none = np.empty((0, 4), dtype=np.int64), 0.0
    monkeypatch.setattr("maniple.strategies.optcnn.flow.ends_of", lambda _wires: none)
    other = additive_model(Problem(graph, machine), space, choices)[0]
    for mine, theirs in zip((*one.own, *one.edges.values()), (*other.own, *other.edges.values()), strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])
