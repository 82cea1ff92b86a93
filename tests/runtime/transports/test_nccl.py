"""NCCL as a fabric, played by Gloo on tensors of the host: stores, meetings, calls and refusals; no device is here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import ProcessGroupGloo, is_nccl_available

from maniple.process import torch_internals
from maniple.process.error import RunError
from maniple.runtime.transports.fabric import Call
from maniple.runtime.transports.nccl import NcclCollectives, NcclFabric

TIMEOUT_S = 30.0
INTERFACE = "127.0.0.1"


class Played(ProcessGroupGloo):
    """A group of Gloo that ends as one of NCCL does."""

    ended = False

    def abort(self) -> None:
        self.ended = True


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The groups that are made, in place of those of NCCL."""
    made: list[Any] = []

    def play(store: Any, rank: int, size: int, _device: torch.device) -> Played:
        made.append(Played(store, rank, size, timedelta(seconds=TIMEOUT_S)))
        return made[-1]

    monkeypatch.setattr(torch_internals, "nccl_group", play)
    return made


@pytest.fixture
def ends(groups: list[Any]) -> Iterator[list[NcclFabric]]:
    made = [NcclFabric(rank, INTERFACE) for rank in range(3)]
    for end in made:
        end.device = torch.device("cpu")
    yield made
    for end in made:
        end.close()
        end.close()  # again
    assert all(group.ended for group in groups)


def at_once(*calls: Any) -> None:
    """Do what all ranks do at one time; raises what one of them raised."""
    raised: list[BaseException] = []

    def do(call: Any) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    threads = [threading.Thread(target=do, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    if raised:
        raise raised[0]


def meet(ends: list[NcclFabric], group: tuple[int, ...]) -> None:
    addresses = [ends[rank].open(group) for rank in group]
    assert all(ends[rank].is_open(group) for rank in group)
    at_once(*(lambda rank=rank: ends[rank].meet(group, addresses) for rank in group))


def call_all(ends: list[NcclFabric], call: Call, rows: list[torch.Tensor]) -> None:
    over = threading.Semaphore(0)
    parts = zip(call.group, rows, strict=True)
    at_once(*(lambda rank=rank, row=row: ends[rank].begin(call, row, over.release) for rank, row in parts))
    assert all(over.acquire(timeout=TIMEOUT_S) for _ in call.group)


@pytest.mark.parametrize("group", [(0, 1, 2), (1, 2)])
def test_calls_do_what_the_table_says(ends: list[NcclFabric], group: tuple[int, ...]) -> None:
    meet(ends, group)
    size = len(group)
    start = [torch.arange(1.0, 2 * size + 1) * (place + 1) for place in range(size)]
    total, blocks = torch.stack(start).sum(0), [row.view(size, -1) for row in start]
    rows = [row.clone() for row in start]
    call_all(ends, Call("all_reduce", group, "+"), rows)
    assert all(torch.equal(row, total) for row in rows)
    rows = [row.clone() for row in start]
    call_all(ends, Call("reduce_scatter", group, "+"), rows)
    for place, row in enumerate(rows):
        assert torch.equal(row.view(size, -1)[place], total.view(size, -1)[place])
    rows = [row.clone() for row in start]
    call_all(ends, Call("all_gather", group), rows)
    assert all(torch.equal(row, torch.cat([block[place] for place, block in enumerate(blocks)])) for row in rows)
    rows = [row.clone() for row in start]
    call_all(ends, Call("broadcast", group, root=size - 1), rows)
    assert all(torch.equal(row, start[-1]) for row in rows)


def test_a_store_listens_on_the_interface_of_the_run_alone(ends: list[NcclFabric]) -> None:
    port, _, host = ends[0].open((0, 1)).decode().partition(" ")
    assert host == INTERFACE
    socket.create_connection((INTERFACE, int(port)), TIMEOUT_S).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), TIMEOUT_S)


def test_a_rank_without_a_gpu_is_refused(groups: list[Any]) -> None:
    end = NcclFabric(0, INTERFACE)
    with pytest.raises(RunError, match=r"rank 0: NCCL needs a GPU; leave --transport nccl out"):
        end.meet((0, 1), [end.open((0, 1)), b""])
    assert not groups
    end.close()


def test_ranks_that_do_not_connect_are_named(ends: list[NcclFabric], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("NCCL error: unhandled system error\nand a trace")

    monkeypatch.setattr(torch_internals, "nccl_group", refuse)
    wanted = r"rank 0: NCCL does not connect ranks 0, 1: NCCL error: unhandled system error; set NCCL_DEBUG=INFO .*"
    with pytest.raises(RunError, match=wanted):
        ends[0].meet((0, 1), [ends[0].open((0, 1)), b""])


@pytest.mark.skipif(is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_is_refused_by_name() -> None:
    with pytest.raises(RunError, match="this torch has no NCCL; leave --transport nccl out"):
        NcclCollectives(0, 2, "secret")


def test_the_transport_has_the_fabric_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    transport = NcclCollectives(0, 2, "secret")
    assert isinstance(transport.fabric, NcclFabric)
    assert transport.fabric.carries("all_reduce", "+", "float32")
    assert not transport.fabric.carries("all_reduce", "max", "float32")  # whether it loses a NaN was not seen
    assert not transport.guards
    transport.close()
