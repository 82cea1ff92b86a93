"""A fabric of one process that is as strict as NCCL: it knows calls of a group by their order alone.

A call is done when all members have begun it, in an order that a seed draws. It folds from the last member on, so that
its sums are not those of the schedule's order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import reduce
from random import Random

import torch

from maniple.runtime.devices.null_tensor import lies_on_a_device
from maniple.runtime.transports.fabric import Call, Fabric

TIMEOUT_S = 30.0
Row = torch.Tensor
Part = tuple[int, Call, Row, Callable[[], None]]

FOLDS: dict[str, Callable[[Row, Row], Row]] = {
    "+": torch.add,
    "*": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


class Hub:
    """What all ranks of the fabric share.

    Args:
        seed: of how long calls take that all have begun, a hundredth of a second at most.
    """

    def __init__(self, seed: int) -> None:
        self.begun: dict[int, list[Call]] = {}
        self.mixed: list[str] = []
        self._lock = threading.Lock()
        self._chance = Random(seed)
        self._open: dict[tuple[int, ...], list[dict[int, Part]]] = {}

    def take(self, rank: int, call: Call, row: Row, ended: Callable[[], None]) -> None:
        """Take a member's part of a call: of the first that it has not begun yet."""
        with self._lock:
            self.begun.setdefault(rank, []).append(call)
            calls = self._open.setdefault(call.group, [])
            mine = next((parts for parts in calls if rank not in parts), None)
            if mine is None:
                calls.append(mine := {})
            mine[rank] = (rank, call, row, ended)
            if any(other != call or len(of) != len(row) for _, other, of, _ in mine.values()):
                self.mixed.append(f"{[each[1:3] for each in mine.values()]}")
            if len(mine) == len(call.group):
                calls.remove(mine)
                parts = [mine[member] for member in call.group]
                threading.Timer(self._chance.uniform(0, 0.01), do, (parts,)).start()


def do(parts: Sequence[Part]) -> None:
    """Do a call."""
    call, rows = parts[0][1], [part[2] for part in parts]
    if call.kind == "broadcast":
        for row in rows:
            row.copy_(rows[call.root])
    elif call.kind == "all_gather":
        blocks = torch.cat([row.view(len(rows), -1)[place] for place, row in enumerate(rows)])
        for row in rows:
            row.copy_(blocks)
    else:
        whole = reduce(FOLDS[call.op], reversed([row.clone() for row in rows]))
        for place, row in enumerate(rows):
            if call.kind == "all_reduce":
                row.copy_(whole)
            else:
                row.fill_(torch.iinfo(row.dtype).min if not row.is_floating_point() else torch.nan)
                row.view(len(rows), -1)[place] = whole.view(len(rows), -1)[place]
    for _, _, _, ended in parts:
        ended()


class LockstepFabric(Fabric):
    """One rank's end.

    Args:
        hub: what all share.
        rank: this rank.
    """

    name = "lockstep"

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub, self._rank = hub, rank
        self._met: dict[tuple[int, ...], Sequence[bytes]] = {}

    def carries(self, kind: str, op: str, dtype: str) -> bool:
        return not op or op in FOLDS

    def is_open(self, group: tuple[int, ...]) -> bool:
        return group in self._met

    def open(self, group: tuple[int, ...]) -> bytes:
        self._met[group] = ()
        return b"%d" % self._rank

    def meet(self, group: tuple[int, ...], addresses: Sequence[bytes]) -> None:
        assert [int(address) for address in addresses] == list(group)
        self._met[group] = addresses

    def begin(self, call: Call, row: Row, ended: Callable[[], None]) -> None:
        assert self._met[call.group]
        self._hub.take(self._rank, call, row, ended)

    def close(self) -> None:
        self._met.clear()


class StreamFabric(LockstepFabric):
    """One rank's end, for devices: the stream in which a call is begun goes on when all have begun it, and not before.

    Rows of devices cross through copies on the host.
    """

    kind = "gpu"

    def begin(self, call: Call, row: Row, ended: Callable[[], None]) -> None:
        assert lies_on_a_device(row)
        over = threading.Event()
        crossing = torch.empty(len(row), dtype=row.dtype, device="cpu")
        crossing.copy_(row)
        super().begin(call, crossing, over.set)
        assert over.wait(TIMEOUT_S)
        row.copy_(crossing)
        ended()
