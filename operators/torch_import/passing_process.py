"""An import in a process that passes: what torch needs to export a module goes with it.

torch.export imports a compiler, an algebra system and 1,200 modules, some 120 MiB that no step of training needs. A
forked process has the module as it is, and sends back what a graph file has.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from select import select

import torch

from maniple.process.quiet_thread import QuietThread

_COMPILER = "torch._dynamo"
"""What torch.export imports first, and keeps most for."""
IDLE_S = 15.0
"""A process that works in neither of two such stretches, and sends nothing, waits for what will not come."""
LENGTH = 8
"""Bytes that say how many follow."""


def can_pass(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether an import gains by a process of its own, and may have one.

    It gains nothing where the compiler is loaded. A forked process has one thread, so it could wait for a lock that
    another one held, and it can use no GPU.

    Args:
        tensors: all that the module and its arguments hold.
    """
    return (
        sys.platform == "linux"
        and _COMPILER not in sys.modules
        and all(
            thread is threading.current_thread() or isinstance(thread, QuietThread) for thread in threading.enumerate()
        )
        and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        and all(tensor.device.type in {"cpu", "meta"} for tensor in tensors)
    )


def made_in_passing(make: Callable[[], bytes]) -> bytes:
    """What a function gives, called in a forked process; nothing where it raises, or that process ends otherwise.

    Whoever gets nothing calls the function here: what went wrong there does so again, with its causes. A process that
    has not worked for half a minute waits for something that no fork has, a lock of a library's own thread: it is
    ended, and gives nothing. What it had sent by then is no whole, and nothing either.

    Args:
        make: changes nothing that this process needs.
    """
    reads, writes = os.pipe()
    _flush()  # else the other process would write it, too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: `can_pass` has looked at them
            child = os.fork()
    except OSError:  # no memory for one, or no number
        os.close(reads)
        os.close(writes)
        return b""
    if child == 0:
        _be_child(make, writes)
    os.close(writes)
    try:
        return _received(child, reads)
    except BaseException:
        os.kill(child, 9)
        raise
    finally:
        with suppress(ChildProcessError):  # whoever waits for any child has heard of this one
            os.waitpid(child, 0)


def _received(child: int, reads: int) -> bytes:
    """What a process sends, whole; nothing where it ends before, or works no more and is ended."""
    parts, worked = list[bytes](), -1
    with os.fdopen(reads, "rb", buffering=0) as file:
        while True:
            if not select([file], [], [], IDLE_S)[0]:
                before, worked = worked, _processor_time(child)
                if worked == before:
                    os.kill(child, 9)
                    return b""
                continue
            part = file.read(1 << 20)
            if not part:
                break
            parts.append(part)
    sent = b"".join(parts)
    return sent[LENGTH:] if len(sent) - LENGTH == int.from_bytes(sent[:LENGTH], "little") else b""


def _processor_time(process: int) -> int:
    """How long a process has worked, in the system's ticks; fields 14 and 15 of proc_pid_stat(5)."""
    told = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    return sum(map(int, told.rpartition(")")[2].split()[11:13]))


def _be_child(make: Callable[[], bytes], writes: int) -> None:
    """Send what a function gives, and end without whatever the program has for its end."""
    try:
        torch.set_num_threads(1)  # the others are in the parent alone, and would be waited for
        sent = make()
        _flush()  # what the module's own Python has printed
        with os.fdopen(writes, "wb") as file:
            file.write(len(sent).to_bytes(LENGTH, "little") + sent)
    finally:
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            stream.flush()
