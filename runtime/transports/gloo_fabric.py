"""Gloo as a fabric: whole exchanges by the collectives of torch.distributed, for memory of hosts."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, final

from maniple.process.error import RunError
from maniple.runtime.transports.fabric import Call, Fabric, folds_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from maniple.runtime.transports.gloo_group import GlooGroup

__all__: list[str] = []

END_S = 2.0
"""How long closing waits for the thread that waits for calls."""


@final
class GlooFabric(Fabric):
    """Groups of Gloo, a connection between any two members of each; their addresses travel over the control plane.

    Args:
        rank: this rank.
        interface: the address of this host to bind to.
        broke: is told of a call that broke: what it was, and why.
    """

    name = "gloo"

    def __init__(self, rank: int, interface: str, broke: Callable[[str], None]) -> None:
        self._rank, self._interface, self._broke = rank, interface, broke
        self._groups: dict[tuple[int, ...], GlooGroup] = {}
        self._under_way: SimpleQueue[tuple[Call, Any, Callable[[], None]] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._wait, name=f"gloo {rank} calls", daemon=True)
        self._thread.start()

    def carries(self, kind: str, op: str, dtype: str) -> bool:
        """See `Fabric.carries`."""
        return folds_alike(kind, op, dtype)

    def is_open(self, group: tuple[int, ...]) -> bool:
        """See `Fabric.is_open`."""
        return group in self._groups

    def open(self, group: tuple[int, ...]) -> bytes:
        """See `Fabric.open`."""
        from maniple.runtime.transports.gloo_group import GlooGroup  # torch, which a launcher does without

        made = self._groups[group] = GlooGroup(group.index(self._rank), len(group), self._interface)
        return made.address

    def meet(self, group: tuple[int, ...], addresses: Sequence[bytes]) -> None:
        """See `Fabric.meet`."""
        self._groups[group].meet(addresses)

    def begin(self, call: Call, row: torch.Tensor, ended: Callable[[], None]) -> None:
        """See `Fabric.begin`."""
        try:
            work = self._groups[call.group].call(call, row)
        except RunError:  # the ranks were never connected
            raise
        except RuntimeError as error:
            self._note_break(call, error)
        else:
            self._under_way.put((call, work, ended))

    def close(self) -> None:
        """See `Fabric.close`."""
        self._closed = True
        self._under_way.put(None)
        for group in self._groups.values():
            group.cut()
        self._thread.join(END_S)
        for group in self._groups.values():
            group.leave()
        self._groups.clear()

    def _wait(self) -> None:
        """Wait for calls in the order in which they were begun."""
        while (next_one := self._under_way.get()) is not None:
            call, work, ended = next_one
            try:
                work.wait()
            except RuntimeError as error:
                self._note_break(call, error)
                return
            ended()

    def _note_break(self, call: Call, error: RuntimeError) -> None:
        if not self._closed:
            members = ", ".join(map(str, call.group))
            self._broke(f"Gloo's {call.kind} of ranks {members} broke: {str(error).splitlines()[0]}")
