"""Poison: what a failure reaches, what heals, and which failure is named."""

from __future__ import annotations

import pytest

from maniple.regions.index_space import RectSet
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Coherence, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.execution.poison import Failure, Poison, may_be_awaited, place_of, reads_poison
from maniple.runtime.schedule.launch import Launch, Point, Requirement

SUM = reduce("+")


def box(lo: int, hi: int) -> Rect:
    return Rect((lo,), (hi,))


X, Y = (LogicalRegion(number, name, box(0, 8), "float32") for number, name in enumerate("xy"))


def use(region: LogicalRegion, privilege: Privilege, *rects: Rect | RectSet) -> Requirement:
    return Requirement(region, privilege, rects)


def launch(name: str, *requirements: Requirement, points: int = 1) -> Launch:
    return Launch(name, tuple(Point((number,), number) for number in range(points)), requirements)


def failure(serial: int, point: int = 0) -> Failure:
    return Failure((serial, 0, (point,), 0), f"launch {serial}", 0)


def shown(poison: Poison) -> dict[str, list[tuple[str, str]]]:
    return {
        "xy"[region]: sorted((str(where), found.text) for where, found in spots)
        for region, spots in sorted(poison.spots.items())
    }


def test_poison_travels_along_data_and_is_healed_by_what_writes_without_reading() -> None:
    bad = launch("bad", use(X, READ_WRITE, box(0, 4)))
    poison, reached = Poison().after(bad, {bad.points[0]: failure(1)})
    assert list(reached) == list(bad.points)
    assert shown(poison) == {"x": [("[0:4]", "launch 1")]}

    add = launch("add", use(X, READ, box(0, 2), box(4, 6)), use(Y, READ_WRITE, box(0, 2), box(4, 6)), points=2)
    poison, reached = poison.after(add, {})
    assert reached == {add.points[0]: failure(1)}
    assert shown(poison) == {"x": [("[0:4]", "launch 1")], "y": [("[0:2]", "launch 1")]}

    poison, reached = poison.after(launch("fill", use(X, WRITE_DISCARD, box(2, 8))), {})
    assert not reached
    assert shown(poison) == {"x": [("[0:2]", "launch 1")], "y": [("[0:2]", "launch 1")]}
    poison, _ = poison.after(launch("fill", use(X, WRITE_DISCARD, box(0, 8))), {})
    assert shown(poison) == {"y": [("[0:2]", "launch 1")]}
    assert not poison.without(1)


def test_without_failures_there_is_nothing() -> None:
    poison, reached = Poison().after(launch("add", use(X, READ, box(0, 8)), use(Y, READ_WRITE, box(0, 8))), {})
    assert not poison
    assert not reached


def test_the_first_cause_is_named() -> None:
    first = launch("first", use(X, READ_WRITE, box(0, 8)))
    poison, _ = Poison().after(first, {first.points[0]: failure(1)})
    second = launch("second", use(Y, READ_WRITE, box(0, 8)))
    poison, _ = poison.after(second, {second.points[0]: failure(2)})
    both = launch("both", use(Y, READ_WRITE, box(0, 4)), use(X, READ, box(0, 4)))
    # It ran elsewhere on what was not written, and raised for that.
    poison, reached = poison.after(both, {both.points[0]: failure(3)})
    assert reached == {both.points[0]: failure(1)}
    assert shown(poison)["y"] == [("[0:4]", "launch 1"), ("[4:8]", "launch 2")]
    assert poison.of(1, box(2, 6)) == (box(2, 4), failure(1))
    assert poison.of(1, box(4, 6)) == (box(4, 6), failure(2))


def test_contributions_keep_what_is_poisoned_as_it_is() -> None:
    bad = launch("bad", use(X, WRITE_DISCARD, box(0, 4)))
    poison, _ = Poison().after(bad, {bad.points[0]: failure(1)})
    fold = launch("fold", use(X, SUM, box(0, 8), box(0, 8)), points=2)
    same, reached = poison.after(fold, {})
    assert (shown(same), reached) == (shown(poison), {})
    poison, _ = poison.after(fold, {fold.points[1]: failure(2, 1)})
    assert shown(poison) == {"x": [("[0:4]", "launch 1"), ("[4:8]", "launch 2")]}


def test_a_replica_that_failed_poisons_what_the_others_wrote() -> None:
    points = Point((0,), 0), Point((0,), 1, 1)
    write = Launch("write", points, (use(X, WRITE_DISCARD, box(0, 8), box(0, 8)),))
    poison, reached = Poison().after(write, {points[1]: failure(1)})
    assert list(reached) == [points[1]]
    assert shown(poison) == {"x": [("[0:8]", "launch 1")]}
    assert place_of(3, 0, points[0]) < place_of(3, 0, points[1]) < place_of(4, 0, points[0])


def test_only_tasks_of_simultaneous_coherence_may_wait_for_each_other() -> None:
    assert may_be_awaited(launch("together", Requirement(X, READ_WRITE, (box(0, 4),), Coherence.SIMULTANEOUS)))
    assert not may_be_awaited(launch("apart", use(X, READ_WRITE, box(0, 4))))


def test_sparse_elements_are_poisoned_and_healed_one_by_one() -> None:
    bad = launch("bad", use(X, READ_WRITE, RectSet((box(0, 1), box(4, 6)))))
    poison, _ = Poison().after(bad, {bad.points[0]: failure(1)})
    assert poison.of(0, box(1, 4)) is None
    poison, _ = poison.after(launch("fill", use(X, WRITE_DISCARD, RectSet((box(0, 1), box(5, 6))))), {})
    assert poison.of(0, box(0, 8)) == (box(4, 5), failure(1))


@pytest.mark.parametrize(("lo", "found"), [(0, True), (4, False)])
def test_a_sequence_is_refused_for_what_it_does_not_write_first(lo: int, found: bool) -> None:
    bad = launch("bad", use(X, READ_WRITE, box(0, 4)))
    poison, _ = Poison().after(bad, {bad.points[0]: failure(1)})
    write, read = launch("write", use(X, WRITE_DISCARD, box(2, 4))), launch("read", use(X, READ, box(lo, 8)))
    refused = reads_poison(poison, [write, read])
    assert (refused is not None) == found
    if refused is not None:
        assert refused == (read, 0, box(0, 2), failure(1))
