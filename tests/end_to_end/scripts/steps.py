"""A program that joins, calls a few times, and does on one rank what its arguments say: `steps.py [FAULT] [RANK]`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

from maniple.process.error import RequestError
from maniple.runtime.control import world

fault = sys.argv[1] if len(sys.argv) > 1 else "none"
victim = int(sys.argv[2]) if len(sys.argv) > 2 else 1


def say(line: str) -> None:
    """One write: under torchrun (`python -u`), print writes a line and its end apart, and two ranks share a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


here = world.current()
mine = here.rank == victim
everyone = here.control.gather(b"%d" % os.getpid())
say(f"pids {' '.join(part.decode() for part in everyone)}")

for step in range(3):
    here.control.call(f"step {step}", b"batch %d" % step)
    here.control.gather(b"")

if fault == "kill" and mine:
    os.kill(os.getpid(), signal.SIGKILL)
elif fault == "stop" and mine:
    os.kill(os.getpid(), signal.SIGSTOP)
elif fault == "raise" and mine:
    raise ValueError("the batch is sour")
elif fault == "request":
    raise RequestError("batch: expected at least 1 sample, got 0")
elif fault == "diverge":
    here.control.call("evaluate" if mine else "step 3")
elif fault == "inputs":
    here.control.call("step 3", b"other" if mine else b"batch 3")
elif fault == "early" and mine:
    sys.exit(0)

elif fault == "lock" and mine:
    ctypes.PyDLL(None).sleep(7)
elif fault == "hang" and mine:
    threading.Event().wait(60)
elif fault == "patience" and mine:
    with here.busy(60):
        ctypes.PyDLL(None).sleep(4)

if fault in {"lock", "patience"}:
    here.control.gather(b"")
    fault = "none"
if fault == "wait":
    threading.Event().wait(60)
elif fault != "none":
    here.control.gather(b"")  # the rank at fault does not come, or comes from elsewhere
    here.control.gather(b"")
    threading.Event().wait(60)
say(f"rank {here.rank} of {here.size} done")
