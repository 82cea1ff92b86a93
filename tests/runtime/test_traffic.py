"""Traffic: the table of the docstring, and collectives that load every link with all that crosses it."""

from __future__ import annotations

from maniple.runtime import traffic
from maniple.runtime.machine import Machine
from maniple.runtime.machine_part import Link, Memory
from maniple.runtime.route import Routes
from maniple.runtime.traffic import ENGINE, Carrier, carriers, traffic_ns

SECOND = 10**9


def star(rates: list[float], latency: float) -> Routes:
    """Memories around a switch; the last memory's links have the last rate."""
    links = []
    for memory, rate in enumerate(rates):
        links += [Link(memory, "s", latency, rate), Link("s", memory, latency, rate)]
    return Routes("star", [Memory(m, m, 0, 1, 1.0) for m in range(len(rates))], ["s"], links, None, None)


def test_the_table_of_the_docstring() -> None:
    duration, busy, held = traffic_ns(star([2.0, 1.0], 1.0), [(0, 1, 4)], 1)
    assert [span for _, span in held] == [2 * SECOND, 4 * SECOND]
    assert duration == 6 * SECOND
    assert busy == ()
    text = traffic.__doc__ or ""
    assert "0-s  ##..        held for 2 s" in text
    assert "s-1  ####        held for 4 s; the transfer ends at 6 s" in text


def test_a_collective_loads_a_shared_link_with_the_sum() -> None:
    pushes = [(source, target, 3) for source in range(3) for target in range(3) if source != target]
    duration, _, held = traffic_ns(star([1.0, 1.0, 1.0], 0.5), pushes, 2)
    assert {span for _, span in held} == {6 * SECOND}
    assert duration == (6 + 2 * 1) * SECOND


def test_a_movement_of_nothing_takes_a_nanosecond() -> None:
    assert traffic_ns(star([1.0, 1.0], 0.0), [(0, 1, 0)], 1)[0] == 1


def test_a_cpu_processor_copies_what_it_sends_and_folds_what_it_gets() -> None:
    """Two memories exchange 4 bytes each and fold 12: processor 5 touches 20 at 2 B/s, the other has engines."""
    carried = (Carrier(5, 2.0), Carrier(ENGINE, 1.0)), {0: 12, 1: 12}
    duration, busy, held = traffic_ns(star([1.0, 1.0], 1.0), [(0, 1, 4), (1, 0, 4)], 1, carried)
    assert busy == ((5, 10 * SECOND),)
    assert {span for _, span in held} == {4 * SECOND}
    assert duration == (10 + 2) * SECOND


def test_gpus_have_engines_and_cpus_do_not() -> None:
    assert {carrier.processor for carrier in carriers(Machine.preset("p100x4"))} == {ENGINE}
    assert [carrier.processor for carrier in carriers(Machine.preset("cpu:2x2"))] == [0, 2]
