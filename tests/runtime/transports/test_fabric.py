"""Gloo as a fabric: every kind of call, several under way, one that breaks, and an end that waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic

import pytest
import torch

from maniple.process.error import RunError
from maniple.runtime.transports import gloo as gloo_transport
from maniple.runtime.transports.fabric import CARRIED, Call
from maniple.runtime.transports.gloo_collectives import GlooCollectives, SharedOrGlooCollectives
from maniple.runtime.transports.gloo_fabric import GlooFabric
from maniple.runtime.transports.transport import Transport

TIMEOUT_S = 30.0
Ends = list[GlooFabric]


@pytest.fixture
def fabrics() -> Iterator[Callable[[int], Ends]]:
    made: Ends = []

    def make(size: int) -> Ends:
        said: list[str] = []
        made.extend(GlooFabric(rank, "127.0.0.1", said.append) for rank in range(size))
        meet(made, tuple(range(size)))
        return made

    yield make
    for fabric in made:
        fabric.close()


def meet(ends: Ends, group: tuple[int, ...]) -> None:
    addresses = [ends[rank].open(group) for rank in group]
    for rank in group:
        assert ends[rank].is_open(group)
        ends[rank].meet(group, addresses)


def on_all(ends: Ends, *calls: tuple[Call, list[torch.Tensor]]) -> None:
    """Begin calls on all their members, each as a rank of its own does, and wait for the ends of all."""
    over = threading.Semaphore(0)

    def be(rank: int) -> None:
        for call, rows in calls:
            if rank in call.group:
                ends[rank].begin(call, rows[call.group.index(rank)], over.release)

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    for call, _ in calls:
        for _ in call.group:
            assert over.acquire(timeout=TIMEOUT_S)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", sorted(CARRIED))
def test_calls_do_what_the_table_says(fabrics: Callable[[int], Ends], size: int, dtype: str) -> None:
    ends, group = fabrics(size), tuple(range(size))
    type_ = getattr(torch, dtype)
    start = [torch.arange(1, 4 * size + 1).mul(rank + 1).remainder(5).to(type_) for rank in range(size)]
    calls = []
    folds = {"+": torch.sum, "*": torch.prod, "min": torch.amin, "max": torch.amax}
    for op in folds:
        calls += [(Call(kind, group, op), [row.clone() for row in start]) for kind in ("all_reduce", "reduce_scatter")]
    calls.append((Call("all_gather", group), [row.clone() for row in start]))
    calls += [(Call("broadcast", group, root=root), [row.clone() for row in start]) for root in range(size)]
    on_all(ends, *calls)
    blocks = [row.view(size, -1) for row in start]
    for call, rows in calls:
        got = rows
        if call.kind == "broadcast":
            expected = [start[call.root]] * size
        elif call.kind == "all_gather":
            expected = [torch.cat([blocks[place][place] for place in range(size)])] * size
        else:
            whole = folds[call.op](torch.stack(start).double(), dim=0).to(type_)
            expected = [whole] * size
            if call.kind == "reduce_scatter":
                got = [row.view(size, -1)[place] for place, row in enumerate(rows)]
                expected = [whole.view(size, -1)[place] for place in range(size)]
        for row, value in zip(got, expected, strict=True):
            assert torch.equal(row, value), call


@pytest.mark.parametrize("op", ["+", "*", "min", "max"])
def test_no_fold_that_is_carried_loses_a_nan(fabrics: Callable[[int], Ends], op: str) -> None:
    ends, group = fabrics(2), (0, 1)
    if not ends[0].carries("all_reduce", op, "float32"):
        assert op in {"min", "max"}
        return
    for has_it in group:
        rows = [torch.full((9,), float("nan") if rank == has_it else 1.0) for rank in group]
        on_all(ends, (Call("all_reduce", group, op), rows))
        assert all(bool(row.isnan().all()) for row in rows)


def test_sums_have_the_same_bits_everywhere_and_every_time(fabrics: Callable[[int], Ends]) -> None:
    ends, group = fabrics(3), (0, 1, 2)
    chance = torch.Generator().manual_seed(1)
    start = [torch.randn(10_007, generator=chance) for _ in group]
    calls = [(Call("all_reduce", group, "+"), [row.clone() for row in start]) for _ in range(3)]
    on_all(ends, *calls)
    first = calls[0][1][0]
    assert all(torch.equal(row, first) for _, rows in calls for row in rows)
    assert torch.allclose(first.double(), torch.stack(start).double().sum(0), atol=1e-5)


def test_groups_that_share_members_do_not_meet_each_others_calls(fabrics: Callable[[int], Ends]) -> None:
    ends = fabrics(3)
    meet(ends, (0, 2))
    pair, all_ = Call("all_reduce", (0, 2), "+"), Call("all_reduce", (0, 1, 2), "+")
    calls = [(call, [torch.full((9,), 1.0 + rank) for rank in call.group]) for call in (pair, all_, pair, all_)]
    on_all(ends, *calls)
    assert [rows[0][0].item() for _, rows in calls] == [4.0, 6.0, 4.0, 6.0]


def test_what_gloo_does_not_fold_as_tiles_are_folded_is_not_carried() -> None:
    fabric = GlooFabric(0, "127.0.0.1", print)
    with closing(fabric):
        assert fabric.carries("all_reduce", "+", "float32")
        assert not fabric.carries("all_reduce", "+", "bool")
        assert fabric.carries("all_reduce", "max", "int64")
        assert not fabric.carries("all_reduce", "max", "float32")  # Gloo's would lose a NaN
        assert not fabric.carries("all_reduce", "mine", "float32")  # a registered operation
        assert not fabric.carries("copy", "", "float32")


def collectives(size: int, kind: type[GlooCollectives] = GlooCollectives) -> list[GlooCollectives]:
    ends = [kind(rank, size, "secret") for rank in range(size)]
    for end in ends:
        end.connect([other.endpoint for other in ends])
    group = tuple(range(size))
    addresses = [end.calls.open(group) for end in ends]
    for end in ends:
        end.calls.meet(group, addresses)
    return ends


def test_a_call_that_a_member_leaves_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once: the launcher knows better which rank died, and why."""
    monkeypatch.setattr(gloo_transport, "GRACE_S", 0.2)
    zero, one = collectives(2)
    with closing(zero), closing(one):
        call = Call("all_reduce", (0, 1), "+")
        ended: list[bool] = []
        rows = [torch.ones(9), torch.ones(9)]
        over = threading.Semaphore(0)
        begun = [
            threading.Thread(target=end.calls.begin, args=(call, row, over.release))
            for end, row in zip((zero, one), rows, strict=True)
        ]
        for thread in begun:
            thread.start()
        assert all(over.acquire(timeout=TIMEOUT_S) for _ in range(2))
        one.calls.begin(call, torch.ones(5_000_000), lambda: ended.append(True))
        zero.close()
        with pytest.raises(RunError, match=r"rank 1: Gloo's all_reduce of ranks 0, 1 broke: .*"):
            await_poll(one)
        assert not ended


def await_poll(transport: Transport) -> None:
    end = monotonic() + TIMEOUT_S
    while monotonic() < end:
        transport.poll(TIMEOUT_S)


def test_closing_waits_for_no_call_that_others_never_begin() -> None:
    zero, one = collectives(2, SharedOrGlooCollectives)
    zero.calls.begin(Call("all_reduce", (0, 1), "+"), torch.ones(5_000_000), lambda: None)
    begun = monotonic()
    zero.close()
    one.close()
    assert monotonic() - begun < 10.0
    zero.close()  # again
