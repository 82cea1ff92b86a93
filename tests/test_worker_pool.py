"""Searches on several processes: the same plan, whoever makes the proposals and whatever becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import maniple as mp
from maniple import worker_pool
from maniple.models import model
from maniple.strategies.interface.strategy import Problem, Progress
from maniple.strategies.soap.rounds import RoundState
from maniple.strategies.soap.soap import Soap
from maniple.worker_pool import WorkerPool

pytestmark = [pytest.mark.simulator, pytest.mark.ranks]
MACHINE = mp.Machine.preset("p100x4")
PROPOSALS = 400


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The processes that searches start, which wait for them; none is left in the end, and each made some items."""
    seen: list[int] = []
    items: list[object] = []
    step, handed_in = WorkerPool.step, WorkerPool.handed_in

    def waiting(self: WorkerPool, state: RoundState) -> RoundState:
        while self.ready < len(self.pids):
            state = self.gather(state, 1.0)
        seen[:] = self.pids or seen
        return step(self, state)

    def counting(self: WorkerPool, state: RoundState, round_: int, number: int, plain: list[object]) -> RoundState:
        items.append(plain)
        return handed_in(self, state, round_, number, plain)

    monkeypatch.setattr(worker_pool, "HIRE_S", 0.0)
    monkeypatch.setattr(worker_pool, "START_S", 0.0)
    monkeypatch.setattr(WorkerPool, "step", waiting)
    monkeypatch.setattr(WorkerPool, "handed_in", counting)
    yield seen
    assert items
    assert seen
    assert not [pid for pid in seen if is_there(pid)]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@cache
def alone() -> str:
    return mp.search(model("digits_cnn"), MACHINE, strategy="soap", proposals=PROPOSALS, cores=1).text()


def test_several_processes_find_what_one_finds(members: list[int]) -> None:
    plan = mp.search(model("digits_cnn"), MACHINE, strategy="soap", proposals=PROPOSALS, cores=3)
    assert plan.text() == alone()


def test_a_member_that_is_lost_changes_nothing(members: list[int]) -> None:
    killed: list[int] = []

    def watch(progress: Progress, elapsed_s: float) -> None:
        if progress.proposals >= 150 and not killed:
            killed.append(members[0])
            os.kill(killed[0], signal.SIGKILL)

    with pytest.warns(UserWarning, match=r"a search process is lost: it ended with status -9; 2 go on"):
        plan = mp.search(model("digits_cnn"), MACHINE, strategy="soap", proposals=PROPOSALS, cores=3, watch=watch)
    assert plan.text() == alone()


@pytest.mark.timeout(120)
def test_a_member_that_stops_answering_holds_nothing_up(members: list[int]) -> None:
    """What it says of a former round, when it goes on, is not read."""
    stopped: list[int] = []

    def watch(progress: Progress, elapsed_s: float) -> None:
        if progress.proposals >= 100 and not stopped:
            stopped.extend(members)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        if progress.proposals >= 390:
            for pid in stopped[1:]:
                os.kill(pid, signal.SIGCONT)

    plan = mp.search(model("digits_cnn"), MACHINE, strategy="soap", proposals=PROPOSALS, cores=3, watch=watch)
    assert len(stopped) == 2
    assert plan.text() == alone()


@pytest.mark.timeout(120)
def test_a_member_that_closes_its_output_and_lives_on_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "member"
    script.write_text("#!/bin/sh\nexec sleep 1000 >&-\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    strategy, problem = Soap(), Problem(model("digits_cnn"), MACHINE)
    state: RoundState = strategy.init(problem)
    with WorkerPool(strategy, problem, 1, None) as hands:
        hands.attend(worker_pool.HIRE_S, worker_pool.START_S)
        with pytest.warns(UserWarning, match=r"lost: it ended with status -9"):
            hands.gather(state, 60.0)
        assert not hands.pids


def test_ctrl_c_keeps_the_best_and_one_finds_it_again(members: list[int]) -> None:
    """It comes in the middle of a round, when some items are out."""

    def interrupt(progress: Progress, elapsed_s: float) -> None:
        if progress.proposals >= 200:
            signal.raise_signal(signal.SIGINT)

    plan = mp.search(model("digits_cnn"), MACHINE, strategy="soap", proposals=10**6, cores=3, watch=interrupt)
    proposals = int(str(dict(dict(plan.explanation)[""])["proposals"]))
    again = mp.search(model("digits_cnn"), MACHINE, strategy="soap", proposals=proposals, cores=1)
    assert again.to_json() == plan.to_json()


def test_no_member_outlives_a_search_that_is_killed(tmp_path: Path) -> None:
    """Kill -9 leaves a search no time for anything: its members see the end of their input."""
    script = tmp_path / "search.py"
    script.write_text(
        "import maniple as mp\n"
        "from maniple import worker_pool\n"
        "from maniple.models import model\n"
        "attend = worker_pool.WorkerPool.attend\n"
        "def telling(self, *given):\n"
        "    attend(self, *given)\n"
        "    if self.ready == 2:\n"
        "        print('ready', flush=True)\n"
        "worker_pool.WorkerPool.attend, worker_pool.HIRE_S = telling, 0.0\n"
        "mp.search(model('digits_cnn'), mp.Machine.preset('p100x4'), strategy='soap', budget=1e4, cores=3)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as search:  # type: ignore[call-overload]
        assert search.stdout.readline() == b"ready\n"
        search.kill()
        # Members have the same standard error: it ends when the last of them does.
        search.communicate(timeout=60)


def test_a_graph_that_others_cannot_read_is_searched_here() -> None:
    @mp.operator("b k -> b k")
    def doubled_for_crews(x: object) -> object:
        return x * 2  # type: ignore[operator]

    graph = mp.Graph("own")
    x, y = graph.input("x", (8, 16)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(doubled_for_crews(graph.linear(x, 4)), y))
    strategy, problem = Soap(), Problem(graph, MACHINE)
    state: RoundState = strategy.init(problem)

    def hired() -> None:
        with WorkerPool(strategy, problem, 1, None) as hands:
            hands.attend(worker_pool.HIRE_S, worker_pool.START_S)
            while hands.pids:
                hands.gather(state, 1.0)

    with pytest.warns(UserWarning, match=r"cannot take part: .*doubled_for_crews.*; 1 go on"):
        hired()
