"""A group of torch.distributed whose ranks know each other from the run, without a store or a port of torch's."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch.distributed import Store, is_gloo_available  # type: ignore[attr-defined]

from maniple.process.error import RunError
from maniple.process.torch_internals import collective, cut_group, gloo_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.transports.fabric import Call

__all__: list[str] = []

MEET_S = 60.0
"""How long the ranks may take to connect, after each was told of the others."""
END_S = 1.0


@final
class _Addresses(Store):
    """What torch would ask a server for: the addresses of all ranks, told when the ranks have met.

    A group writes its own address under ``.../RANK``, then reads the others', waiting for each.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self.own: bytes | None = None
        self._others: Sequence[bytes] | None = None
        self._ended = False
        self.changed = threading.Condition()

    def set(self, key: str, value: str | bytes) -> None:
        """Take this rank's address."""
        with self.changed:
            self.own = value.encode("latin-1") if isinstance(value, str) else bytes(value)
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        """Give a rank's address, once it is known."""
        with self.changed:
            self.changed.wait_for(lambda: self._others is not None or self._ended)
            if self._others is None:
                raise RuntimeError("the ranks have not met")
            return self._others[int(key.rpartition("/")[2])]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for addresses."""
        for key in keys:
            self.get(key)

    def tell(self, addresses: Sequence[bytes] | None) -> None:
        """Make the addresses known; None where they never will be."""
        with self.changed:
            self._others, self._ended = addresses, addresses is None
            self.changed.notify_all()


@final
class GlooGroup:
    """This rank's end of a group; it has an address at once, and can be used once it was told of the others.

    Args:
        rank: this rank.
        size: number of ranks.
        interface: the address of this host to bind to.

    Raises:
        RunError: torch has no Gloo, or it cannot bind there.
    """

    def __init__(self, rank: int, size: int, interface: str) -> None:
        if not is_gloo_available():
            raise RunError("this torch has no Gloo; leave --transport gloo out, and tiles travel through ZeroMQ")
        self._group: Any = None
        self._place = rank
        self._error: Exception | None = None
        self._addresses = _Addresses(rank)
        self._founding = threading.Thread(
            target=self._found, args=(rank, size, interface), name=f"gloo {rank}", daemon=True
        )
        self._founding.start()
        with self._addresses.changed:
            self._addresses.changed.wait_for(lambda: self._addresses.own is not None or self._error is not None)
        if self._error is not None:
            raise RunError(f"Gloo cannot be opened on {interface}: {self._error}") from self._error
        self.address = self._addresses.own or b""

    def meet(self, addresses: Sequence[bytes]) -> None:
        """Be told the addresses of all ranks, in their order; they connect meanwhile, each with every other."""
        self._addresses.tell(addresses)

    def leave(self) -> None:
        """Let go of the connections, and of whoever still waits to meet."""
        if self._founding.is_alive():
            self._addresses.tell(None)
            self._founding.join(END_S)  # no thread may be on its way back from torch when the interpreter ends
        self._group = None

    def send(self, payload: memoryview, peer: int) -> Any:
        """Begin to send bytes, which stay as they are until the work that this gives is over."""
        shown = np.frombuffer(payload, np.uint8)
        return self._met().send([torch.from_numpy(shown if shown.flags.writeable else shown.copy())], peer, 0)

    def receive(self, room: memoryview, peer: int) -> Any:
        """Begin to receive bytes; they are there once the work that this gives is over."""
        return self._met().recv([torch.from_numpy(np.frombuffer(room, np.uint8))], peer, 0)

    def call(self, call: Call, row: torch.Tensor) -> Any:
        """Begin a call, for a row that stays as it is until the work that this gives is over."""
        return collective(self._met(), self._place, call.kind, row, call.op, call.root)

    def cut(self) -> None:
        """Cut all connections, so that nothing waits for them any more: what is under way breaks."""
        group = self._group
        if group is not None:
            cut_group(group, self._place)

    def _met(self) -> Any:
        """The group, once every rank is connected."""
        self._founding.join(MEET_S)
        if self._founding.is_alive():
            raise RunError(
                f"Gloo: expected a connection with every other rank within {MEET_S:.0f} s; it opens ports of its own "
                "between all hosts: see to what lies between them, or leave --transport gloo out"
            )
        if self._group is None:
            raise RunError(f"Gloo finds no way to the other ranks: {self._error or 'it was closed'}") from self._error
        return self._group

    def _found(self, rank: int, size: int, interface: str) -> None:
        try:
            self._group = gloo_group(self._addresses, rank, size, interface)
        except Exception as error:  # noqa: BLE001  (the thread's last act: whoever waits for it is told)
            with self._addresses.changed:
                self._error = error
                self._addresses.changed.notify_all()
