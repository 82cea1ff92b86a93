"""Programs: their regions, what determines a fragment, and fragments that are shared."""

from __future__ import annotations

import pytest

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.regions.validity import UnwrittenRead
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Point, Requirement

WHOLE = Rect((0,), (6,))
NOTHING = Rect((0,), (0,))
X, Y, Z = (LogicalRegion(number, name, WHOLE, "float32") for number, name in enumerate("xyz"))
MACHINE = Machine.cpu(1, ranks=2)


def write(region: LogicalRegion, processor: int = 0) -> Launch:
    return Launch(f"write {region.name}", (Point((), processor),), (Requirement(region, WRITE_DISCARD, (WHOLE,)),))


def read(*regions: LogicalRegion, processor: int = 1) -> Launch:
    return Launch("read", (Point((), processor),), tuple(Requirement(region, READ, (WHOLE,)) for region in regions))


def test_regions_come_in_the_order_of_their_first_use() -> None:
    assert Program((write(Y), write(X), read(X, Y)), {}).regions() == (Y, X)


def test_a_key_holds_the_uses_of_one_region_without_its_empty_rectangles() -> None:
    points = (Point((0,), 0), Point((1,), 1))
    both = Launch("both", points, (Requirement(X, WRITE_DISCARD, (WHOLE, NOTHING)),))
    (key,) = Program((both,), {}).keys(MACHINE)
    ((privilege, (task,)),) = key.uses
    assert (key.bounds, key.home, privilege) == (WHOLE, (), WRITE_DISCARD)
    assert (task.point, task.color, task.processor, task.memory, task.rect) == (0, (0,), 0, 0, WHOLE)


def test_regions_that_are_used_alike_share_a_fragment() -> None:
    cache = FragmentCache(MACHINE)
    schedule = lower(Program((write(X), write(Y), write(Z, 1), read(X, Y, Z)), {}), cache)
    assert cache.hits == 1
    assert schedule.total_bytes == 48
    again = lower(Program((write(X), write(Y), write(Z, 1), read(X, Y, Z)), {}), cache)
    assert cache.hits == 4
    assert again.text() == schedule.text()


def test_ranks_of_one_process_share_what_one_of_them_has_analysed() -> None:
    program = Program((write(X), read(X)), {})
    (key,) = program.keys(MACHINE)
    one, other, apart = FragmentCache(MACHINE), FragmentCache(MACHINE), FragmentCache(Machine.cpu(1, ranks=2, nodes=1))
    assert one.fragment(key) is other.fragment(key)
    assert one.fragment(key) is not apart.fragment(key)


def test_a_home_is_part_of_the_key() -> None:
    program = Program((read(X),), {0: ((0, (WHOLE,)),)})
    assert lower(program, FragmentCache(MACHINE)).total_bytes == 24
    at_reader = Program((read(X),), {0: ((1, (WHOLE,)),)})
    assert lower(at_reader, FragmentCache(MACHINE)).total_bytes == 0


def test_a_value_comes_from_the_nearest_memory() -> None:
    machine = Machine.cpu(1, ranks=3, nodes=1)
    two_hosts = Machine.cpu(1, ranks=4, nodes=2)
    home = {0: ((0, (WHOLE,)), (2, (WHOLE,)))}
    for made, reader, source in ((two_hosts, 1, 0), (two_hosts, 3, 2), (machine, 1, 0)):
        schedule = lower(Program((read(X, processor=reader),), home), FragmentCache(made))
        (push,) = schedule.transfers(0)
        assert schedule.instances[push.source].memory == source


def test_what_nothing_wrote_is_refused() -> None:
    with pytest.raises(UnwrittenRead):
        lower(Program((read(X),), {}), FragmentCache(MACHINE))
