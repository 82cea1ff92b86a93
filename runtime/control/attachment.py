"""Attachment: how a rank that torchrun started, and no launcher of ours, comes to know what ours would have told it.

The first rank of each host starts a companion process (`cluster.adoption.companion`), which stands for the launcher
there: it opens what the ranks of the host share, sees their ends, and on the first host coordinates the run.

    torchrun ── starts ──▶ ranks 0, 1
                           rank 0 ── starts ──▶ companion ── coordinator
                           rank 0, 1 ◀── what they must know, and descriptors ── companion

Between the ranks of a host and their companion is a Unix socket without a file (unix(7), abstract); both ends have the
kernel say which user's process the other is. From host to host the coordinator's address and the key of the run go
through torchrun's own store, in which torchrun trusts whoever reaches it.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import sys
import time
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from maniple.process import environment
from maniple.process.error import RequestError, RunError

if TYPE_CHECKING:
    from maniple.process.environment import LaunchEnvironment
    from maniple.process.rank_place import RankPlace

__all__: list[str] = []

COMPANION = "maniple.runtime.cluster.adoption.companion"
"""The program that the first rank of each host starts."""
AT_ONCE = 200
"""Descriptors of one packet; Linux takes 253."""
PACKET = 1 << 18
"""Bytes of a packet at most."""
# How often a rank looks for a companion that does not listen yet: nothing tells of that.
_LOOK_S = 0.02
_CREDENTIALS = struct.Struct("3i")
# From linux/socket.h: which process is at the other end.
_SO_PEERCRED = 17


def attach(place: RankPlace) -> LaunchEnvironment:
    """Find out what a launcher of ours would have told this rank; the first of a host starts its companion.

    Args:
        place: what torchrun told it.

    Raises:
        RequestError: this is not possible on this system, or the companion refuses what is asked for.
        RunError: no companion answers.
    """
    if not sys.platform.startswith("linux"):
        raise RequestError(
            f"RANK and MASTER_ADDR: ranks that torchrun starts find each other on Linux only, got {sys.platform}; "
            "start the program with maniple run"
        )
    if place.local_rank == 0:
        _lead(place)
    return _ask(place)


def socket_name(place: RankPlace) -> str:
    """Name the socket between the ranks of a host and their companion, the same for all of them and for no other run.

    Args:
        place: of any of these ranks.
    """
    told = f"{place.meeting} {place.run} {place.node} {place.nodes}".encode()
    return f"\0maniple-{os.getuid()}-{blake2b(told, digest_size=12).hexdigest()}"


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Give the process and the user at the other end of a Unix socket, as the kernel says.

    Args:
        connection: the socket.
    """
    found = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(found)
    return int(pid), int(user)


def _lead(place: RankPlace) -> None:
    """Start this host's companion, and hand on where the run meets: into the store, or from there."""
    store = _Store(place) if place.nodes > 1 else None
    meeting = store.look_up() if store is not None and place.node else {}
    told = {"argv": sys.argv, **meeting}
    answered = _start_companion(json.dumps(told).encode() + b"\n")
    try:
        answer = json.loads(answered or "{}")
    except ValueError:
        answer = {}
    if "refused" in answer:
        raise RequestError(str(answer["refused"]))
    if "head" not in answer:
        raise RunError(str(answer.get("failed", "the companion of this host ended before it said anything")))
    if store is not None and not place.node:
        store.publish({"head": answer["head"], "token": answer["token"]})


def _start_companion(told: bytes) -> bytes:
    """Start it in a session of its own, tell it a line, and give the line that it answers.

    It must outlive this process, whose end it sees: so nobody waits for it, and torchrun's signals go past it.
    """
    (child_in, own_out), (own_in, child_out) = os.pipe(), os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, child_in, 0), (os.POSIX_SPAWN_DUP2, child_out, 1)]
    command = [sys.executable, "-P", "-m", COMPANION]
    try:
        os.posix_spawn(sys.executable, command, environment.copy_variables(), file_actions=actions, setsid=True)
    except OSError as error:
        raise RunError(f"the companion of this host cannot be started: {error.strerror or error}") from error
    finally:
        os.close(child_in)
        os.close(child_out)
    with os.fdopen(own_out, "wb") as writer, os.fdopen(own_in, "rb") as reader:
        writer.write(told)
        writer.close()
        return reader.readline(PACKET)


