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

import torch

from maniple.process.quiet_thread import QuietThread

_COMPILER = "torch._dynamo"
"""What torch.export imports first, and keeps most for."""


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

    Whoever gets nothing calls the function here: what went wrong there does so again, with its causes.

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
        with os.fdopen(reads, "rb") as file:
            return file.read()
    except BaseException:
        os.kill(child, 9)
        raise
    finally:
        with suppress(ChildProcessError):  # whoever waits for any child has heard of this one
            os.waitpid(child, 0)


def _be_child(make: Callable[[], bytes], writes: int) -> None:
    """Send what a function gives, and end without whatever the program has for its end."""
    try:
        torch.set_num_threads(1)  # the others are in the parent alone, and would be waited for
        sent = make()
        _flush()  # what the module's own Python has printed
        with os.fdopen(writes, "wb") as file:
            file.write(sent)
    finally:
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            stream.flush()
