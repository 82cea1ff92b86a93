"""What the parsers of the wire make of bytes that nobody sent: a refusal, an error that names a rank, or a wait.

    python benchmarks/fuzzed_frames.py [--frames 1000000] [--seed 0]

Each parser is given what it would read from a socket: what a rank says with bytes changed, cut, put in and left out,
fields at their bounds, and whatever bytes. Strangers reach the first three; the others read only what a peer sends that
has proved itself. `forged_records.py` goes on from records, to what a head does with them.

record              `message.decode`, of all kinds of records
gate                what ZeroMQ asks of a rank before a connection for tiles may carry anything
greeting            what the sender of a stream says first: no rank is believed, and nothing but a nonce is answered
answer              what the receiver of a stream answers: a wrong proof is an error, and no tile goes there
head                what is before a tile on a stream, and the tile: of a size that there is, or an error
frames              the frames of a tile, with and without a seal
message             a whole message of a peer: in turn, with the right seal, or an error
"""

# ruff: noqa: SLF001 - parsers are given their bytes where they would read them

from __future__ import annotations

import argparse
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import numpy as np
import zmq
from forged_records import forged, mutated

from maniple.process.error import RunError
from maniple.runtime.transports import proof
from maniple.runtime.transports.message import ProtocolError, decode, encode
from maniple.runtime.transports.proof import COUNT, DIGEST, NONCE, SIZE, STREAM_GREETING, STREAM_HEAD
from maniple.runtime.transports.streams.inlet import LEAST, Inlet
from maniple.runtime.transports.streams.outlet import Outlet
from maniple.runtime.transports.streams.tile_streams import TileStreams, _Caller
from maniple.runtime.transports.tile_frames import MAX_PAYLOAD, receive_frames
from maniple.runtime.transports.transport import LOOPBACK, Guard
from maniple.runtime.transports.zeromq import ZmqTransport

KEY = "0123456789abcdef0123456789abcdef"
ROOM = 1 << 20
Parser = Callable[[random.Random], str]


class Wrong(Exception):  # noqa: N818 - what a parser must not do
    """A parser did what it must not."""


@dataclass
class Found:
    """What a sweep came to.

    Args:
        outcomes: by parser, how often it did what.
        wrong: what must not be.
        seconds: how long it took.
    """

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def number(draw: random.Random, bits: int) -> int:
    """A number of so many bits, often at a bound."""
    bound = draw.choice(
        [0, 1, 3, LEAST - 1, LEAST, LEAST + 1, 2**31 - 1, 2**31, 2**32 - 1, MAX_PAYLOAD, 2**63, 2**64 - 1]
    )
    return (bound if draw.random() < 0.6 else draw.getrandbits(64)) % (1 << bits)


def fuzzed(draw: random.Random, right: bytes, bounds: bytes) -> bytes:
    """Bytes that differ from right ones, or have fields at their bounds, or are whatever."""
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randbytes(draw.randrange(2 * len(right) + 2))
    if kind == 1:
        return bounds
    return mutated(draw, right) if kind == 2 else right[: draw.randrange(len(right) + 1)]


def record(draw: random.Random) -> str:
    """Decode what is nearly a record, in one part or more."""
    packed = encode(forged(draw))
    data = mutated(draw, packed) if draw.random() < 0.8 else draw.randbytes(draw.randrange(80))
    cut = draw.randrange(len(data) + 1)
    try:
        decode(*((data,) if draw.random() < 0.5 else (data[:cut], data[cut:])))
    except ProtocolError:
        return "refused"
    return "a record"


def gate(held: ExitStack) -> Parser:
    """Ask the gate of a rank about proofs."""
    asked = {}
    for encrypt in (False, True):
        context = held.enter_context(zmq.Context())
        asked[encrypt] = proof.Gate(context, KEY, 1, 3, encrypt=encrypt)
        held.enter_context(asked[encrypt].socket)
    right = [proof.password(KEY, peer, 1) for peer in (0, 2)]

    def ask(draw: random.Random) -> str:
        encrypt = draw.random() < 0.5
        shown = [fuzzed(draw, draw.choice(right), b"") for _ in range(draw.randrange(1, 4))]
        shown[0] = draw.choice([b"0", b"2", b"1", b"3", b"", shown[0]])
        shown = [b"2", right[1]] if draw.random() < 0.2 else shown
        mechanism = draw.choice([b"PLAIN", b"CURVE", b"NULL", b"", draw.randbytes(5)])
        knows = mechanism == b"PLAIN" and shown in ([b"0", right[0]], [b"2", right[1]]) and not encrypt
        if asked[encrypt]._is_right(mechanism, shown) != knows:
            raise Wrong(f"{mechanism!r} {shown!r}")
        return "admitted" if knows else "refused"

    return ask


