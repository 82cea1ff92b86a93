"""Proof: how a process shows another that it is of the same run, before either takes a message from the other.

On the control plane it is derived from the run's secret, which itself never crosses a wire. For tiles it is derived
from a key that the receiving rank mints; the others get it with its endpoint, over the control plane, encrypted.

=========  ============================  ===================================================================
plane      who proves what               how
=========  ============================  ===================================================================
control    rank and launcher, to each    CurveZMQ (ZMTP RFC 26): both keys follow from the secret, so who lacks
           other                         it cannot begin the handshake; fresh keys per connection, encrypted
tiles      sender to receiver            PLAIN (ZMTP RFC 24): a password for this pair of ranks alone; then bare
                                         frames, as fast as without
           receiver to sender            a keyed digest of the sender's nonce, which its first frame carries
streams    sender and receiver, to each  keyed digests of each other's nonces, before the first byte of a tile
           other
encrypted  both, to each other           CurveZMQ in place of PLAIN, with keys that follow from the receiver's
verified   every message of tiles        a keyed digest (BLAKE2b, RFC 7693) of all its frames, as the last one
=========  ============================  ===================================================================

ZeroMQ asks for the proof before a connection carries its first message. So a stranger has no queue, and nothing of
what it sends is kept but one frame of a bounded size, for `HANDSHAKE_S` at most.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, final

import zmq
from zmq.utils import z85

from maniple.process.error import RunError
from maniple.runtime.transports.message import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

HANDSHAKE_S = 10.0
"""How long a connection may take for its proof; a receiver that computes meanwhile is dialled again."""
NONCE = DIGEST = 16
COUNT = struct.Struct("<I")
SIZE = struct.Struct("<Q")
STREAM_HEAD = struct.Struct("<IHQ")
"""What is before a tile on a stream: its number, the length of its header, its size."""
STREAM_GREETING = struct.Struct(f"<IQ{NONCE}s{DIGEST}s")
"""What the sender of a stream says first: its rank, the bytes that streams of it have carried, nonce, its proof."""
ASKED_AT = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks a process whether a proof is right (ZAP, RFC 27)."""
_FIRST_PROOF = 6
_HEAD, _RANK, _RECEIVER = b"head", b"rank", b"receiver"


def digest(token: str, purpose: bytes, sender: int = 0, receiver: int = 0, size: int = 16) -> bytes:
    """Derive bytes from the run's secret that tell nothing of it.

    Args:
        token: the secret.
        purpose: what the bytes are for.
        sender: a rank.
        receiver: another.
        size: how many bytes, at most 64.
    """
    told = purpose + struct.pack("<II", sender, receiver)
    return blake2b(told, key=token.encode()[:64], digest_size=size).digest()


def be_coordinator(socket: zmq.Socket[bytes], token: str) -> None:
    """Have a socket of the launcher ask for the proof of whoever connects.

    Raises:
        RunError: this ZeroMQ has no CURVE.
    """
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, _keys(token, _HEAD)[1])
    socket.setsockopt(zmq.HANDSHAKE_IVL, round(HANDSHAKE_S * 1000))


def be_rank(socket: zmq.Socket[bytes], token: str) -> None:
    """Have a socket of a rank prove itself to the launcher, and take only the launcher's word.

    Raises:
        RunError: this ZeroMQ has no CURVE.
    """
    public, secret = _keys(token, _RANK)
    socket.setsockopt(zmq.CURVE_SERVERKEY, _keys(token, _HEAD)[0])
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)


def be_receiver(socket: zmq.Socket[bytes], key: str, *, encrypt: bool = False) -> None:
    """Have a socket for tiles ask for the proof of whoever connects; `Gate` says whether it is right.

    Args:
        socket: the socket.
        key: the receiver's.
        encrypt: whether all that it takes is encrypted.

    Raises:
        RunError: this ZeroMQ has no CURVE.
    """
    socket.setsockopt(zmq.HANDSHAKE_IVL, round(HANDSHAKE_S * 1000))
    if not encrypt:
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        return
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, _keys(key, _RECEIVER)[1])


def be_sender(socket: zmq.Socket[bytes], token: str, sender: int, receiver: int, *, encrypt: bool = False) -> None:
    """Have a socket for tiles prove that it is that of a rank that sends to another.

    Args:
        socket: the socket.
        token: the receiver's key.
        sender: a rank.
        receiver: another.
        encrypt: whether all that it sends is encrypted; then the receiver has to prove itself first.

    Raises:
        RunError: this ZeroMQ has no CURVE.
    """
    socket.setsockopt(zmq.ROUTING_ID, name(token, sender, receiver))
    if encrypt:
        public, secret = _keys(token, _sender(sender))
        socket.setsockopt(zmq.CURVE_SERVERKEY, _keys(token, _RECEIVER)[0])
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        return
    socket.setsockopt(zmq.PLAIN_USERNAME, b"%d" % sender)
    socket.setsockopt(zmq.PLAIN_PASSWORD, password(token, sender, receiver))


def name(token: str, sender: int, receiver: int) -> bytes:
    """Name the connection that carries the tiles of a pair of ranks."""
    return b"M" + digest(token, b"name", sender, receiver)


