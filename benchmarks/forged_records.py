"""What a head makes of records that are mutated or forged: nothing.

    python benchmarks/forged_records.py [--records 1000000] [--seed 0]

ZeroMQ lets nobody without a proof send a message, so nothing of this reaches a head by a socket. Here it does: bytes
that are mutated from every kind of record, cut, joined and made up, and whole records with fields of any value, come
from connections that are no members', in every phase of a run. After them the head must be in the phase where it was,
hold as much as it did, name no rank, and have answered with nothing but a refusal to whoever sent it.
"""

# ruff: noqa: SLF001 - all of a head is looked at

from __future__ import annotations

import argparse
import random
import resource
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter

import msgpack

from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import Garbled, Received, SendTo
from maniple.runtime.control.control import echo_name
from maniple.runtime.transports.message import (
    MAX_MESSAGE,
    PROTOCOL,
    RECORDS,
    SCHEMA,
    Call,
    Gather,
    Heartbeat,
    Hello,
    Message,
    ProtocolError,
    Refused,
    decode,
    encode,
)

SIZE = 3
EVERY = 50_000
# Records after which memory is measured first, and how often all of a head is looked at: what changed stays so.
WARM, LOOK = 2000, 100
# What a process may grow by during a sweep: what Python's allocator takes and gives back in pieces.
GROWTH = 8 << 20


@dataclass(frozen=True)
class Found:
    """What a sweep came to.

    Args:
        outcomes: how many were no message, dropped, or refused.
        changes: how often anything of a head changed.
        grown: bytes of memory that the process has grown by, after the first 2,000 records.
        seconds: how long it took.
    """

    outcomes: Counter[str]
    changes: int
    grown: int
    seconds: float


def heads() -> dict[str, Coordinator]:
    """A head in every phase in which messages can come."""
    found = {name: Coordinator(SIZE, 1, 1e9, 1e9) for name in ("joining", "running", "stopping")}
    for name, head in found.items():
        for rank in range(1 if name == "joining" else SIZE):
            hello = Hello(rank, rank, 1, "h", SIZE, f"tcp://h:{rank}", PROTOCOL, 41)
            head.handle(Received(b"rank %d" % rank, hello), 0.0)
        if name != "joining":
            for rank in range(2):
                head.handle(Received(b"rank %d" % rank, Call(1, b"d", b"", "step 1")), 0.0)
            head.handle(Received(b"rank 1", Gather(1, b"part")), 0.0)
    found["stopping"].handle(Garbled(b"rank 2", "test"), 0.0)
    return found


def shape(head: Coordinator) -> tuple[object, ...]:
    """All of a head that a record could change."""
    agreement = head._agreement
    return (
        head.phase,
        head.finish,
        len(head._members),
        len(head._ranks),
        len(head._echoes),
        len(head._exits),
        len(head._refusals._texts),
        tuple(agreement.counts),
        tuple(agreement.last),
        agreement.pending(),
        repr(head._vigil._ranks),
    )


def _integer(draw: random.Random) -> int:
    return draw.choice([0, 1, 2, 3, 4, 255, 2**31, 2**63 - 1, draw.getrandbits(62)])


def _text(draw: random.Random) -> str:
    return draw.choice(["", "h", PROTOCOL, "step 1", "tcp://127.0.0.1:1", "\u00e9" * 9, "x" * draw.randrange(3000)])


DRAWN: dict[str, Callable[[random.Random], object]] = {
    "int": _integer,
    "bool": lambda draw: draw.random() < 0.5,
    "str": _text,
    "bytes": lambda draw: draw.randbytes(draw.randrange(40)),
    "tuple[str, ...]": lambda draw: tuple(_text(draw) for _ in range(draw.randrange(4))),
    "tuple[bytes, ...]": lambda draw: tuple(draw.randbytes(draw.randrange(9)) for _ in range(draw.randrange(4))),
}


def forged(draw: random.Random) -> Message:
    """A record of any kind; a hello that is no rank's of this run, as its sender is not who a rank would be."""
    record = draw.choice(RECORDS)
    if record is Hello:
        wrong = draw.choice([(0, 1, SIZE), (SIZE, SIZE, SIZE), (1, 1, SIZE + 1), (2**31, 0, SIZE)])
        return Hello(wrong[0], wrong[1], 1, _text(draw), wrong[2], _text(draw), PROTOCOL, _integer(draw))
    values = [DRAWN[str(field.type)](draw) for field in fields(record)]
    return record(*values)  # type: ignore[arg-type]


