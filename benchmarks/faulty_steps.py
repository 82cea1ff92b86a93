"""The program of `faults.py` for real processes: calls and exchanges, with a fault on one rank: `FAULT RANK STEP`.

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
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import tempfile
import threading

from maniple.runtime.control import world

fault, victim, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here = world.current()  # as mp.world(), which imports torch
everyone = here.control.gather(b"%d" % os.getpid())
if here.rank == 0:
    print("pids", *(part.decode() for part in everyone), flush=True)
for step in range(6):
    here.control.call(f"step {step}", b"%d" % step)
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