def greeting(held: ExitStack) -> Parser:
    """Greet the streams of a rank."""
    streams = held.enter_context(closing(TileStreams(zmq.Poller(), 1, 3, KEY, LOOPBACK)))

    def greet(draw: random.Random) -> str:
        near, far = socket.socketpair()
        near.setblocking(False)
        caller = streams._callers[near.fileno()] = _Caller(near, 0.0)
        streams._poller.register(near.fileno(), zmq.POLLIN)
        right = proof.stream_greeting(KEY, caller.asked, (0, 1), 0, bytes(NONCE))
        bounds = STREAM_GREETING.pack(number(draw, 32), number(draw, 64), bytes(NONCE), right[-DIGEST:])
        said = right if draw.random() < 0.1 else fuzzed(draw, right, bounds)
        with far:
            far.sendall(said)
            place = near.fileno()
            before, known = streams.rejected, len(streams._inlets)
            if said:
                streams._hear(place)
            knows = said[: STREAM_GREETING.size] == right
            if len(streams._inlets) > known and not knows:
                raise Wrong(f"a stream for {said!r}")
            found = "waits" if place in streams._callers else "refused" if streams.rejected > before else "admitted"
            if found == "admitted" and not knows:
                raise Wrong(f"admitted: {said!r}")
            if found != "admitted":
                far.setblocking(False)
                answered = _what_came(far)
                if answered:
                    raise Wrong(f"answered {answered!r} to {said!r}")
        if place in streams._callers:
            streams._drop(place)
        for inlet in streams._inlets.values():
            inlet.close()
        streams._inlets.clear()
        return found

    return greet


def _what_came(link: socket.socket) -> bytes:
    try:
        return link.recv(100)
    except OSError:
        return b""


def answer(draw: random.Random) -> str:
    """Answer a sender that has dialled."""
    outlet = Outlet(_NOBODY, 0, 1, (LOOPBACK, 1), KEY)
    near, far = socket.socketpair()
    near.setblocking(False)
    outlet._link = near
    with far:
        far.sendall(bytes(NONCE))
        outlet.serve()
        right = proof.receiver_proof(KEY, outlet._nonce, 0, 1)
        said = fuzzed(draw, right, right[::-1])
        far.sendall(said)
        try:
            outlet.serve()
        except RunError as error:
            if "does not know the key of rank 1" not in str(error):
                raise Wrong(str(error)) from error
            return "refused"
        finally:
            up = outlet.is_up
            outlet.close()
        if up and said[:DIGEST] != right:
            raise Wrong(f"up by {said!r}")
        return "up" if up else "waits"


class _Nobody(zmq.Poller):
    """A poller that nobody asks: what is ready is known."""

    def register(self, socket: object, flags: int = 0) -> None:
        return None

    def unregister(self, socket: object) -> None:
        return None


_NOBODY = _Nobody()


def room(size: int) -> memoryview:
    """Bytes for a tile, of a size that there can be."""
    if not 0 <= size <= MAX_PAYLOAD:
        raise Wrong(f"room for {size} bytes")
    return np.empty(size, np.uint8).data


def head(draw: random.Random) -> str:
    """Send on a stream whose ends have proved themselves."""
    sealed = draw.random() < 0.5
    inlet = Inlet(_NOBODY, 1, 0, sealed=sealed)
    near, far = socket.socketpair()
    near.setblocking(False)
    inlet.follow(near, 0)
    told = b"header"
    right = STREAM_HEAD.pack(0, len(told), LEAST) + bytes(DIGEST * sealed) + told
    bounds = STREAM_HEAD.pack(number(draw, 32), number(draw, 16), number(draw, 64)) + bytes(DIGEST * sealed) + told
    said = right if draw.random() < 0.2 else fuzzed(draw, right, bounds)
    if draw.random() < 0.3:
        said += bytes(draw.choice([LEAST - 1, LEAST, LEAST + 30]))
    with far:
        far.setblocking(False)
        sent = far.send(said) if said else 0
        if draw.random() < 0.3:
            far.shutdown(socket.SHUT_WR)
        try:
            found = inlet.read(0, lambda size, _: room(size), 0.0)
        except RunError as error:
            if "rank 1: rank 0 sends a tile of" not in str(error):
                raise Wrong(str(error)) from error
            return "an error"
        finally:
            inlet.close()
        whole = STREAM_HEAD.size + DIGEST * sealed
        for each in found:
            length, size = STREAM_HEAD.unpack_from(said)[1:]
            if each.payload is None or each.payload.nbytes != size or sent < whole + length + size:
                raise Wrong(f"a tile out of {said[:40]!r}")
        return "a tile" if found else "waits"


