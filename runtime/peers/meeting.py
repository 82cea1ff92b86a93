"""Meetings: how the ranks of a host find out, before any tile, which memory each can open of each other's devices.

Nothing is taken on trust: every rank exports a little of each kind of memory of each of its devices and writes to it,
and every other rank of its host opens that and reads it, by its own device. What they found they tell each other, and
rank 0 says it once. All ranks of the run take part, for they meet over the control plane.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from maniple.process.error import RunError
from maniple.process.inventory import announce
from maniple.runtime.machine.peer_link import TURNS_WORTH
from maniple.runtime.peers.reach import Reach
from maniple.runtime.transports import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from maniple.runtime.control.world import World
    from maniple.runtime.devices.device import Device
    from maniple.runtime.devices.peer_memory import PeerMemory, Segment

__all__: list[str] = []

PROBE_BYTES = 4096
"""Of what is exported and opened as a trial."""

_SAY = "maniple: tiles between GPUs of ranks of one host"


class _Offer(NamedTuple):
    """What a rank exports as a trial.

    Args:
        way: the kind of memory, as messages call it.
        of_device: whether it is memory of a device.
        hardware: which.
        size: bytes.
        mark: what each byte of it is.
        handle: what opens it; empty where it could not be exported.
        refused: why.
    """

    way: str
    of_device: bool
    hardware: str
    size: int
    mark: int
    handle: bytes
    refused: str


def shares_memory(world: World) -> bool:
    """Whether ranks of one host share memory in a world, where it has such; the same on all ranks."""
    by_transport = world.transport is not None and world.transport.shares_memory
    return world.stepper is None and (by_transport or world.shared is not None)


def neighbours_of(world: World) -> frozenset[int]:
    """The other ranks of this one's host, in a world whose ranks share memory."""
    if world.shared is not None:
        return world.shared.ranks - {world.rank}
    own = world.hosts[world.rank]
    return frozenset(rank for rank, host in enumerate(world.hosts) if host == own) - {world.rank}


def meet(world: World, devices: Sequence[Device]) -> dict[int, Reach]:
    """Find out what each other rank of this host can open of this rank's devices; every rank must ask.

    Args:
        world: this rank's.
        devices: its.
    """
    if not shares_memory(world):
        return {}
    near = neighbours_of(world)
    made: list[Segment] = []
    offers = [_offer(world.rank, device, memory, made) for device in devices for memory in device.peer_memories if near]
    try:
        told = record.parts(world.control.gather(record.pack(offers)), "devices' memory")
        found = [[_offer_of(item) for item in part.items()] for part in told]
        mine = [[peer, offer.way, why] for peer in sorted(near) for offer, why in _try_all(devices, found[peer])]
        answers = record.parts(world.control.gather(record.pack(mine)), "devices' memory that was opened")
    finally:
        for segment in made:
            segment.close()
    results: dict[tuple[int, int, str], str] = {}
    for rank, part in enumerate(answers):
        for item in part.items():
            peer, way, why = item.items(3)
            results[peer.integer(), rank, way.string()] = why.string()
    reaches = _reaches(found, results)
    if world.rank == 0 and (near or reaches):
        _say(found, reaches)
    return {peer: reaches[world.rank, peer] for peer in near if (world.rank, peer) in reaches}


def _offer(rank: int, device: Device, memory: PeerMemory, made: list[Segment]) -> _Offer:
    mark = 1 + rank % 100
    told = memory.way, memory.of_device, memory.hardware
    try:
        segment = memory.export(PROBE_BYTES)
        made.append(segment)
        _do(device, lambda: segment.memory.fill_(mark))
    except Exception as error:  # noqa: BLE001  (a trial: whatever is wrong is told, and the memory is not used)
        return _Offer(*told, 0, mark, b"", _told(error))
    return _Offer(*told, segment.memory.numel(), mark, segment.handle, "")


def _offer_of(item: record.Field) -> _Offer:
    way, of_device, hardware, size, mark, handle, refused = item.items(len(_Offer._fields))
    if type(handle.value) is not bytes or type(of_device.value) is not bool:
        raise RunError(f"{item.place}: expected a handle of memory, got {item.value!r}")
    told = way.string(), of_device.value, hardware.string(), size.integer(), mark.integer()
    return _Offer(*told, handle.value, refused.string())


