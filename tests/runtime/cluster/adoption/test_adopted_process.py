"""Adopted processes: real ones of another parent, which may or may not have asked how they ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from maniple.runtime.cluster.adoption.adopted_process import AbsentProcess, AdoptedProcess
from maniple.runtime.cluster.coordinator_event import UNTOLD, ending

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="descriptors of processes are Linux's")


def started(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)


def wait_for_end(process: AdoptedProcess) -> None:
    poller = select.poll()
    poller.register(process._descriptor, select.POLLIN)
    assert poller.poll(30_000)


@pytest.mark.parametrize(
    ("code", "status"), [("", 0), ("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_how_it_ended_is_known_though_its_parent_has_not_asked(code: str, status: int) -> None:
    child = started(code)
    process = AdoptedProcess(child.pid)
    wait_for_end(process)
    assert process.poll() == status
    child.wait()
    assert process.poll() == status  # and for ever
    assert process.wait(1.0)


def test_how_it_ended_is_known_or_said_to_be_unknown_once_its_parent_has_asked() -> None:
    child = started("import sys; sys.exit(3)")
    process = AdoptedProcess(child.pid)
    child.wait()
    assert process.poll() in {3, UNTOLD}  # Linux keeps it since 6.15
    assert process.wait(1.0)
    assert ending(UNTOLD) == "ended, and nothing says how"


def test_it_is_ended_with_its_group_and_nobody_else_is() -> None:
    child = started(
        "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])"
    )
    process = AdoptedProcess(child.pid)
    assert process.poll() is None
    assert process.pass_on(0, group=False)
    process.kill()
    assert child.wait(30) == -signal.SIGKILL
    assert process.poll() is not None
    assert not process.pass_on(signal.SIGTERM, group=True)
    process.kill()
    assert process.wait(1.0)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return
    raise AssertionError("what it started still runs")


def test_a_process_that_has_ended_is_not_adopted() -> None:
    child = started("")
    child.wait()
    with pytest.raises(ProcessLookupError):
        AdoptedProcess(child.pid)
    assert AbsentProcess().poll() == UNTOLD
