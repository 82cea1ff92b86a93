"""The supervisor: real processes and its real socket, with a coordinator that says what this test wants."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from stranger import Stranger

from maniple.process.error import RunError
from maniple.runtime.cluster import agent, supervisor
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import Event, Finish, Instruction, SendTo
from maniple.runtime.cluster.launcher import Launcher, RankCommand, RankProcess, Streams
from maniple.runtime.cluster.local import LocalLauncher
from maniple.runtime.cluster.phase import Phase
from maniple.runtime.cluster.supervisor import Supervisor
from maniple.runtime.transports.message import PROTOCOL, Failed, Hello, Message, Stop, encode


class Elsewhere(RankProcess):
    """A process that is no child of anybody's here: it ends when its handle says so."""

    def __init__(self, codes: list[int | None], *, dies: bool = True) -> None:
        self.codes, self.dies = codes, dies
        self.told: list[str] = []

    def poll(self) -> int | None:
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    def terminate(self) -> None:
        self.told.append("terminate")
        self.codes = [-signal.SIGTERM]

    def kill(self) -> None:
        self.told.append("kill")

    def wait(self, timeout_s: float) -> bool:
        self.told.append("wait")
        return self.dies


class Away(Launcher):
    """Gives handles that a test made; the last is refused."""

    def __init__(self, *handles: RankProcess) -> None:
        super().__init__()
        self.handles = list(handles)

    def start(self, command: RankCommand, streams: Streams) -> RankProcess:
        if not self.handles:
            raise RunError(f"rank {command.rank} cannot be started")
        os.write(streams.stdout, b"said\n")
        return self.handles.pop(0)


def command(*argv: str, rank: int = 0) -> RankCommand:
    return RankCommand(rank, rank, argv, {})


def test_what_was_reaped_is_sent_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    with Supervisor(Coordinator(1, 1, 60.0), "secret", None) as made:
        made.agent.spawn(LocalLauncher(), command(sys.executable, "-c", ""), tmp_path / "log", shown=False)
        process = made.agent.processes[0]
        process.terminate()
        assert [number for _, number in killed] == [signal.SIGTERM]
        assert process.wait(30)
        process.terminate()
        process.kill()
        assert not process.pass_on(signal.SIGUSR1, group=False)
        assert len(killed) == 1


def test_what_goes_to_many_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Message] = []

    def pack(message: Message) -> bytes:
        packed.append(message)
        return encode(message)

    class Telling:
        """Decides to tell a hundred of the same end, short and long, and ends."""

        def handle(self, event: Event, now: float) -> list[Instruction]:
            ends = [Stop("short"), Stop("long" * 5000)]
            told: list[Instruction] = [SendTo(b"%d" % rank, end) for end in ends for rank in range(100)]
            return [*told, Finish(0, None, None)]

    monkeypatch.setattr(supervisor, "encode", pack)
    with Supervisor(Telling(), "0" * 32, None) as watching:  # type: ignore[arg-type]  # it only asks it to handle events
        assert watching.watch().status == 0
    assert [len(encode(message)) > supervisor.SHARED_BYTES for message in packed] == [False, True]


def test_strangers_at_the_port_of_a_run_change_nothing() -> None:
    coordinator = Coordinator(2, 1, 60.0)
    hello = Hello(0, 0, 1, "h", 2, "tcp://127.0.0.1:1", PROTOCOL, 0)
    with Supervisor(coordinator, "secret", None) as made:
        for mechanism in (b"NULL", b"CURVE", b"PLAIN"):
            with Stranger(made.endpoint, mechanism) as stranger:
                stranger.ready()
                for record in (hello, Failed(0, "", "t", request=False)):
                    stranger.frame(encode(record))
                    stranger.frame(b"", more=True)
                assert stranger.is_let_go()
        assert made._receive() == []
        assert coordinator.phase is Phase.JOINING
        assert coordinator._members == {}


def test_a_process_that_is_no_child_is_watched_and_let_go_of(tmp_path: Path) -> None:
    process = Elsewhere([None, None, 0])
    with Supervisor(Coordinator(1, 1, 60.0), "secret", None) as made:
        made.agent.spawn(Away(process), command("far"), tmp_path / "log", shown=False)
        assert made.watch().status == 0
    assert process.told == ["kill", "wait"]
    assert (tmp_path / "log").read_text() == "said\n"


def test_an_interrupt_ends_a_process_that_is_no_child(tmp_path: Path) -> None:
    process = Elsewhere([None])
    with Supervisor(Coordinator(1, 1, 60.0), "secret", None) as made:
        made.agent.spawn(Away(process), command("far"), tmp_path / "log", shown=False)
        made._interrupts._interrupt(signal.SIGINT, None)
        assert made.watch().status == 130
    assert process.told == ["terminate", "kill", "wait"]


def test_no_signal_is_passed_on_where_a_handle_cannot(tmp_path: Path) -> None:
    process = Elsewhere([None])
    assert not process.pass_on(signal.SIGSTOP, group=True)
    assert process.told == []


def test_a_process_that_may_be_left_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stays, ends = Elsewhere([0], dies=False), Elsewhere([0])
    launcher = Away(stays, ends)
    with Supervisor(Coordinator(2, 1, 60.0), "secret", None) as made:
        made.agent.spawn(launcher, command("far"), tmp_path / "a", shown=False)
        made.agent.spawn(launcher, command("far", rank=1), tmp_path / "b", shown=False)
        assert made.watch().status == 0
    assert ends.told == ["kill", "wait"]
    assert capsys.readouterr().err == (
        f"maniple: the process of rank 0 may still run: it was killed {agent.END_S:.0f} s ago\n"
    )


def test_a_rank_that_cannot_be_started_ends_those_that_were(tmp_path: Path) -> None:
    first = Elsewhere([None])
    launcher = Away(first)
    with Supervisor(Coordinator(2, 1, 60.0), "secret", None) as made:
        made.agent.spawn(launcher, command("far"), tmp_path / "a", shown=False)
        with pytest.raises(RunError, match="rank 1 cannot be started"):
            made.agent.spawn(launcher, command("far", rank=1), tmp_path / "b", shown=False)
    assert first.told == ["kill", "wait"]
