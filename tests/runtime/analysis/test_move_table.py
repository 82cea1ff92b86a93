"""Move tables: fragments of drawn regions, dense and sparse, are priced as the pushes of their movements are."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from listed_pushes import listed
from naive_plan import planned_price

from maniple.regions.columns.history import KIND
from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.fragment import FragmentKey, HostDistance
from maniple.runtime.analysis.move_table import tabulate
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.traffic import price


def tiles(chance: Random, bounds: Rect, parts: int) -> list[IndexSpace]:
    """A region cut along one axis, or dealt out in single columns of it: sparse tiles, where there are few parts."""
    axis = chance.randrange(bounds.ndim)
    low, high = bounds.lo[axis], bounds.hi[axis]
    columns = [
        Rect((*bounds.lo[:axis], at, *bounds.lo[axis + 1 :]), (*bounds.hi[:axis], at + 1, *bounds.hi[axis + 1 :]))
        for at in range(low, high)
    ]
    if chance.random() < 0.5:
        return [RectSet.of(columns[part::parts]) for part in range(parts)]
    cuts = [low + (high - low) * part // parts for part in range(parts + 1)]
    return [RectSet.of(columns[cuts[part] - low : cuts[part + 1] - low]) for part in range(parts)]


def drawn_key(chance: Random, machine: Machine, bounds: Rect) -> FragmentKey:
    """Uses that write, read and reduce tiles, or all of the region by everybody."""
    count = len(machine.processors)
    key = []
    for number in range(chance.randint(2, 8)):
        privilege = chance.choice([READ, READ, READ_WRITE, reduce("+")]) if number else WRITE_DISCARD
        whole = not privilege.writes and chance.random() < 0.5
        spaces = [bounds] * count if whole else tiles(chance, bounds, count)
        first = chance.randrange(count)
        uses = [
            PlacedUse(point, (point,), by, machine.memory_of(by), space)
            for point, space in enumerate(spaces)
            for by in [(first + point) % count]
        ]
        key.append((privilege, tuple(uses)))
    return FragmentKey(bounds, (), tuple(key))


@pytest.mark.parametrize("seed", range(40))
def test_movements_are_priced_as_their_pushes(seed: int) -> None:
    """Regions of up to six axes that begin anywhere."""
    chance = Random(seed)
    machine = Machine.preset(chance.choice(["cpu:2x1", "cpu:3x2", "cpu:4x1", "p100x4", "p100x6"]))
    low = tuple(chance.randint(0, 2) for _ in range(chance.randint(1, 6)))
    bounds = Rect.of_shape([chance.randint(4, 8) if axis < 2 else 2 for axis in range(len(low))]).shift(low)
    fragment, network = analyse(drawn_key(chance, machine, bounds), HostDistance.of(machine)), Network.of(machine)
    itemsize = chance.choice([1, 4, 8])
    moves, members = tabulate(fragment, bounds, itemsize, network.line)
    prices = price(network, itemsize, moves, members)
    holds = np.split(prices.held[:, :2], prices.starts[1:-1])
    direct = listed(fragment, [memory.host for memory in machine.memories])
    for number in range(len(fragment.kinds)):
        found = int(prices.durations[number]), list(map(tuple, holds[number].tolist()))
        assert found == planned_price(machine, direct, number, bounds, itemsize), RowKind(int(moves[number, KIND]))
    assert prices.bytes.tolist() == (fragment.elements * itemsize).tolist()


def test_a_scalar_is_priced() -> None:
    """A region without axes has one element, which lies in one line."""
    machine = Machine.preset("cpu:2x1")
    network, whole = Network.of(machine), Rect((), ())
    key = tuple(
        (privilege, tuple(PlacedUse(0, (), by, by, whole) for by in (at,)))
        for at, privilege in enumerate([WRITE_DISCARD, READ])
    )
    fragment = analyse(FragmentKey(whole, (), key), HostDistance.of(machine))
    assert fragment.kinds.tolist() == [RowKind.COPY]
    prices = price(network, 4, *tabulate(fragment, whole, 4, network.line))
    expected = planned_price(machine, fragment, 0, whole, 4)
    assert (prices.durations.tolist(), list(map(tuple, prices.held[:, :2].tolist()))) == ([expected[0]], expected[1])


def test_a_region_that_nothing_moves_has_empty_tables() -> None:
    fragment = analyse(FragmentKey(Rect((0,), (4,)), (), ()), HostDistance.of(Machine.cpu(1)))
    moves, members = tabulate(fragment, Rect((0,), (4,)), 4, 64)
    assert (moves.shape, members.shape) == ((0, 9), (0, 4))
