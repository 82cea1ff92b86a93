"""Clock offsets: how far the ranks' clocks are apart, told from who had what before it can have been sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.runtime.transports import record
from maniple.runtime.transports.message import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.control.control import Control

__all__: list[str] = []

ROUNDS = 8
Stamp = tuple[int, int]
"""When a rank sent its payload of a round, and when it had everybody's: nanoseconds of its own clock."""


def clock_offsets(control: Control, hosts: Sequence[str], clock: Callable[[], int]) -> list[int]:
    """Estimate what to add to each rank's clock to have rank 0's; every rank calls this, and all get the same.

    Args:
        control: the control plane, whose gathers are the round trips.
        hosts: host of each rank; ranks of one host read one clock.
        clock: this rank's, in nanoseconds.
    """
    stamps: list[Stamp] = []
    for _ in range(ROUNDS):
        sent = clock()
        control.gather(b"")
        stamps.append((sent, clock()))
    told = record.parts(control.gather(record.pack(stamps)), "clock stamps")
    rounds = [[_stamp(item) for item in part.items(ROUNDS)] for part in told]
    bounds = offset_bounds(rounds)
    first = hosts.index
    return [
        0 if first(host) == first(hosts[0]) else (bounds[first(host)][0] + bounds[first(host)][1]) // 2
        for host in hosts
    ]


def _stamp(item: record.Field) -> Stamp:
    sent, got = item.integers(least=-MAX_INTEGER, count=2)
    return sent, got


def offset_bounds(stamps: Sequence[Sequence[Stamp]]) -> list[tuple[int, int]]:
    """Bound what must be added to each rank's clock to have rank 0's.

    After Cristian, "Probabilistic clock synchronization" (1989), section 3, where one round trip bounds it. Nobody has
    everybody's payload of a round before everybody sent theirs. So with d the offset of rank r

        sent by 0  <=  got by r + d     and     sent by r + d  <=  got by 0

    and every round bounds d from both sides; what is left of all rounds is at most the shortest round trip.

        round   rank 0 sent, got   rank 1 sent, got      d is at least   at most
        1            100, 160          1090, 1150               -1050      -930
        2            200, 240          1205, 1230               -1030      -965
        both                                                    -1030      -965

    Args:
        stamps: by rank and round.

    Returns:
        The least and the greatest offset that each rank may have; (0, 0) for rank 0.
    """
    found = [(0, 0)]
    for own in stamps[1:]:
        pairs = list(zip(stamps[0], own, strict=True))
        found.append(
            (max(first[0] - then[1] for first, then in pairs), min(first[1] - then[0] for first, then in pairs))
        )
    return found
