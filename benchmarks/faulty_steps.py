"""The program of `faults.py` for real processes: calls, exchanges and large tiles, with a fault: `FAULT RANK STEP`.

======  ======================================================================
fault   what the rank does
======  ======================================================================
kill    is killed
stop    is stopped
raise   raises
exit    ends with status 3, without a word
leave   ends with status 0, in the midst of the others' program
hold    keeps the interpreter lock for longer than `--hang-timeout`
memory  may have no more memory, and asks for it
disk    may write no more to any file, its log among them, and writes
======  ======================================================================

With `stream KIND` its stream of tiles to the next rank leads over a link with that fault, a kind of
`maniple.testing.fault_link`.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import tempfile
import threading

from maniple.runtime.control import world
from maniple.runtime.transports.transport import Transport
from maniple.testing.fault_link import FaultLink, LinkFault
from maniple.testing.tile_engine import TileEngine

TILE = 200_000
"""Bytes: a stream's, in four pieces of the link."""
STEPS = 10


def body(step: int, sender: int, receiver: int) -> bytes:
    """What a rank sends another in a step: no two pieces of it are alike."""
    return random.Random(f"{step} {sender} {receiver}").randbytes(TILE)


def lead_over_a_link(transport: Transport, kind: str, peer: int, piece: int) -> None:
    """Put a link with a fault into the stream to a peer."""
    where, _, told = transport.endpoints[peer].partition("#")
    key, _, port = told.partition(":")
    link = FaultLink(f"tcp://127.0.0.1:{port}", LinkFault(kind, 0, piece, seconds=2.0), framed=False)
    changed = f"{where}#{key}:{link.endpoint.rpartition(':')[2]}"
    transport.connect([changed if rank == peer else each for rank, each in enumerate(transport.endpoints)])


def exchange(step: int) -> bool:
    """Send every other rank a tile, and take theirs; says whether they are right."""
    others = [peer for peer in range(here.size) if peer != here.rank]
    for peer in others:
        engine.send(peer, step, memoryview(body(step, here.rank, peer)))
    with here.headway.waiting(), engine.changed:
        while not all((peer, step) in engine.came for peer in others):
            if engine.failure is not None:
                raise engine.failure
            engine.changed.wait()
    return all(engine.came.pop((peer, step)) == body(step, peer, here.rank) for peer in others)


fault, victim, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here = world.current()  # as mp.world(), which imports torch
if here.transport is None:
    raise SystemExit("these are the steps of two ranks at least")
wire, engine = here.transport, TileEngine(here.transport, here.control)
everyone = here.control.gather(b"%d" % os.getpid())
if here.rank == 0:
    ports = [each.partition("#") for each in wire.endpoints]
    print("pids", *(part.decode() for part in everyone), flush=True)
    print("ports", *(end.rpartition(":")[2] for where, _, told in ports for end in (where, told)), flush=True)
if here.rank == victim and fault.startswith("stream "):
    lead_over_a_link(wire, fault.removeprefix("stream "), (victim + 1) % here.size, when)
for step in range(STEPS):
    here.control.call(f"step {step}", b"%d" % step)
    if not exchange(step):
        print("wrong number", step, flush=True)
    told = here.control.gather(b"%d" % (step * 10 + here.rank))
    if told != [b"%d" % (step * 10 + rank) for rank in range(here.size)]:
        print("wrong number", told, flush=True)
    if step == when and fault == "launcher killed":
        threading.Event().wait(60)
    if step != when or here.rank != victim:
        continue
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "raise":
        raise ValueError("the batch is sour")
    elif fault == "hold":
        ctypes.PyDLL(None).sleep(20)
    elif fault == "memory":
        pages = int(open("/proc/self/statm", encoding="ascii").read().split()[0])  # noqa: PTH123, SIM115 - one number
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (32 << 20),) * 2)
        bytearray(2 << 30)
    elif fault == "disk":
        with tempfile.TemporaryFile() as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            file.write(b"what does not fit")
    elif fault == "exit":
        os._exit(3)
    elif fault == "leave":
        sys.exit(0)
engine.close()
