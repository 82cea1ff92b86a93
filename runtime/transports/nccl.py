"""NCCL as a fabric, beside ZeroMQ for tiles: exchanges of GPUs, one to a rank, are collectives of torch.distributed.

Written from torch's documentation, and checked against groups that play NCCL: no device has run it yet.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

from maniple.process.error import RunError
from maniple.runtime.transports.fabric import Call, Fabric, folds_alike
from maniple.runtime.transports.transport import LOOPBACK
from maniple.runtime.transports.zeromq import ZmqTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

__all__: list[str] = []

MEET_S = 60.0
"""How long the ranks may take to connect."""


@final
class NcclFabric(Fabric):
    """Groups of NCCL, each with a store of its first member, whose address travels over the control plane.

    A call is put into a stream of NCCL's own, behind what the current stream does; that goes on when the call is over.
    So its end is told as soon as it is on its way, and whoever uses the row does so in that stream.

    Args:
        rank: this rank.
        interface: the address of this host that the store binds to; what NCCL binds to `NCCL_SOCKET_IFNAME` says.
    """

    name = "nccl"
    kind = "gpu"

    def __init__(self, rank: int, interface: str) -> None:
        self._rank, self._interface = rank, interface
        self._stores: dict[tuple[int, ...], Any] = {}
        self._groups: dict[tuple[int, ...], Any] = {}

    def carries(self, kind: str, op: str, dtype: str) -> bool:
        """See `Fabric.carries`."""
        return folds_alike(kind, op, dtype)

    def is_open(self, group: tuple[int, ...]) -> bool:
        """See `Fabric.is_open`."""
        return group in self._stores

    def open(self, group: tuple[int, ...]) -> bytes:
        """See `Fabric.open`; the first member alone has an address."""
        self._stores[group] = None
        if group[0] != self._rank:
            return b""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        family = socket.AF_INET6 if ":" in self._interface else socket.AF_INET
        try:
            listening = socket.create_server((self._interface, 0), family=family)
        except OSError as error:
            raise RunError(
                f"no port of {self._interface} could be bound for NCCL: {error}; see maniple doctor"
            ) from error
        port = listening.getsockname()[1]
        # The socket is bound by us: a store that made its own would bind to all interfaces.
        self._stores[group] = TCPStore(
            self._interface,
            port,
            len(group),
            is_master=True,
            timeout=timedelta(seconds=MEET_S),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        return f"{port} {self._interface}".encode()

    def meet(self, group: tuple[int, ...], addresses: Sequence[bytes]) -> None:
        """See `Fabric.meet`; connects, which all members do at one time."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        from maniple.process.torch_internals import nccl_group

        if self.device is None:
            raise RunError(f"rank {self._rank}: NCCL needs a GPU; leave --transport nccl out")
        place, timeout = group.index(self._rank), timedelta(seconds=MEET_S)
        members = ", ".join(map(str, group))
        try:
            if place:
                port, _, host = addresses[0].decode().partition(" ")
                self._stores[group] = TCPStore(host, int(port), len(group), timeout=timeout, wait_for_workers=False)
            self._groups[group] = nccl_group(self._stores[group], place, len(group), self.device)
        except (RuntimeError, ValueError) as error:
            said = str(error).partition("\n")[0]
            raise RunError(
                f"rank {self._rank}: NCCL does not connect ranks {members}: {said}; set NCCL_DEBUG=INFO to see why, "
                "NCCL_SOCKET_IFNAME to choose its interface, or leave --transport nccl out"
            ) from error

    def begin(self, call: Call, row: torch.Tensor, ended: Callable[[], None]) -> None:
        """See `Fabric.begin`."""
        from maniple.process.torch_internals import collective

        place = call.group.index(self._rank)
        collective(self._groups[call.group], place, call.kind, row, call.op, call.root).wait()
        ended()

    def close(self) -> None:
        """See `Fabric.close`."""
        for group in self._groups.values():
            with suppress(RuntimeError):  # which also says that it has ended already
                group.abort()
        self._groups.clear()
        self._stores.clear()


@final
class NcclCollectives(ZmqTransport):
    """Tiles as `shared` has them; collectives of repeated steps whose members are all GPUs are calls of NCCL.

    Args:
        rank: see `Transport`.
        size: likewise.
        token: likewise.
        interface: likewise.

    Raises:
        RunError: torch has no NCCL.
    """

    way = "ZeroMQ, collectives of GPUs through NCCL"
    shares_memory = True
    guards = False

    def __init__(self, rank: int, size: int, token: str, interface: str = LOOPBACK) -> None:
        from torch.distributed import is_nccl_available

        if not is_nccl_available():
            raise RunError("this torch has no NCCL; leave --transport nccl out, and tiles travel as they would")
        super().__init__(rank, size, token, interface)
        self.fabric = NcclFabric(rank, interface)

    def close(self) -> None:
        """See `Transport.close`."""
        if self.fabric is not None:
            self.fabric.close()
        super().close()