class _Frames:
    """A socket that has the frames of one message."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    def recv(self, flags: int = 0, *, copy: bool = True) -> bytes | zmq.Frame:
        """The next frame."""
        data = self._frames.pop(0)
        return data if copy else zmq.Frame(data)

    def getsockopt(self, option: int) -> int:
        """Whether there are further ones."""
        return int(option == zmq.RCVMORE and bool(self._frames))

    def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        """Nobody hears what is answered."""


def tile_frames(draw: random.Random) -> list[bytes]:
    """The frames behind the first one of a message, or something like them."""
    sizes = [draw.choice([0, 1, 7, 8, 9, 100, ROOM // 64]) for _ in range(draw.randrange(1, 5))]
    found = [bytes(size) for size in sizes]
    if draw.random() < 0.6:
        told = sum(sizes) if draw.random() < 0.5 else number(draw, 64)
        found.insert(0, SIZE.pack(told) if draw.random() < 0.8 else mutated(draw, SIZE.pack(told)))
    return found


def frames(draw: random.Random) -> str:
    """Take the frames of a tile."""
    given, sealed = tile_frames(draw), draw.random() < 0.5
    carried = sum(map(len, given))
    try:
        tile, _ = receive_frames(_Frames(given), room, 1, sealed=sealed)  # type: ignore[arg-type]
    except RunError as error:
        if "rank 1: expected a tile of" not in str(error):
            raise Wrong(str(error)) from error
        return "an error"
    if tile is not None and tile.nbytes > carried:
        raise Wrong(f"a tile of {tile.nbytes} bytes out of {carried}")
    return "a tile" if tile is not None else "none"


def message(held: ExitStack) -> Parser:
    """Give a rank a whole message of a peer that has proved itself, as ZeroMQ does."""
    ranks = {
        verify: held.enter_context(closing(ZmqTransport(1, 2, "token", guard=Guard(verify=verify))))
        for verify in (False, True)
    }

    def take(draw: random.Random) -> str:
        verify = draw.random() < 0.5
        rank = ranks[verify]
        key, (name,) = rank._key, rank._names
        expected = draw.choice([-1, 0, 5, 2**31 - 1])
        rank._received[0] = expected
        if rank._streams is not None:
            rank._streams._inlets.clear()
        right = draw.choice(
            [COUNT.pack(max(0, expected)) + b"header", proof.hello(key, 0, 1, bytes(NONCE)), proof.mark(key, 0, 1, 5)]
        )
        first = right if draw.random() < 0.3 else fuzzed(draw, right, COUNT.pack(number(draw, 32)) * 2 + b"header")
        behind = tile_frames(draw) if draw.random() < 0.6 else []
        said = [draw.choice([name, name, name, name[:-1], b""]), first, *behind]
        rank._router, kept = _Frames(list(said)), rank._router  # type: ignore[assignment]
        found: list[object] = []
        try:
            rank._receive(found)  # type: ignore[arg-type]
        except RunError as error:
            if "rank 1" not in str(error) and "rank 0" not in str(error):
                raise Wrong(str(error)) from error
            return "an error"
        finally:
            rank._router = kept
        if found and (expected < 0 or verify or said[0] != name):
            raise Wrong(f"handed over: {said!r}")
        return "handed over" if found else "nothing"

    return take


PARSERS: dict[str, Callable[[ExitStack], Parser]] = {
    "record": lambda _: record,
    "gate": gate,
    "greeting": greeting,
    "answer": lambda _: answer,
    "head": lambda _: head,
    "frames": lambda _: frames,
    "message": message,
}
"""Makes each of them, with what it holds until the context ends."""


def sweep(count: int, seed: int) -> Found:
    """Give each parser its share of so many.

    Args:
        count: frames, or what is as short.
        seed: of what is drawn.
    """
    found, begun = Found(), time.perf_counter()
    for name, make in PARSERS.items():
        draw, counts = random.Random(f"{seed} {name}"), Counter[str]()
        with ExitStack() as held:
            parse = make(held)
            for at in range(count // len(PARSERS)):
                try:
                    counts[parse(draw)] += 1
                except Exception as error:  # noqa: BLE001 - whatever a parser raises that it must not
                    found.wrong.append(f"{name} {at}: {type(error).__name__}: {error}"[:300])
        found.outcomes[name] = counts
    found.seconds = time.perf_counter() - begun
    return found


def main() -> int:
    """Sweep, and print what came of it."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--frames", type=int, default=1_000_000)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    found = sweep(given.frames, given.seed)
    for name, counts in found.outcomes.items():
        print(f"{name:10}" + "   ".join(f"{count:8} {outcome}" for outcome, count in sorted(counts.items())))
    print(f"{sum(map(Counter.total, found.outcomes.values()))} frames, seed {given.seed}, {found.seconds:.0f} s")
    print(f"{len(found.wrong)} wrong", *found.wrong[:20], sep="\n")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
