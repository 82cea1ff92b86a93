"""The launcher's variables: given back as they were, and every refusal names the variable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process import environment
from maniple.process.environment import LaunchEnvironment
from maniple.process.error import RequestError

HOME = Path.home()
GOOD = LaunchEnvironment(3, 4, 1, 1, 2, 2, 2, 3, "tcp://127.0.0.1:29400", "secret", "default", 7.5)


@given(
    nodes=st.integers(1, 5),
    per_node=st.integers(1, 5),
    data=st.data(),
    timeout=st.floats(1e-3, 1e6),
    mapper=st.none() | st.text(st.characters(codec="ascii", categories=["L"]), min_size=1),
)
def test_read_gives_back_what_was_told(
    nodes: int, per_node: int, data: st.DataObject, timeout: float, mapper: str | None
) -> None:
    rank = data.draw(st.integers(0, nodes * per_node - 1))
    told = LaunchEnvironment(
        rank=rank,
        world_size=nodes * per_node,
        local_rank=rank % per_node,
        node=rank // per_node,
        nodes=nodes,
        ranks_per_node=per_node,
        processors=2,
        cores=3,
        endpoint="tcp://127.0.0.1:1",
        token="t",
        mapper=mapper,
        deterministic=bool(nodes % 2),
        join_timeout_s=timeout,
        bound=tuple(range(6 * rank, 6 * rank + 6)) if rank % 2 else (),
        transport="unix" if rank % 2 else "shared",
        interface="10.0.0.1" if rank % 2 else "127.0.0.1",
    )
    assert environment.read(told.to_environ()) == told


def test_the_variables_that_every_rank_sees() -> None:
    told = GOOD.to_environ()
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"], told["MANIPLE_NODE"]) == ("3", "4", "1", "1")


def test_what_is_told_if_it_is_not_as_usual_has_one_list() -> None:
    unusual = replace(
        GOOD,
        shared=(3, 4),
        shared_from=2,
        device="cuda",
        transport="unix",
        interface="10.0.0.1",
        wakeup_pipes=((5, 6), (7, 8)),
        bound=(0,),
        mapper="one",
        record="one",
        log="one",
        report="one",
        machine="one",
        deterministic=True,
        encrypt_tiles=True,
        verify_tiles=True,
        memory_bytes=1,
        compiles=True,
    )
    usual = replace(GOOD, mapper=None)
    assert set(unusual.to_environ()) - set(usual.to_environ()) <= environment.CHOICES
    assert set(unusual.to_environ()) >= environment.CHOICES


def test_without_a_head_a_process_was_not_launched() -> None:
    told = GOOD.to_environ()
    del told["MANIPLE_HEAD"]
    assert environment.read(told) is None


def test_the_environment_of_this_process_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.to_environ().items():
        monkeypatch.setenv(name, value)
    assert environment.read() == GOOD
    assert environment.copy_variables()["MANIPLE_TOKEN"] == "secret"
    monkeypatch.delenv("MANIPLE_HEAD")
    assert environment.read() is None


@pytest.mark.parametrize("name", sorted(set(GOOD.to_environ()) - {"MANIPLE_HEAD", "MANIPLE_MAPPER"}))
def test_a_missing_variable_is_named(name: str) -> None:
    told = GOOD.to_environ()
    del told[name]
    with pytest.raises(RequestError, match=f"^{name}: "):
        environment.read(told)


@pytest.mark.parametrize("value", ["", " 1", "-1", "+1", "1_0", "1.0", "two", "٣", "9" * 5000])
@pytest.mark.parametrize(
    "name",
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MANIPLE_NODE", "MANIPLE_NODES", "MANIPLE_PROCESSORS", "MANIPLE_CORES"],
)
def test_a_malformed_count_is_named(name: str, value: str) -> None:
    with pytest.raises(RequestError, match=f"^{name}: "):
        environment.read({**GOOD.to_environ(), name: value})


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "soon"])
def test_a_join_timeout_is_a_time(value: str) -> None:
    with pytest.raises(RequestError, match=r"^MANIPLE_JOIN_TIMEOUT: "):
        environment.read({**GOOD.to_environ(), "MANIPLE_JOIN_TIMEOUT": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "4"), ("WORLD_SIZE", "5"), ("MANIPLE_NODE", "0"), ("MANIPLE_NODES", "3"), ("WORLD_SIZE", "0")],
)
def test_values_that_do_not_fit_together(name: str, value: str) -> None:
    with pytest.raises(RequestError, match=r"^(RANK|WORLD_SIZE|MANIPLE_NODE): "):
        environment.read({**GOOD.to_environ(), name: value})


def test_a_rank_beyond_the_world_is_refused_as_such() -> None:
    with pytest.raises(RequestError, match=r"^RANK: expected less than WORLD_SIZE 4, got 4"):
        environment.read({**GOOD.to_environ(), "RANK": "4", "MANIPLE_NODE": "2"})


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, HOME / ".cache" / "maniple"),
        ({"XDG_CACHE_HOME": "/caches"}, Path("/caches/maniple")),
        ({"XDG_CACHE_HOME": "caches"}, HOME / ".cache" / "maniple"),
        ({"XDG_CACHE_HOME": "/caches", "MANIPLE_CACHE": "/mine"}, Path("/mine")),
    ],
)
def test_the_cache_is_where_the_user_has_it(variables: dict[str, str], folder: Path) -> None:
    assert environment.cache_folder(variables) == folder


def test_a_cache_that_depends_on_where_one_is_is_refused() -> None:
    with pytest.raises(RequestError, match="MANIPLE_CACHE: expected an absolute path, got 'here'"):
        environment.cache_folder({"MANIPLE_CACHE": "here"})


@pytest.mark.parametrize("name", environment.HEAP_VARIABLES)
def test_a_user_who_sets_the_heap_is_heard(name: str) -> None:
    assert environment.sets_heap({name: "1"})
    assert not environment.sets_heap({name: "", "MALLOC_ARENA_MAX": "1"})
