"""Resources: what one rank runs on, its processors and memories, and what moves tiles between memories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from maniple.process.inventory import available_cores
from maniple.runtime.control.loopback import LoopbackHub
from maniple.runtime.control.waiting import PATIENCE_S
from maniple.runtime.devices.processor import CpuProcessor, GpuProcessor
from maniple.runtime.devices.registry import open_device
from maniple.runtime.execution import activity
from maniple.runtime.execution.device_lane import Milestones
from maniple.runtime.execution.engine import CopyEngine
from maniple.runtime.execution.mailbox import Mailbox
from maniple.runtime.lanes.exchange_binding import ExchangeBinder
from maniple.runtime.lanes.progress import Progress
from maniple.runtime.lanes.whole_exchange import said, whole_exchanges
from maniple.runtime.peers.fabric_group import open_groups
from maniple.runtime.peers.meeting import meet
from maniple.runtime.peers.peer_tiles import PeerTiles
from maniple.runtime.storage.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.control.waiting import Waiting
    from maniple.runtime.control.world import World
    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.machine_part import Processor as MachineProcessor
    from maniple.runtime.program.variant import Variant
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.transports.transport import Transport

__all__: list[str] = []


@final
class Resources:
    """The processors of a rank, its memories, the counters of its lanes, and its ways to other memories.

    Processors and memories are there from the first machine on that has them; the two tables stay the same objects.

    Args:
        world: the rank.
        waiting: is told what fails.
        credit_bytes: bound of the bytes in flight to one other rank.
    """

    def __init__(self, world: World, waiting: Waiting, credit_bytes: int) -> None:
        self.world = world
        self.memories: dict[int, Memory] = {}
        self.processors: dict[int, Processor] = {}
        self.milestones: dict[int, Milestones] = {}
        self.engine: CopyEngine | None = None
        neighbours = 1 if world.shared is None else len(world.shared.ranks)
        roomy = neighbours * world.processors * world.cores <= available_cores()
        patient = world.stepper is None
        self.progress = Progress(world.shared, world.rank, roomy=roomy, patient=patient, check=waiting.give_up)
        self._waiting = waiting
        self._credit_bytes = credit_bytes
        self._mailbox: Mailbox | None = None
        self._met = False
        if world.transport is not None:
            self._start_engine(world.transport)
        activity.attend(self)

    def _start_engine(self, transport: Transport) -> None:
        world = self.world
        self.engine = CopyEngine(transport, self._credit_bytes, self._waiting.fail, world.local, world.stepper)
        self.engine.begin()

    def mover(self, memories: Collection[int]) -> CopyEngine | Mailbox | None:
        """Give what moves tiles of dynamic launches between memories, None where nothing does.

        Args:
            memories: all that take part; if all are of this host's CPUs they share memory, else messages are sent.
        """
        shared = self.world.shared
        if (
            shared is None
            or not shared.has_wakeup_pipes
            or self.world.device != "cpu"
            or not shared.ranks.issuperset(memories)
        ):
            return self.engine
        if self._mailbox is None:
            self._mailbox = Mailbox(shared, self._credit_bytes, self._waiting.fail)
        return self._mailbox

    def start_processors(self, machine: Machine) -> None:
        """Start this rank's processors, and have its memories; a processor whose cores differ is replaced.

        Args:
            machine: whose they are; nothing is under way.

        Raises:
            RequestError: a GPU, and there is none.
        """
        own = machine.memories_of(self.world.rank)
        for processor in machine.processors:
            if processor.memory not in own:
                continue
            held = self.processors.get(processor.id)
            if processor.kind == "gpu":
                if not isinstance(held, GpuProcessor):
                    self._open(processor, machine)
                continue
            if held is not None and held.cores == processor.cores:
                continue
            if held is not None:
                held.close()
            made = CpuProcessor(processor.id, processor.cores, self._waiting.fail, self.world.stepper)
            self.processors[processor.id] = made
            if processor.memory not in self.memories:
                arena = None if self.world.shared is None else self.world.shared.arena
                self.memories[processor.memory] = Memory(processor.memory, arena)
        if len(own) > 1 and self.engine is None:
            self._start_engine(LoopbackHub(1).endpoint(0))
        self._meet(machine)

    def _meet(self, machine: Machine) -> None:
        """Have ranks of one host find out, with their first GPUs, what they can open of each other, once and for all.

        Args:
            machine: which processors are GPUs, on all ranks the same.
        """
        gpus = any(processor.kind == "gpu" for processor in machine.processors)
        if not gpus or self._met or self.engine is None or self.world.size == 1:
            return
        self._met = True
        devices = [memory.device for memory in self.memories.values() if memory.device is not None]
        self.engine.tiles = PeerTiles(meet(self.world, devices))

    def _open(self, processor: MachineProcessor, machine: Machine) -> None:
        """Open the device behind a processor, and its memory."""
        hosts = self.world.hosts
        gpus = [other.id for other in machine.processors if other.kind == "gpu"]
        near = [other for other in gpus if hosts[machine.rank_of(other)] == hosts[self.world.rank]]
        local = near.index(processor.id)
        device = open_device(self.world.device, local, machine.memories[processor.memory].capacity_bytes)
        self.processors[processor.id] = GpuProcessor(processor.id, device, self._waiting.fail)
        self.memories[processor.memory] = Memory(processor.memory, None, device)
        self.milestones[processor.id] = Milestones(self._waiting.give_up, PATIENCE_S)
        if self.world.transport is not None and self.world.transport.fabric is not None:
            self.world.transport.fabric.device = device.torch_device

    def exchanges(self, schedule: Schedule, near: Collection[int]) -> tuple[Schedule, ExchangeBinder | None]:
        """Have the transport's fabric, if it has one, make what it can of a schedule; every rank must ask.

        Args:
            schedule: what runs, or what this rank lists of it.
            near: the memories of this host, where such share memory.

        Returns:
            The schedule, with plans that say what the fabric makes; and what binds that.
        """
        transport = self.world.transport
        if transport is None or transport.fabric is None:
            return schedule, None
        wholes = whole_exchanges(schedule, transport.fabric, near)
        ranks = [memory.rank for memory in schedule.machine.memories]
        groups = {tuple([ranks[memory] for memory in group]) for whole in wholes.values() for group in whole.groups}
        open_groups(self.world, transport.fabric, [group for group in groups if self.world.rank in group])
        plans = said(schedule, wholes, transport.fabric.name)
        return replace(schedule, plans=plans), ExchangeBinder(wholes, transport.fabric)

    def runs(self, variant: Variant) -> bool:
        """Whether a variant runs on every processor of its kind here."""
        return variant.kind != "numba.cuda" or all(processor.compiles for processor in self.processors.values())

    def binding(self, processor: int) -> AbstractContextManager[object]:
        """Bind bodies for a processor of this rank inside."""
        return self.processors[processor].binding()

    def kept_bytes(self) -> int:
        """Count the bytes of storage that lasts, in all memories of this rank."""
        return sum(memory.kept_bytes() for memory in self.memories.values())

    def fill(self, region: LogicalRegion, value: float) -> None:
        """Give instances of a region that are made here from now on a value, of all elements."""
        for memory in self.memories.values():
            memory.fill(region, value)

    def help(self) -> None:
        """Do on this thread, which waits, what the processors have not begun and any thread may do."""
        for processor in self.processors.values():
            processor.help()

    def close_ways(self) -> None:
        """End the threads that move tiles."""
        for way in (self.engine, self._mailbox):
            if way is not None:
                way.close()

    def close(self) -> None:
        """End all threads; what is under way is dropped."""
        for processor in self.processors.values():
            processor.close()
        self.processors.clear()
        self.close_ways()
        if self.engine is not None:
            self.engine.tiles.close()
