"""The place that torchrun gives a rank, as its variables say it."""

from __future__ import annotations

import pytest

from maniple.process import environment
from maniple.process.error import RequestError

TOLD = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "alpha",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job 7", "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip


def test_what_torchrun_says_is_a_place() -> None:
    place = environment.read_place(TOLD)
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.ranks_per_node) == (5, 8, 1, 2)
    assert (place.node, place.nodes) == (2, 4)
    assert (place.meeting, place.run, place.has_store) == ("alpha:29500", "job 7 2", True)
    assert environment.is_launched(TOLD)
    assert environment.own_rank(TOLD) == 5
    assert environment.read(TOLD) is None


def test_each_try_and_each_run_has_a_name_of_its_own() -> None:
    again = environment.read_place({**TOLD, "TORCHELASTIC_RESTART_COUNT": "3"})
    assert again is not None
    assert again.run == "job 7 3"


def test_nobody_is_started_by_part_of_these_variables() -> None:
    for name in environment.PEER_VARIABLES:
        told = {other: value for other, value in TOLD.items() if other != name}
        assert environment.read_place(told) is None
        assert not environment.is_launched(told)
        assert environment.own_rank(told) is None


def test_our_own_launcher_comes_first() -> None:
    assert environment.read_place({**TOLD, "MANIPLE_HEAD": "tcp://127.0.0.1:1"}) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"LOCAL_RANK": ""}, "LOCAL_RANK: expected a value beside RANK and MASTER_ADDR, got none"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT: expected an integer of at least 1, got 'http'"),
        ({"RANK": "8"}, "expected hosts of as many ranks each, numbered host by host"),
        ({"LOCAL_WORLD_SIZE": "3"}, "expected hosts of as many ranks each, numbered host by host"),
        ({"LOCAL_RANK": "0"}, "expected hosts of as many ranks each, numbered host by host"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(change: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        environment.read_place({**TOLD, **change})


def test_options_come_by_our_own_variables() -> None:
    told = {"MANIPLE_TRANSPORT": "zmq", "MANIPLE_VERIFY_TILES": "1", "MANIPLE_JOIN_TIMEOUT": "5"}
    place = environment.read_place({**TOLD, **told})
    assert place is not None
    assert (place.transport, place.verify_tiles, place.encrypt_tiles, place.join_timeout_s) == ("zmq", True, False, 5.0)
