"""Launches and programs that are forked from one process, which has imported torch and Maniple for all tests."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from namespaces import inner, interruptible

from maniple.process.environment import THREAD_VARIABLES
from maniple.runtime.cluster.children.nursery import Nursery
from maniple.runtime.cluster.launcher import RankCommand, Streams

LAUNCH = [sys.executable, "-m", "maniple.cli", "run"]
THREADS = "OMP_NUM_THREADS"  # torch reads it as it is imported
BEGUN_S = 60.0
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


@contextmanager
def forked() -> Iterator[type[subprocess.Popen[Any]]]:
    """Give a `Popen` whose `maniple run` is forked, and whose Python files are if it `forks_files`.

    All else it starts as ever: what is given other threads than this process's imports had, or another place to look
    for modules, imports them itself.
    """
    numbers, path = itertools.count(), os.environ.get("PYTHONPATH", "")
    found = os.pathsep.join([str(Path(__file__).parent), *filter(None, [path])])
    variables = {**dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONPATH": found, "PYTHONUNBUFFERED": "1"}
    argv = (sys.executable, "-m", "forked_launch")
    with pytest.MonkeyPatch.context() as patch:  # what a nursery has is what this process has
        for name, value in variables.items():
            patch.setenv(name, value)
        home = Nursery(RankCommand(0, 0, argv, {}), Streams(None, 1, 2), "forked_launch")

    class Forking(subprocess.Popen[Any]):
        forks_files = False

        def _execute_child(self, *given: Any, **named: Any) -> None:
            start = super()._execute_child  # type: ignore[misc]
            told = inspect.signature(start).bind(*given, **named).arguments
            host, words = inner([str(word) for word in told["args"]])
            environ = dict(os.environ if told["env"] is None else told["env"])
            heard = told["preexec_fn"] is interruptible
            prepared = told["preexec_fn"] is not None and not heard
            others = told["shell"], told["pass_fds"], prepared, environ.get("PYTHONPATH", "") != path
            is_file = words[0] == sys.executable and words[1].endswith(".py") and environ.get(THREADS) == "1"
            if (words[:4] != LAUNCH and not (self.forks_files and is_file)) or any(others):
                start(*given, **named)
                return
            place = {"folder": str(told["cwd"] or Path.cwd()), "host": host, "interruptible": heard}
            launch = {**place, "variables": environ, "words": words}
            ends = told["p2cread"], told["c2pwrite"], told["errwrite"]
            streams = Streams(*(number if end == -1 else end for number, end in enumerate(ends)))
            command = RankCommand(next(numbers), 0, (*argv, json.dumps(launch)), {})
            home.bear(command, streams)
            until = time.monotonic() + BEGUN_S
            while (child := home.find(command.rank)) is None:
                assert home.status(command.rank) is None
                assert time.monotonic() < until
                time.sleep(0.002)
            self.pid, self._child_created = child.pid, True
            self._close_pipe_fds(*(told[name] for name in PIPES))

    try:
        yield Forking
    finally:
        home.complete()
        home.wait(BEGUN_S)