def _ask(place: RankPlace) -> LaunchEnvironment:
    """Introduce this rank to its host's companion, and take what it hands over."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        _connect(connection, place)
        if peer_of(connection)[1] != os.getuid():
            raise RunError("the companion of this host is another user's process; choose another torchrun --rdzv-id")
        connection.sendall(b"%d" % place.rank)
        connection.settimeout(place.join_timeout_s)
        try:
            variables, descriptors = _take(connection)
        except TimeoutError as error:
            raise RunError(
                f"the companion of this host said nothing for {place.join_timeout_s:g} s; see what the first rank "
                "of this host, and that of the first host, printed"
            ) from error
        except (OSError, ValueError) as error:
            raise RunError(f"the companion of this host ended ({error}); see what its first rank printed") from error
    launch = environment.read(variables)
    if launch is None:
        raise RunError("the companion of this host did not say where the run is coordinated")
    count = len(launch.shared)
    if len(descriptors) != 3 * count:
        raise RequestError(
            f"shared memory: expected {3 * count} descriptors, got {len(descriptors)}; raise the limit of open files "
            "with `ulimit -n`, or set MANIPLE_TRANSPORT=zmq"
        )
    pipes = tuple(zip(descriptors[count::2], descriptors[count + 1 :: 2], strict=True))
    return replace(launch, shared=tuple(descriptors[:count]), wakeup_pipes=pipes)


def _connect(connection: socket.socket, place: RankPlace) -> None:
    name, end, parent = socket_name(place), time.monotonic() + place.join_timeout_s, os.getppid()
    while True:
        try:
            connection.connect(name)
        except ConnectionRefusedError as error:
            if time.monotonic() > end:
                first = place.node * place.ranks_per_node
                raise RunError(
                    f"rank {first}, the first of this host, did not come within {place.join_timeout_s:g} s; every "
                    "rank's program must reach mp.world()"
                ) from error
            if os.getppid() != parent:
                raise RunError("torchrun ended before this rank had joined") from error
            time.sleep(_LOOK_S)
        else:
            return


def _take(connection: socket.socket) -> tuple[dict[str, str], list[int]]:
    """Receive variables, and descriptors that came with them or in further packets."""
    descriptors: array.array[int] = array.array("i")
    variables: dict[str, str] | None = None
    while True:
        room = socket.CMSG_SPACE(AT_ONCE * descriptors.itemsize)
        data, found, _, _ = connection.recvmsg(PACKET, room)
        for level, kind, held in found:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(held[: len(held) - len(held) % descriptors.itemsize])
        if not data:
            raise ValueError("it hung up")
        if data == b"end":
            break
        if data != b"more":
            variables = json.loads(data)
    if not isinstance(variables, dict):
        raise ValueError("it told no variables")  # noqa: TRY004 - what came is wrong, not a type of ours
    return variables, list(descriptors)


class _Store:
    """torchrun's store, as far as one entry of it goes.

    Args:
        place: of a rank that asks.

    Raises:
        RequestError: there is none.
        RunError: it cannot be reached.
    """

    def __init__(self, place: RankPlace) -> None:
        from datetime import timedelta

        from torch import distributed

        if not place.has_store:
            raise RequestError(
                f"MASTER_ADDR, MASTER_PORT: expected torchrun's store for a run over {place.nodes} hosts, got "
                "variables that were set otherwise; start it by torchrun, or by maniple run --nnodes --head"
            )
        host, _, port = place.meeting.rpartition(":")
        wait = timedelta(seconds=place.join_timeout_s)
        self._place = place
        try:
            store = distributed.TCPStore(host, int(port), is_master=False, timeout=wait)  # type: ignore[attr-defined]
        except RuntimeError as error:  # torch's own errors derive from it
            raise RunError(f"torchrun's store at {place.meeting} cannot be reached: {error}") from error
        self._store = distributed.PrefixStore(f"maniple/{place.run}", store)  # type: ignore[attr-defined]  # documented

    def publish(self, meeting: dict[str, str]) -> None:
        """Say where the run meets."""
        self._store.set("meeting", json.dumps(meeting))

    def look_up(self) -> dict[str, str]:
        """Wait until the first host says where the run meets.

        Raises:
            RunError: it does not in time.
        """
        try:
            found = json.loads(self._store.get("meeting"))
        except RuntimeError as error:
            raise RunError(
                f"rank 0 did not come within {self._place.join_timeout_s:g} s; every rank's "
                "program must reach mp.world()"
            ) from error
        if not isinstance(found, dict):
            raise RunError("torchrun's store does not say where the run meets")
        return found
