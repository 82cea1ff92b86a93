"""Clock offsets: the table, and skewed clocks on random networks."""

from __future__ import annotations

import threading
from time import perf_counter_ns

from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.control.loopback import ControlHub
from maniple.runtime.observe.clock_offset import Stamp, clock_offsets, offset_bounds


def test_the_bounds_are_those_of_the_table() -> None:
    rounds: list[list[Stamp]] = [[(100, 160), (200, 240)], [(1090, 1150), (1205, 1230)]]
    assert offset_bounds([rounds[0][:1], rounds[1][:1]]) == [(0, 0), (-1050, -930)]
    assert offset_bounds([rounds[0][1:], rounds[1][1:]]) == [(0, 0), (-1030, -965)]
    assert offset_bounds(rounds) == [(0, 0), (-1030, -965)]


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=4), st.data())
def test_the_true_offset_is_within_bounds_no_wider_than_the_shortest_round_trip(
    skews: list[int], data: st.DataObject
) -> None:
    """Rank r's clock shows the true time plus its skew; messages take any time there and back."""
    skews = [0, *skews]
    stamps: list[list[Stamp]] = [[] for _ in skews]
    trips = []
    now = 0
    for _ in range(data.draw(st.integers(1, 5))):
        sent = [now + data.draw(st.integers(0, 1000)) for _ in skews]
        complete = max(sent) + data.draw(st.integers(1, 500))
        got = [complete + data.draw(st.integers(1, 1000)) for _ in skews]
        for rank, skew in enumerate(skews):
            stamps[rank].append((sent[rank] + skew, got[rank] + skew))
        trips.append([max(got[0], got[rank]) - min(sent[0], sent[rank]) for rank in range(len(skews))])
        now = max(got)
    for rank, (least, most) in enumerate(offset_bounds(stamps)):
        assert least <= -skews[rank] <= most
        if rank:
            assert most - least <= min(2 * trip[rank] for trip in trips)


def test_ranks_with_skewed_clocks_agree_on_what_to_add() -> None:
    skews = [0, 5_000_000_000, -7_000_000_000, 5_000_000_000]
    hosts = ("a", "b", "c", "b")
    control = ControlHub(len(skews))
    found: dict[int, list[int]] = {}

    def rank(number: int) -> None:
        def clock() -> int:
            return perf_counter_ns() + skews[number]

        found[number] = clock_offsets(control.endpoint(number), hosts, clock)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(skews))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[0] == found[1] == found[2] == found[3]
    zero, one, two, three = found[0]
    assert zero == 0
    assert one == three  # one host, one clock
    assert abs(one + skews[1]) < 1_000_000_000  # within the round trips, which are far shorter than the skews
    assert abs(two + skews[2]) < 1_000_000_000
