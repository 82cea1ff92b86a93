"""`maniple run`, or a program, in a process that has imported what it and its ranks import: a fork, for all tests.

What is left out is imports, and the loading of compiled code. The nursery of its ranks is a fork of this process, made
while it had no threads; the real one is an interpreter of its own: test_restarts.py, test_nursery.py and others begin
with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch
from namespaces import enter

import maniple as mp
import maniple.rank_imports as rank_imports
from maniple import cli
from maniple.models import digits_cnn
from maniple.process import environment
from maniple.runtime.cluster import agent, host_run, local, run, supervisor
from maniple.runtime.cluster.children import nursery, nursery_program
from maniple.runtime.cluster.children.becoming import become
from maniple.runtime.cluster.children.child_process import ChildProcess, LocalProcess
from maniple.runtime.cluster.children.nursery import suits
from maniple.runtime.cluster.launcher import LaunchRequest, Streams
from maniple.runtime.execution.rank import RankRuntime
from maniple.testing import local_worlds

with suppress(ImportError):  # the examples load their images by it
    import_module("sklearn.datasets")


def load_kernels() -> None:
    """Train a step on two processors, so that the compiled code of such a step is loaded, and leave nothing of it."""
    graph = digits_cnn(4)
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    (world,) = local_worlds(1, processors=2)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
        trainer.step(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    RankRuntime.of(world).close()


LOADED = (rank_imports, agent, host_run, run, supervisor)
THREADS = dict.fromkeys(environment.THREAD_VARIABLES, "1")
"""What numerical libraries read as they were imported: for ranks that have other counts there is a real nursery."""
NURSERIES = 2
"""How many may be asked for, one after the other: a program may launch twice, and a launch begin again."""


def main(arguments: Sequence[str]) -> None:
    """Be a launcher or a program in a given place, with given variables; or a nursery that it asks for; or a rank."""
    given = json.loads(arguments[0])
    sys.path.remove(str(Path(__file__).parent))
    if given["host"]:
        enter(given["host"])
    if given["interruptible"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["variables"])
    ready: list[tuple[socket.socket, int]] = []
    for _ in range(NURSERIES):
        asks, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        prepared = os.fork()
        if prepared == 0:
            for other in (asks, *(before for before, _ in ready)):
                other.close()
            be_nursery(answers)
            return
        answers.close()
        ready.append((asks, prepared))

    def start(
        argv: Sequence[str], streams: Streams, environ: Mapping[str, str], inherited: Sequence[int]
    ) -> ChildProcess | LocalProcess:
        if THREADS.items() - environ.items() or not ready:
            return LocalProcess(argv, streams, environ, inherited)
        asks, prepared = ready.pop()
        told = json.dumps({"argv": list(argv), "variables": dict(environ), "inherited": list(inherited)})
        with asks:
            socket.send_fds(asks, [told.encode()], [streams.stdout, streams.stderr, *inherited])
        return ChildProcess(prepared)

    nursery.LocalProcess = start  # type: ignore[misc,assignment]
    local.suits = suits_alone
    _, first, *_ = words = given["words"]
    if first == "-m":
        cli.main(words[3:])
        return
    sys.path[0] = str(Path(first).resolve().parent)
    sys.excepthook = sys.__excepthook__  # it is no rank, unless its variables say so
    become(words, {}, imported=True)


def suits_alone(request: LaunchRequest, ranks: int) -> bool:
    """Say whether ranks may be forked: one alone too, where it has as many threads as this process."""
    return suits(request, 2 if request.cores == 1 else ranks)


def be_nursery(answers: socket.socket) -> None:
    """Wait until a nursery is asked for, and be it; returns in ranks, whose program has ended."""
    told, received, _, _ = socket.recv_fds(answers, 1 << 20, 250)
    answers.close()
    if not told:
        os._exit(0)  # the launcher needed none
    asked = json.loads(told)
    os.setsid()
    wanted = [1, 2, *asked["inherited"]]
    above = max(*wanted, *received) + 1
    copies = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, above) for number in received]
    for number in received:
        os.close(number)
    for copy, number in zip(copies, wanted, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.environ.clear()
    os.environ.update(asked["variables"])
    nursery_program.go_on(nursery_program.main(asked["argv"][2:]))


if __name__ == "__main__":
    main(sys.argv[1:])
else:
    load_kernels()
