"""The machine as planning sees it: hosts, memories, processors and the links between memories.

A rank is one process. Its CPU processors share one memory; each of its GPU processors has one of its own.
The numbers of a machine that nobody has measured are priors (the constants below): good enough to order plans,
not to promise times; calibrating measures them.

    cpu:2x1    host    memory  processor         a rank with two GPUs    host    memory  processor
               node0   0       p0                                        node0   0       p0
               node1   1       p1                                                1       g1
                                                                                 2       g2
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RequestError, RunError
from maniple.process.file_entry import Entry
from maniple.process.inventory import Inventory, announce, take_inventory
from maniple.runtime.devices.registry import DEVICES
from maniple.runtime.machine import machine_file
from maniple.runtime.machine.gpu_machine import Rates, gpu_parts_of
from maniple.runtime.machine.machine_part import Host, Link, Memory, Processor, Rate
from maniple.runtime.machine.preset import GPUS, gpu_parts
from maniple.runtime.machine.route import Routes

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from maniple.runtime.control.world import World

__all__: list[str] = []

CORE_FLOPS_PER_S = 50e9
"""Prior: floating-point operations per second of one core, float32."""
CORE_BANDWIDTH = 10e9
"""Prior: bytes per second that one core reads or writes in main memory."""
WITHIN_HOST = Rate(latency_s=50e-6, bandwidth=2e9)
"""Prior: from one memory to another of the same host."""
BETWEEN_HOSTS = Rate(latency_s=100e-6, bandwidth=1e9)
"""Prior: from one memory to another over a network."""
ASSUMED_MEMORY_BYTES = 8 * 2**30
"""Prior: bytes of memory of a rank of a machine that was not detected."""

_RANK: Callable[[Memory], int] = attrgetter("rank")
_MEMORY: Callable[[Processor], int] = attrgetter("memory")
_PRESET = re.compile(r"cpu:([1-9][0-9]{0,3})(?:x([1-9][0-9]{0,3}))?")


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """What plans are made for: the hosts, memories, processors and links of a whole launched world.

    Args:
        name: what people call it.
        hosts: the nodes, ids 0, 1, ... in order.
        memories: ids 0, 1, ... in order, those of one rank next to each other.
        processors: ids 0, 1, ... in order, those of one memory next to each other.
        links: the links whose speed is known one by one, between memories and switches.
        within_host: rate between two memories of one host that no links join; None: links join all.
        between_hosts: likewise for memories of different hosts.
        switches: names of the switches, which pass on what reaches them.

    Raises:
        RequestError: ids out of order, an unknown memory or host, two equal links, no processor, or a memory that
            cannot be reached.
    """

    name: str
    hosts: tuple[Host, ...]
    memories: tuple[Memory, ...]
    processors: tuple[Processor, ...]
    links: tuple[Link, ...] = ()
    within_host: Rate | None = WITHIN_HOST
    between_hosts: Rate | None = BETWEEN_HOSTS
    switches: tuple[str, ...] = ()
    routes: Routes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        name, hosts, memories, processors, links, within, between, switches = self._parts()
        machine_file.check_parts(name, hosts, memories, processors, links, switches)
        object.__setattr__(self, "routes", Routes(name, memories, switches, links, within, between))

    @classmethod
    def cpu(
        cls,
        processors_per_rank: int,
        ranks: int = 1,
        nodes: int | None = None,
        cores: int = 1,
        *,
        name: str | None = None,
    ) -> Self:
        """A machine of equal CPU processors.

        Args:
            processors_per_rank: processors that share each rank's memory.
            ranks: processes, each with a memory of its own.
            nodes: hosts that the ranks are spread over in blocks; by default each rank is a node.
            cores: cores of each processor.
            name: what to call it; by default the preset's form.

        Raises:
            RequestError: a count below 1, or ranks that do not spread evenly over the nodes.
        """
        nodes = ranks if nodes is None else nodes
        counts = {"processors_per_rank": processors_per_rank, "ranks": ranks, "nodes": nodes, "cores": cores}
        for what, count in counts.items():
            if count < 1:
                raise RequestError(f"machine: {what}: expected at least 1, got {count}")
        if ranks % nodes:
            raise RequestError(f"machine: {ranks} ranks do not spread evenly over {nodes} nodes")
        inventories = [Inventory(f"node{rank * nodes // ranks}", cores, 0, False) for rank in range(ranks)]
        form = f"cpu:{processors_per_rank}" if ranks == 1 else f"cpu:{ranks}x{processors_per_rank}"
        return cls._of_ranks(
            name or form, inventories, [rank * nodes // ranks for rank in range(ranks)], processors_per_rank, cores
        )

    @classmethod
    def preset(cls, name: str) -> Self:
        """A machine by name.

        ``cpu:4`` is one rank of 4 processors, ``cpu:2x1`` 2 ranks (nodes) of 1 processor, ``p100x16`` 16 GPUs, each
        a rank of its own.

        Raises:
            RequestError: there is no such preset.
        """
        parts = gpu_parts(name)
        if parts is not None:
            return cls(*parts)
        match = _PRESET.fullmatch(name)
        if match is None:
            raise RequestError(
                f"machine {name!r}: expected cpu:PROCESSORS (such as cpu:4: one rank of 4 one-core processors), "
                "cpu:RANKSxPROCESSORS (such as cpu:2x1: 2 nodes of one rank with 1 one-core processor each) or "
                f"GPUxCOUNT (such as p100x16; GPU: {', '.join(sorted(GPUS))}); other machines come from a TOML file"
            )
        first, second = match.groups()
        if second is None:
            return cls.cpu(int(first), name=name)
        return cls.cpu(int(second), ranks=int(first), name=name)

    @classmethod
    def detect(cls, world: World | None = None) -> Self:
        """The machine that this program runs on, the same value on every rank.

        In a launched world every rank has the processors that the launcher was asked for. A program that was not
        launched has one processor that owns all cores it may use. Every rank looks at its own host, and the ranks
        exchange what they found. Where the launcher was given a machine, it is that.

        Args:
            world: the world to describe; by default the launched one.
        """
        mine = take_inventory()
        if world is None:
            from maniple.process import environment

            if not environment.is_launched():
                _announce_gpus([mine])
                return cls._of_ranks("detected", [mine], [0], 1, mine.cores)
            from maniple.runtime.control import world as launched

            world = launched.current()
        return cls._of_world(world, mine).capped(world.memory_bytes)

    @classmethod
    def _of_world(cls, world: World, mine: Inventory) -> Self:
        """The machine that a world was given, or what its ranks find, of which this one has found its own."""
        if world.machine is not None:
            return cls._load_given(world, world.machine)
        if world.device != "cpu":
            device = DEVICES.lookup(world.device)
            sizes, names, properties = device.memory_bytes(), device.names(), device.properties()
            mine = replace(mine, gpu_bytes=sizes, gpu_names=names, gpu_properties=properties)
        found = [Inventory.from_bytes(payload) for payload in world.control.gather(mine.to_bytes())]
        if len(found) != world.size:
            raise RunError(f"machine: {len(found)} of {world.size} ranks said what their host has")
        nodes = [rank // world.ranks_per_node for rank in range(world.size)]
        if world.device != "cpu":
            return cls._of_gpus(world.device, found, nodes, world.processors)
        if world.rank == 0:
            _announce_gpus(found)
        return cls._of_ranks("detected", found, nodes, world.processors, world.cores)

    @classmethod
    def _load_given(cls, world: World, path: str) -> Self:
        """Load the machine that the launch was given; on all ranks the same, or on none."""
        machine = cls.load(path)
        found = world.control.gather(machine.fingerprint().encode())
        other = next((rank for rank, told in enumerate(found) if told != found[0]), None)
        if other is not None:
            raise RunError(f"--machine {path}: rank {other} read another file than rank 0; give all hosts the same")
        return machine

    @classmethod
    def _of_ranks(
        cls, name: str, inventories: Sequence[Inventory], nodes: Sequence[int], processors: int, cores: int
    ) -> Self:
        """Put a machine together from what every rank found; ranks of one host share its memory evenly."""
        names = [inventory.host for inventory in inventories]
        memories: list[Memory] = []
        for rank, inventory in enumerate(inventories):
            share = inventory.memory_bytes // names.count(inventory.host) or ASSUMED_MEMORY_BYTES
            memories.append(Memory(rank, rank, nodes[rank], share, CORE_BANDWIDTH * cores * processors))
        places = [(rank, rank * processors + local) for rank in range(len(memories)) for local in range(processors)]
        return cls(
            name=name,
            hosts=tuple(Host(node, names[nodes.index(node)]) for node in sorted(set(nodes))),
            memories=tuple(memories),
            processors=tuple(
                Processor(index, "cpu", rank, cores, CORE_FLOPS_PER_S * cores, f"p{index}") for rank, index in places
            ),
        )

    @classmethod
    def _of_gpus(cls, device: str, inventories: Sequence[Inventory], nodes: Sequence[int], processors: int) -> Self:
        """Put a machine of GPUs together, as far as they say what they are; see ``gpu_machine``."""
        assumed = Rates(CORE_FLOPS_PER_S, CORE_BANDWIDTH)
        parts = gpu_parts_of(inventories, nodes, processors, ASSUMED_MEMORY_BYTES, assumed)
        return cls(
            name=f"detected ({device})",
            hosts=parts.hosts,
            memories=parts.memories,
            processors=parts.processors,
            links=parts.links,
            switches=parts.switches,
            within_host=None if parts.links else parts.within_host or WITHIN_HOST,
            between_hosts=None if parts.links else BETWEEN_HOSTS,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A machine from a TOML file, as ``save`` writes it.

        Raises:
            RequestError: the file or an entry of it is wrong; the message names the entry.
        """
        parts = machine_file.read(path)
        return cls(*parts)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """The machine that plain data describes, as ``to_json`` gives it.

        Raises:
            RequestError: an entry of it is wrong; the message names the entry.
        """
        return cls(*machine_file.parse(Entry("machine", "", data)))

    def to_json(self) -> dict[str, object]:
        """The machine as plain data."""
        return machine_file.document(self._parts())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the machine as TOML, whole or not at all.

        Raises:
            RequestError: the place cannot be written.
        """
        machine_file.write(path, self._parts())

    def fingerprint(self) -> str:
        """A hexadecimal digest of what describes the machine, the same in every process.

        Peaks in other types than float32 are left out: plans that were written before presets had any are still theirs.
        """
        name, hosts, memories, processors, links, within, between, switches = self._parts()
        bare = tuple(replace(processor, peaks=()) for processor in processors)
        plain = machine_file.document((name, hosts, memories, bare, links, within, between, switches))
        document = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(document.encode(), digest_size=16).hexdigest()

    def capped(self, memory_bytes: int | None) -> Self:
        """The machine each of whose memories holds at most so much; itself where that is None."""
        if memory_bytes is None:
            return self
        memories = tuple(replace(m, capacity_bytes=min(m.capacity_bytes, memory_bytes)) for m in self.memories)
        return replace(self, memories=memories)

    def memory_of(self, processor: int) -> int:
        """The id of the memory that a processor works on."""
        return self.processor(processor).memory

    def rank_of(self, processor: int) -> int:
        """The rank (process) that a processor belongs to."""
        return self.memories[self.memory_of(processor)].rank

    def memories_of(self, rank: int) -> tuple[int, ...]:
        """The ids of the memories of a rank, ascending."""
        # Memories are in the order of their ranks, processors in that of their memories.
        first = bisect_left(self.memories, rank, key=_RANK)
        return tuple(range(first, bisect_right(self.memories, rank, lo=first, key=_RANK)))

    def first_of(self, rank: int) -> int:
        """The id of the first processor of a rank."""
        return self.processors_of(self.memories_of(rank)[0])[0]

    def processors_of(self, memory: int) -> tuple[int, ...]:
        """The ids of the processors that share a memory, ascending."""
        first = bisect_left(self.processors, memory, key=_MEMORY)
        return tuple(range(first, bisect_right(self.processors, memory, lo=first, key=_MEMORY)))

    def processor(self, index: int) -> Processor:
        """A processor by id.

        Raises:
            RequestError: there is no such processor.
        """
        if not 0 <= index < len(self.processors):
            last = len(self.processors) - 1
            raise RequestError(
                f"processor {index} does not exist; the machine has {last + 1}: {f'0..{last}' if last else '0'}"
            )
        return self.processors[index]

    def link(self, source: int, target: int) -> Link:
        """The way from one memory to another as one link: the latencies of its links, the least of their bandwidths.

        Raises:
            RequestError: the two are one memory, or one of them does not exist.
        """
        for memory in (source, target):
            if not 0 <= memory < len(self.memories):
                raise RequestError(f"memory {memory} does not exist; the machine has {len(self.memories)}")
        if source == target:
            raise RequestError(f"memory {source} has no link to itself")
        rates = [self.routes.rate(number) for number in self.routes.route(source, target)]
        return Link(source, target, sum(latency for latency, _ in rates), min(bandwidth for _, bandwidth in rates))

    def __str__(self) -> str:
        """The machine as a short table, one row per processor."""
        rows = [("processor", "kind", "cores", "rank", "host", "memory")]
        for processor in self.processors:
            memory = self.memories[processor.memory]
            size = f"{memory.capacity_bytes / 2**30:.1f} GiB"
            rows.append(
                (
                    processor.name,
                    processor.kind,
                    str(processor.cores),
                    str(memory.rank),
                    self.hosts[memory.host].name,
                    size,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"machine {self.name}", *lines])

    def _parts(self) -> machine_file.Parts:
        rates = self.within_host, self.between_hosts
        return (self.name, self.hosts, self.memories, self.processors, self.links, *rates, self.switches)


def _announce_gpus(inventories: Sequence[Inventory]) -> None:
    hosts = sorted({inventory.host for inventory in inventories if inventory.has_gpu})
    if hosts:
        announce(f"maniple: GPUs on {', '.join(hosts)} are not used; run with --device cuda to use them")