def mutated(draw: random.Random, packed: bytes) -> bytes:
    """Bytes that differ from a packed record."""
    data = bytearray(packed)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(6)
        if kind == 0 and data:
            data[at - 1] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 2:
            del data[at : at + draw.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = draw.choice(
                [b"\x90", b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\x80"]
            )
        elif kind == 4:
            data[at:at] = b"\x91" * draw.randrange(600)
        else:
            data += msgpack.packb([SCHEMA, draw.randrange(12), [[]] * draw.randrange(50)])
    return bytes(data)


def sweep(records: int, seed: int, show: Callable[[str], object] = lambda _: None) -> Found:
    """Drive heads with records.

    Args:
        records: how many.
        seed: of what is drawn.
        show: is told how far it is.
    """
    draw = random.Random(seed)
    made = heads()
    before = {name: shape(head) for name, head in made.items()}
    outcomes: Counter[str] = Counter()
    changes, start, resident = 0, perf_counter(), memory()
    names = sorted(made)
    for number in range(1, records + 1):
        if number == WARM:
            resident = memory()
        if number % EVERY == 0:
            show(f"{number} records, {changes} changes")
        sender = draw.choice([b"", b"\0" * 5, b"rank 9", echo_name(9), draw.randbytes(5)])
        data = encode(forged(draw))
        if draw.random() < 0.7:
            data = mutated(draw, data)
        event, outcome = _event(sender, data)
        name = draw.choice(names)
        told = made[name].handle(event, 1.0)
        outcomes["refused" if told else outcome] += 1
        wrong = [one for one in told if not (isinstance(one, SendTo) and isinstance(one.message, Refused))]
        wrong += [one for one in told if isinstance(one, SendTo) and one.identity != sender]
        moved = [one for one in names if shape(made[one]) != before[one]] if number % LOOK == 0 else []
        if wrong or moved:
            changes += 1
            show(f"record {number}: {moved} changed; {event!r} gave {told!r}")
            made = heads()
    return Found(outcomes, changes, memory() - resident, perf_counter() - start)


def memory() -> int:
    """Bytes of memory that this process has; 0 where that is not told."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _event(sender: bytes, data: bytes) -> tuple[Received | Garbled, str]:
    try:
        message = decode(data)
    except ProtocolError as error:
        return Garbled(sender, str(error)), "no message"
    # A mutation may be a hello that a rank could have said; a proof would have been needed to say it.
    if isinstance(message, Hello) and message.rank < SIZE and message.node == message.rank:
        return Received(sender, Heartbeat(0, 1)), "dropped"
    return Received(sender, message), "dropped"


def amplification() -> list[tuple[str, int, float]]:
    """How many bytes are taken, for each byte that came, by messages made to take many."""
    inner = b"\xdc\xff\xff" + b"\x90" * 65535
    texts = [SCHEMA, 1, [""] * 60000, [""] * 5000]
    bombs = {
        "15 lists of 65535 lists": b"\x92" + bytes((SCHEMA,)) + b"\x9f" + inner * 15,
        "lists in lists": b"\x91" * (1 << 20),
        "a list of 2^32 - 1": b"\xdd\xff\xff\xff\xff" + bytes(1 << 16),
        "a text of 2^31": b"\x93" + bytes((SCHEMA,)) + b"\x08\xdb\x7f\xff\xff\xff" + bytes(1 << 16),
        "65000 empty texts": bytes(msgpack.packb(texts) or b""),
        "zeros": bytes(MAX_MESSAGE // 64),
    }
    found = []
    for name, data in bombs.items():
        tracemalloc.start()
        with suppress(ProtocolError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found.append((name, len(data), peak / len(data)))
    return found


def main() -> int:
    """Sweep, and print what came of it."""
    parser = argparse.ArgumentParser(description="drive a head with mutated and forged records")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = sweep(given.records, given.seed, print)
    print(f"{given.records} records, seed {given.seed}, {found.seconds:.0f} s")
    for outcome, count in sorted(found.outcomes.items()):
        print(f"  {outcome:<12} {count:>9}")
    print(f"  changes      {found.changes:>9}\n  bytes grown  {found.grown:>9}")
    print("message                        bytes  taken for each")
    for name, size, factor in amplification():
        print(f"{name:<26} {size:>9}  {factor:>6.1f}")
    return 1 if found.changes or found.grown > GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
