"""Hosting: the machine that a plan runs on in a given world."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.runtime.inventory import available_cores
from maniple.runtime.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.world import World

__all__: list[str] = []


def host_machine(world: World, processors: Collection[int] = ()) -> Machine:
    """Describe the machine that a world is, the same value on every rank; every rank must ask.

    A launched world has the processors that it was launched with. A process that was not launched has as many as the
    plan names, sharing the host's cores evenly.

    Args:
        world: the ranks.
        processors: ids that a plan names.
    """
    if world.launched:
        return Machine.detect(world)
    count = max(world.processors, 1 + max(processors, default=0))
    cores = world.cores if count == world.processors else max(1, available_cores() // count)
    return Machine.detect(replace(world, processors=count, cores=cores))
