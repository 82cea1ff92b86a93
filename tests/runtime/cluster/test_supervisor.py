"""The supervisor: real processes and its real socket, with a head that says what this test wants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from stranger import Stranger

from maniple.runtime.cluster import supervisor
from maniple.runtime.cluster.coordinator import Coordinator, Phase
from maniple.runtime.cluster.supervisor import Supervisor
from maniple.runtime.transports.message import PROTOCOL, Failed, Hello, encode

TIMEOUT_S = 20.0


def until(what: object) -> None:
    end = monotonic() + TIMEOUT_S
    while not what():  # type: ignore[operator]
        assert monotonic() < end
        sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system cannot look at an end without reaping it")
@pytest.mark.parametrize("code", [0, 3, -signal.SIGKILL])
def test_an_end_is_seen_without_giving_the_number_away(code: int) -> None:
    end = f"sys.exit({code})" if code >= 0 else f"os.kill(os.getpid(), {-code})"
    process = subprocess.Popen([sys.executable, "-c", f"import os, sys; {end}"], start_new_session=True)
    until(lambda: supervisor._ended(process) is not None)
    assert supervisor._ended(process) == code
    os.killpg(process.pid, 0)  # the number is still this group's, so nobody else's
    assert process.wait() == code
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_what_was_reaped_is_sent_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    with Supervisor(Coordinator(1, 1, 60.0), "secret", None) as made:
        made.spawn([sys.executable, "-c", ""], dict(os.environ), tmp_path / "log", shown=False)
        (process,) = made._processes
        made._kill(0, signal.SIGTERM)
        assert killed == [(process.pid, signal.SIGTERM)]
        process.wait()
        made._kill(0, signal.SIGTERM)
        made._signal(0, signal.SIGTERM)
        assert len(killed) == 1


def test_strangers_at_the_port_of_a_run_change_nothing() -> None:
    head = Coordinator(2, 1, 60.0)
    hello = Hello(0, 0, 1, "h", 2, "tcp://127.0.0.1:1", PROTOCOL, 0)
    with Supervisor(head, "secret", None) as made:
        for mechanism in (b"NULL", b"CURVE", b"PLAIN"):
            with Stranger(made.endpoint, mechanism) as stranger:
                stranger.ready()
                for record in (hello, Failed(0, "", "t", request=False)):
                    stranger.frame(encode(record))
                    stranger.frame(b"", more=True)
                assert stranger.is_let_go()
        assert made._receive() == []
        assert head.phase is Phase.JOINING
        assert head._members == {}
