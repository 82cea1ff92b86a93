"""Traffic: the tables of the docstring, and collectives that load every link with all that crosses it."""

from __future__ import annotations

from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Link, Memory
from maniple.runtime.machine.route import Routes
from maniple.runtime.schedule import traffic
from maniple.runtime.schedule.traffic import ENGINE, LINE, Carrier, carriers, touched_bytes, traffic_ns

SECOND = 10**9


def star(rates: list[float], latency: float) -> Routes:
    """Memories around a switch; the last memory's links have the last rate."""
    links = []
    for memory, rate in enumerate(rates):
        links += [Link(memory, "s", latency, rate), Link("s", memory, latency, rate)]
    return Routes("star", [Memory(m, m, 0, 1, 1.0) for m in range(len(rates))], ["s"], links, None, None)


def test_the_table_of_the_docstring() -> None:
    duration, busy, held = traffic_ns(star([2.0, 1.0], 1.0), [(0, 1, 4, 4)], 1)
    assert [span for _, span in held] == [2 * SECOND, 4 * SECOND]
    assert duration == 6 * SECOND
    assert busy == ()
    text = traffic.__doc__ or ""
    assert "0-s  ##..        held for 2 s" in text
    assert "s-1  ####        held for 4 s; the transfer ends at 6 s" in text


def test_a_collective_loads_a_shared_link_with_the_sum() -> None:
    pushes = [(source, target, 3, 3) for source in range(3) for target in range(3) if source != target]
    duration, _, held = traffic_ns(star([1.0, 1.0, 1.0], 0.5), pushes, 2)
    assert {span for _, span in held} == {6 * SECOND}
    assert duration == (6 + 2 * 1) * SECOND


def test_a_movement_of_nothing_takes_a_nanosecond() -> None:
    assert traffic_ns(star([1.0, 1.0], 0.0), [(0, 1, 0, 0)], 1)[0] == 1


def test_a_cpu_processor_copies_what_it_sends_and_folds_what_it_gets() -> None:
    """Two memories send 4 bytes each, strewn over 16, and fold 12: processor 5 touches 44 at 2 B/s, the other none."""
    carried = (Carrier(5, 2.0), Carrier(ENGINE, 1.0)), {0: 12, 1: 12}
    duration, busy, held = traffic_ns(star([1.0, 1.0], 1.0), [(0, 1, 4, 16), (1, 0, 4, 16)], 1, carried)
    assert busy == ((5, 22 * SECOND),)
    assert {span for _, span in held} == {4 * SECOND}
    assert duration == (22 + 2) * SECOND


def test_gpus_have_engines_and_cpus_do_not() -> None:
    assert {carrier.processor for carrier in carriers(Machine.preset("p100x4"))} == {ENGINE}
    assert [carrier.processor for carrier in carriers(Machine.preset("cpu:2x2"))] == [0, 2]


def test_the_table_of_lines() -> None:
    shown = [Rect((0, 2), (8, 4)), Rect((2, 0), (4, 8)), Rect((0, 0), (8, 8))]
    assert [touched_bytes(tile, Rect((0, 0), (8, 8)), 4) for tile in shown] == [512, 64, 256]
    text = traffic.__doc__ or ""
    assert "a fourth by x (the inner axis)                    8 of 8 bytes   64        512" in text
    assert "a fourth by y                                     1 of 64        64        64" in text
    assert "all                                               1 of 256       256       256" in text


def test_a_tile_of_boxes_touches_a_line_for_each_run_or_all_its_bytes() -> None:
    """Two strips of 8 runs; with a box that continues some of them, and in long runs."""
    bounds, strips = Rect((0, 0), (8, 8)), [Rect((0, 0), (8, 2)), Rect((0, 4), (8, 6))]
    assert touched_bytes(RectSet(strips), bounds, 4) == 16 * LINE
    assert touched_bytes(RectSet([*strips, Rect((2, 6), (4, 8))]), bounds, 4) == 14 * LINE
    assert touched_bytes(RectSet([Rect((0, 0), (4, 8)), Rect((5, 0), (7, 8))]), bounds, 4) == 6 * 8 * 4
    assert touched_bytes(RectSet(), bounds, 4) == 0