class ZapGate(ABC):
    """Says of the sockets of a context who may connect; it has one gate, made before they are bound.

    Args:
        context: of those sockets.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.rejected = 0
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ASKED_AT)

    def answer(self) -> None:
        """Answer what is asked now."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            asked = self.socket.recv_multipart(zmq.NOBLOCK)
            right = len(asked) > _FIRST_PROOF and asked[0] == b"1.0" and self._is_right(asked[5], asked[6:])
            self.rejected += not right
            number = asked[1] if len(asked) > 1 else b""
            status = (b"200", b"of this run") if right else (b"400", b"not of this run")
            self.socket.send_multipart([b"1.0", number, *status, b"", b""], zmq.NOBLOCK)

    @abstractmethod
    def _is_right(self, mechanism: bytes, proof: Sequence[bytes]) -> bool:
        """Judge a proof; before it a request has version, number, domain, address, identity and mechanism."""


@final
class Gate(ZapGate):
    """Says of a rank's socket for tiles who may connect: whoever knows the password of its pair, or has a sender's key.

    Args:
        context: of that socket.
        token: this rank's key.
        rank: this rank.
        size: number of ranks.
        encrypt: whether all that the socket takes is encrypted.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], token: str, rank: int, size: int, *, encrypt: bool = False
    ) -> None:
        super().__init__(context)
        peers = [peer for peer in range(size) if peer != rank]
        self._passwords = {b"%d" % peer: password(token, peer, rank) for peer in peers}
        self._keys = {z85.decode(_keys(token, _sender(peer))[0]) for peer in peers} if encrypt else set[bytes]()

    def _is_right(self, mechanism: bytes, proof: Sequence[bytes]) -> bool:
        if self._keys:
            return mechanism == b"CURVE" and len(proof) == 1 and proof[0] in self._keys
        expected = self._passwords.get(proof[0])
        return mechanism == b"PLAIN" and len(proof) == 2 and expected is not None and compare_digest(expected, proof[1])


@final
class KeyGate(ZapGate):
    """Says of the coordinator's socket who may connect: whoever has the secret key of the run's ranks and agents.

    That a client knows the socket's public key, which nobody is told, lets it begin the handshake; this asks for more.

    Args:
        context: of that socket.
        token: the run's secret.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], token: str) -> None:
        super().__init__(context)
        self._allowed = z85.decode(_keys(token, _RANK)[0])

    def _is_right(self, mechanism: bytes, proof: Sequence[bytes]) -> bool:
        return mechanism == b"CURVE" and len(proof) == 1 and compare_digest(self._allowed, proof[0])


def password(token: str, sender: int, receiver: int) -> bytes:
    """Give what a sender of tiles shows to its receiver.

    Args:
        token: the receiver's key.
        sender: a rank.
        receiver: another.
    """
    return digest(token, b"password", sender, receiver, 32).hex().encode()


def hello(key: str, sender: int, receiver: int, nonce: bytes) -> bytes:
    """Give the first frame of a connection.

    Args:
        key: the receiver's.
        sender: a rank.
        receiver: another.
        nonce: what the receiver's answer proves itself for.
    """
    return PROTOCOL.encode() + b" " + nonce + digest(key, b"hello" + nonce, sender, receiver)


def mark(key: str, sender: int, receiver: int, count: int) -> bytes:
    """Give what a sender says on a connection that was made again.

    Args:
        key: the receiver's.
        sender: a rank.
        receiver: another.
        count: how many messages it has sent.
    """
    return digest(key, b"mark", sender, receiver) + COUNT.pack(count & 0xFFFFFFFF)


def seal(key: str, sender: int, receiver: int, first: bytes, payload: memoryview | None) -> bytes:
    """Give what shows that a message is as its sender sent it.

    Args:
        key: the receiver's.
        sender: a rank.
        receiver: another.
        first: its number and header.
        payload: its tile, if it has one.
    """
    told = blake2b(SIZE.pack(len(first)) + first, key=digest(key, b"seal", sender, receiver, 32), digest_size=DIGEST)
    if payload is not None:
        told.update(payload)
    return told.digest()


def stream_greeting(key: str, asked: bytes, ends: tuple[int, int], carried: int, nonce: bytes) -> bytes:
    """Give what the sender of a stream says first; its proof is over all of it, so nothing can be put in its place.

    Args:
        key: the receiver's.
        asked: the receiver's nonce.
        ends: the sender's rank, and the receiver's.
        carried: bytes that streams of it have carried.
        nonce: what the receiver is to prove itself for.
    """
    shown = digest(key, b"stream to" + asked + SIZE.pack(carried) + nonce, *ends)
    return STREAM_GREETING.pack(ends[0], carried, nonce, shown)


def receiver_proof(key: str, asked: bytes, sender: int, receiver: int) -> bytes:
    """Give what the receiver of a stream shows to its sender.

    Args:
        key: the receiver's.
        asked: the sender's nonce.
        sender: a rank.
        receiver: another.
    """
    return digest(key, b"stream of" + asked, sender, receiver)


def _sender(rank: int) -> bytes:
    return b"sender %d" % rank


def _keys(token: str, whose: bytes) -> tuple[bytes, bytes]:
    """Give the public and the secret key of an end of the control plane; both are the run's secret."""
    if not zmq.has("curve"):
        raise RunError("this ZeroMQ was built without CURVE (libsodium); install pyzmq from a wheel")
    secret = z85.encode(digest(token, b"curve " + whose, size=32))
    return zmq.curve_public(secret), secret
