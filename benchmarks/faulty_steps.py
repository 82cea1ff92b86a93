"""The program of `faults.py` for real processes: sums over regions, with a fault on one rank: `FAULT RANK STEP`."""

from __future__ import annotations

import os
import signal
import sys
import threading

import maniple as mp

fault, victim, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here = mp.world()
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
    elif fault == "exit":
        os._exit(3)
    elif fault == "leave":
        sys.exit(0)
