"""The machine of a world: the one that a plan runs on in a given world."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.process.inventory import available_cores
from maniple.runtime.machine.machine import Machine

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from maniple.runtime.control.world import World

__all__: list[str] = []


def host_machine(world: World, processors: Collection[int] = ()) -> Machine:
    """Describe the machine that a world is, the same value on every rank; every rank must ask.

    A launched world has the processors that it was launched with. A process that was not launched has as many as the
    plan names, sharing the host's cores evenly.

    Args:
        world: the ranks.
        processors: ids that a plan names.
    """
    if world.launched:  # with a machine of its own, if it was given one
        return Machine.detect(world)
    count = max(world.processors, 1 + max(processors, default=0))
    cores = world.cores if count == world.processors else max(1, available_cores() // count)
    return Machine.detect(replace(world, processors=count, cores=cores))


def load_given_machine(path: str | os.PathLike[str], ranks: int, processors: int, device: str) -> Machine:
    """Load the machine that a launch is given in place of what would be found, and see that it can be that.

    Args:
        path: its file.
        ranks: how many are launched.
        processors: of each.
        device: what stands behind those of kind `gpu`; `cpu` where there are none.

    Raises:
        RequestError: it has other ranks or processors than are launched.
    """
    machine = Machine.load(path)
    there = 1 + machine.memories[-1].rank
    if there != ranks:
        raise RequestError(
            f"--machine {path}: it has {there} ranks, and {ranks} are launched; launch as many with --nodes and "
            "--ranks-per-node, or give another machine"
        )
    for rank in range(ranks):
        own = machine.memories_of(rank)
        mine = [processor for processor in machine.processors if processor.memory in own]
        if len(mine) != processors:
            raise RequestError(
                f"--machine {path}: rank {rank} has {len(mine)} processors, and --processors says {processors}; every "
                "rank needs as many as that"
            )
        gpus = sum(processor.kind == "gpu" for processor in mine)
        if (device == "cpu" and gpus) or (device != "cpu" and not gpus):
            raise RequestError(
                f"--machine {path}: rank {rank} has {gpus} processors of kind gpu, and --device says {device}; run a "
                "machine of GPUs with --device cuda or null, and one without any with --device cpu"
            )
        if device == "cpu" and len(own) > 1:
            raise RequestError(f"--machine {path}: rank {rank} has {len(own)} memories; its CPUs must share one")
    return machine