def _try_all(devices: Sequence[Device], offers: Sequence[_Offer]) -> list[tuple[_Offer, str]]:
    """Try every offer of a rank by every device of this one; a way is open if all of it is."""
    return [
        (offer, next(filter(None, (_try(device, offer) for device in devices)), "") if devices else "it has no GPU")
        for offer in offers
    ]


def _try(device: Device, offer: _Offer) -> str:
    """Open an offer and read it; says why not."""
    if offer.refused:
        return offer.refused
    memory = next((one for one in device.peer_memories if one.way == offer.way), None)
    if memory is None:
        return f"{device.name} opens no {offer.way}"
    try:
        segment = memory.open(offer.handle, offer.size)
        row = device.stage(offer.size, segment.memory.dtype)
        try:
            _do(device, lambda: row.copy_(segment.memory, non_blocking=True))
        finally:
            segment.close()
    except Exception as error:  # noqa: BLE001  (likewise)
        return f"{device.name}: {_told(error)}"
    return "" if _all_are(row, offer.mark) else f"{device.name} reads other values in {offer.way} than were written"


def _do(device: Device, work: Callable[[], object]) -> None:
    """Have a stream of a device do something, whose failure is raised here and is none of the stream's."""
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  (raised again)
            failed.append(error)

    device.departures.submit(attempt).wait()
    if failed:
        raise failed[0]


def _told(error: Exception) -> str:
    """What an error says, in one line, with its kind where it is none of ours."""
    text = str(error).partition("\n")[0]
    return text if isinstance(error, RunError) else f"{type(error).__name__}: {text}"


def _all_are(row: torch.Tensor, mark: int) -> bool:
    return bool((row == mark).all())


def _reaches(
    found: Sequence[Sequence[_Offer]], results: Mapping[tuple[int, int, str], str]
) -> dict[tuple[int, int], Reach]:
    """What the second of two ranks can open of the first, by pair, where it tried."""
    tried: defaultdict[tuple[int, int], dict[bool, list[tuple[str, str]]]] = defaultdict(lambda: {True: [], False: []})
    for (sender, receiver, way), why in sorted(results.items()):
        for of_device in {offer.of_device for offer in found[sender] if offer.way == way}:
            tried[sender, receiver][of_device].append((way, why))
    reaches = {}
    for (sender, receiver), kinds in tried.items():
        open_ways = {of_device: bool(ways) and not any(why for _, why in ways) for of_device, ways in kinds.items()}
        ours, theirs = ({offer.hardware for offer in found[rank] if offer.of_device} for rank in (sender, receiver))
        refused = {way: why for ways in kinds.values() for way, why in ways if why}
        reaches[sender, receiver] = Reach(open_ways[True], open_ways[False], bool(ours & theirs), refused)
    return reaches


def _say(found: Sequence[Sequence[_Offer]], reaches: Mapping[tuple[int, int], Reach]) -> None:
    """Say how tiles travel between GPUs of a host, and where they do not travel so."""
    if not reaches:
        announce(f"{_SAY} travel through {describe(Reach(), '', '')}: their devices export no memory")
    ways = {offer.of_device: offer.way for offers in found for offer in offers}
    said: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for pair, reach in sorted(reaches.items()):
        text = describe(reach, ways.get(True, ""), ways.get(False, ""))
        text += "".join(f"; not through {way}: {why}" for way, why in sorted(reach.refused.items()))
        said[text].append(pair)
    for text, pairs in said.items():
        whose = "" if len(said) == 1 else f" (ranks {', '.join(f'{first} to {second}' for first, second in pairs)})"
        announce(f"{_SAY}{whose} travel through {text}")


def describe(reach: Reach, device: str, host: str) -> str:
    """Say through what tiles travel.

    Args:
        reach: of one rank to another.
        device: what memory of devices is called.
        host: what memory of the host is.
    """
    if reach.of_device(0) is None:
        return "the host and the transport of other tiles"
    if reach.of_device(0):
        return device
    if reach.of_device(TURNS_WORTH):
        return f"{host}, from {TURNS_WORTH >> 20} MiB on through {device} (they use the same GPU)"
    return host
