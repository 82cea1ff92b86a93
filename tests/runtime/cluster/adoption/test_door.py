"""The door of a host: who comes is adopted once, is told what it must know, and nobody else is answered."""

from __future__ import annotations

import os
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from maniple.process.environment import LaunchEnvironment
from maniple.process.error import RequestError, RunError
from maniple.process.rank_place import RankPlace
from maniple.runtime.cluster.adoption.door import Door
from maniple.runtime.cluster.agent import Agent
from maniple.runtime.cluster.launcher import LaunchRequest
from maniple.runtime.cluster.run import Setting
from maniple.runtime.control import attachment

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="abstract sockets are Linux's")

PLACE = RankPlace(0, 2, 0, 2, f"alpha:{os.getpid()}", "a run 0", has_store=False, join_timeout_s=5.0)


@pytest.fixture
def request_of_two() -> LaunchRequest:
    return LaunchRequest((__file__,), ranks_per_node=2, bind=False)


def open_door(agent: Agent, request: LaunchRequest, place: RankPlace = PLACE) -> Door:
    return Door(place, request, Setting(range(2), "tcp://127.0.0.1:9", "f" * 32, Path(), "127.0.0.1"), agent)


def attached(place: RankPlace, agent: Agent) -> LaunchEnvironment | Exception:
    """What a rank that comes is told, while the agent looks after its door."""
    found: list[LaunchEnvironment | Exception] = []

    def come() -> None:
        try:
            found.append(attachment._ask(place))
        except (RunError, RequestError) as error:
            found.append(error)

    thread = threading.Thread(target=come)
    thread.start()
    while thread.is_alive():
        agent.exits()
        thread.join(0.01)
    return found[0]


def test_ranks_share_what_the_door_opened_and_the_name_is_free_again(request_of_two: LaunchRequest) -> None:
    agent = Agent()  # never left: the processes that it has adopted are this one and its parent
    open_door(agent, request_of_two)
    told = [attached(replace(PLACE, rank=rank, local_rank=rank), agent) for rank in range(2)]
    files = []
    for rank, launch in enumerate(told):
        assert isinstance(launch, LaunchEnvironment)
        assert (launch.rank, launch.world_size, launch.endpoint, launch.token) == (
            rank,
            2,
            "tcp://127.0.0.1:9",
            "f" * 32,
        )
        assert launch.bound == ()
        files.append([os.fstat(descriptor).st_ino for descriptor in launch.shared])
        assert len(launch.wakeup_pipes) == 2
    assert files[0] == files[1]
    assert len(set(files[0])) == 2
    assert set(agent.processes) == {0, 1}
    open_door(Agent(), request_of_two).close()  # all have come, so the name is nobody's


def test_a_rank_comes_once_and_a_stranger_is_not_answered(request_of_two: LaunchRequest) -> None:
    agent = Agent()
    door = open_door(agent, request_of_two)
    assert isinstance(attached(replace(PLACE, rank=1, local_rank=1), agent), LaunchEnvironment)
    again = attached(replace(PLACE, rank=1, local_rank=1), agent)
    assert isinstance(again, RunError)
    assert "the companion of this host ended (it hung up)" in str(again)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(attachment.socket_name(PLACE))
        stranger.sendall(b"rank one")
        agent.exits()
        assert stranger.recv(64) == b""
    door.close()
    assert set(agent.processes) == {0, 1}


def test_another_run_under_the_same_name_is_refused(request_of_two: LaunchRequest) -> None:
    place = replace(PLACE, run="another 0")
    first = Agent()
    door = open_door(first, request_of_two, place)
    with pytest.raises(RequestError, match=r"another run on this host has the meeting alpha:\d+ and the id 'another'"):
        open_door(Agent(), request_of_two, place)
    door.close()


def test_nobody_waits_for_a_first_rank_for_ever() -> None:
    lonely = replace(PLACE, rank=1, local_rank=1, run="lonely 0", join_timeout_s=0.1)
    with pytest.raises(RunError, match=r"rank 0, the first of this host, did not come within 0\.1 s"):
        attachment._ask(lonely)
