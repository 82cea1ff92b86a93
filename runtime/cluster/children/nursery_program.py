"""The program of a nursery: imports once what ranks import, and then is forked for each of them.

Run as a file, by `python nursery_program.py SOCKET PARENT MODULE ENTRY ROOM`: where ranks are asked for, the process
that asks, what is imported, where imports look first, and nothing but room. It imports nothing of Maniple before it
looks there.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

__all__: list[str] = []

# A command is as long as a socket takes at most, which is less.
_LARGEST = 1 << 20


class Asked(NamedTuple):
    """A rank that is to be forked.

    Args:
        rank: which.
        argv: its command.
        variables: what it has in its environment beside the nursery's.
        streams: its input, output and errors.
        parent: the process that asked for it.
        imported: whether it may go on in this interpreter.
    """

    rank: int
    argv: list[str]
    variables: dict[str, str]
    streams: tuple[int, int, int]
    parent: int
    imported: bool


def main(arguments: list[str]) -> Asked:
    """Import, and serve; returns in ranks only."""
    number, parent, module, entry, _ = arguments
    if not sys.flags.safe_path:
        sys.path[0] = entry  # in place of this file's folder
    from maniple.runtime.cluster.parent_death import tie_to

    tie_to(int(parent))
    connection = socket.socket(fileno=int(number))
    imported = _import(module)
    gc.collect()
    gc.freeze()  # ranks do not look through, and so do not copy, what they share
    while True:
        told, streams, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        if not told:
            os._exit(0)
        asked: dict[str, Any] = json.loads(told)
        place = (streams[0], streams[1], streams[2]), int(parent)
        rank = Asked(asked["rank"], asked["argv"], asked["variables"], *place, imported)
        if _fork(rank, connection):
            return rank
        for stream in streams:
            os.close(stream)


def _import(module: str) -> bool:
    """Import what ranks share, and say whether they may be forked from what it has made of this process.

    Where they may not, or it cannot be imported, that is said, and each rank begins anew.
    """
    why = ""
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001 - the user's environment may have any fault
        why = f"cannot be imported ({type(error).__name__}: {error})"
    torch = sys.modules.get("torch")
    if threading.active_count() > 1:
        why = why or "starts threads"
    elif torch is not None and torch.cuda.is_initialized():
        why = why or "uses a GPU"
    if why:
        sys.stderr.write(f"maniple: {module} {why}, so each rank imports for itself\n")
    return not why


def _fork(rank: Asked, connection: socket.socket) -> bool:
    """Fork a rank that is a child of who asked for it, and tell its number; says whether this process is the rank."""
    (told, tells), (waits, goes) = os.pipe(), os.pipe()
    between = _fork_or_fail(rank)
    if between == 0:
        os.close(told)
        os.close(goes)
        if _fork_or_fail(rank) != 0:
            os._exit(0)
        _wait_for_parent(rank, tells, waits, connection)
        return True
    for end in (tells, waits):
        os.close(end)
    with os.fdopen(told, "rb") as file:
        pid = file.read()  # ends with the go-between, if that could fork nothing
    if between > 0:
        os.waitpid(between, 0)
    said = {"rank": rank.rank, "pid": int(pid)} if pid else {"rank": rank.rank, "status": 1}
    connection.send(json.dumps(said).encode())
    with suppress(BrokenPipeError):  # it was killed meanwhile
        os.write(goes, b"." if pid else b"")
    os.close(goes)
    return False


def _wait_for_parent(rank: Asked, tells: int, waits: int, connection: socket.socket) -> None:
    """Wait until this process is the child of who asked for it, and known there; else say that it was, and end."""
    from maniple.runtime.cluster.parent_death import tie_to

    os.setsid()
    for standard, stream in enumerate(rank.streams):
        os.dup2(stream, standard)
        os.close(stream)
    with suppress(BrokenPipeError):  # the nursery was killed
        os.write(tells, b"%d" % os.getpid())
    os.close(tells)
    if os.read(waits, 1) != b".":
        with suppress(OSError):
            connection.send(json.dumps({"orphan": os.getpid()}).encode())
        os._exit(1)
    connection.close()
    os.close(waits)
    tie_to(rank.parent)


def _fork_or_fail(rank: Asked) -> int:
    """Fork; minus one where the system refuses, which the rank's log says."""
    try:
        return os.fork()
    except OSError as error:
        os.write(rank.streams[2], f"maniple: this rank cannot be started: {error.strerror or error}\n".encode())
        return -1


def go_on(rank: Asked) -> None:
    """Be the program of a rank."""
    from maniple.runtime.cluster.children.becoming import become

    become(rank.argv, rank.variables, imported=rank.imported)


if __name__ == "__main__":
    go_on(main(sys.argv[1:]))
