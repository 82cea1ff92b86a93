"""Groups of a fabric: who takes part in its calls, known to each other over the control plane before the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.process.error import RunError
from maniple.runtime.transports import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.runtime.control.world import World
    from maniple.runtime.transports.fabric import Fabric

__all__: list[str] = []


def open_groups(world: World, fabric: Fabric, groups: Iterable[tuple[int, ...]]) -> None:
    """Open those of this rank's groups that are not open yet, and meet the other members; every rank must ask.

    Args:
        world: this rank's.
        fabric: its end of the fabric.
        groups: the ranks of each group that it is in.

    Raises:
        RunError: another member did not open one: the ranks do not run the same schedule.
    """
    new = sorted(group for group in set(groups) if not fabric.is_open(group))
    mine = [[list(group), fabric.open(group)] for group in new]
    told: dict[tuple[tuple[int, ...], int], bytes] = {}
    for rank, part in enumerate(record.parts(world.control.gather(record.pack(mine)), "groups of the fabric")):
        for members, address in (item.items(2) for item in part.items()):
            if type(address.value) is not bytes:
                raise RunError(f"{address.place}: expected an address, got {address.value!r}")
            told[members.integers(), rank] = address.value
    for group in new:
        missing = [rank for rank in group if (group, rank) not in told]
        if missing:
            raise RunError(
                f"ranks {', '.join(map(str, group))} were to make exchanges together through {fabric.name}, and rank "
                f"{missing[0]} knows nothing of it: the ranks do not run the same schedule"
            )
        fabric.meet(group, [told[group, rank] for rank in group])
