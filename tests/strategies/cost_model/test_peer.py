"""Peers run a body on other cores until a context ends; one that cannot is done without, and that is said."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from step_launches import MACHINE, launches

from maniple.models import model
from maniple.runtime.machine.machine import Machine
from maniple.strategies.cost_model import measurement, peer
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import Measurements, frames, measure, task_key
from maniple.strategies.cost_model.peer import Peers


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading end of a pipe, and the writing one, which is closed by who needs its end."""
    hears, says = os.pipe()
    yield hears, says
    os.close(hears)


def told(says: int) -> Callable[[], object]:
    """A body that says which process runs it."""
    return lambda: os.write(says, os.getpid().to_bytes(4, "big"))


def heard(hears: int) -> int:
    """The process that ran a body; 0 where none can any more."""
    return int.from_bytes(os.read(hears, 4), "big")


def test_peers_run_the_body_until_the_end_and_are_gone(pipe: tuple[int, int]) -> None:
    hears, says = pipe
    with Peers([None, None], lambda: [told(says)] * 2) as peers:
        peers.wait()
        processes = set(peers.processes)
        assert len(processes) == 2
        assert os.getpid() not in processes
        found = set[int]()
        while found != processes:  # each goes on, or this does not end
            found.add(heard(hears))
    assert peers.processes == ()
    os.close(says)
    while process := heard(hears):  # until nobody holds the writing end
        assert process in processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_there_need_be_none() -> None:
    with Peers([], list) as peers:
        peers.wait()
        assert peers.processes == ()


@pytest.mark.parametrize("how", ["raises", "ends", "never"])
def test_a_peer_that_does_not_run_is_ended_and_it_is_said(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    here, (never, other) = os.getpid(), os.pipe()
    monkeypatch.setattr(peer, "announce", said.append)
    monkeypatch.setattr(peer, "PATIENCE_S", 0.1 if how == "never" else 60.0)
    monkeypatch.setattr(peer, "TIMES", 0)

    def bind() -> Sequence[Callable[[], object]]:
        if os.getpid() != here:
            if how == "raises":
                raise ValueError
            os.read(never, 1) if how == "never" else os._exit(0)
        return [list]

    with Peers([None], bind) as peers:
        peers.wait()
        assert peers.processes == ()
    os.close(never)
    os.close(other)
    assert len(said) == 1
    assert "cores with less to do" in said[0]


def test_a_peer_that_cannot_be_started_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(peer, "announce", said.append)
    monkeypatch.setattr(os, "fork", full)
    with Peers([None], lambda: [list]) as peers:
        peers.wait()
    assert len(said) == 1


def test_a_task_is_timed_while_its_like_runs_on_another_core(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    hears, says = pipe
    monkeypatch.setattr(measurement, "spare_cores", lambda: [None])
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]

    def bind(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        del point, views, cores
        return told(says)

    ticks = iter(range(0, 10**9, 10**6))  # two calls of a millisecond make a run: few, so that the pipe takes all
    monkeypatch.setattr(peer, "cycle", iter)  # and the peer's are as few
    own = replace(launch, binder=bind)
    measure(own, 0, 1, frames(own, [0]), 1 << 16, lambda: next(ticks), others=1)
    os.close(says)
    found = set[int]()
    while process := heard(hears):
        found.add(process)
    assert len(found) == 2
    assert os.getpid() in found


def test_a_task_timed_alone_is_another_than_one_beside_others_and_stands_in_for_it() -> None:
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    keys = [task_key(launch, 0, 1, frames(launch, [0, 1]), beside=beside) for beside in (False, True)]
    assert keys[0] != keys[1]
    alone = Measured(Machine.cpu(1), Measurements.here(), passes=1)
    single = replace(
        launch,
        points=launch.points[:1],
        flops=launch.flops[:1],
        requirements=tuple(replace(need, rects=need.rects[:1]) for need in launch.requirements),
    )
    alone.task_ns(single)
    (key,) = alone.measurements.tasks
    assert not key.beside
    beside = Measured(MACHINE, alone.measurements, measuring=False)
    assert beside.sources(LaunchTasks.of(single)) == ["interpolated"]
