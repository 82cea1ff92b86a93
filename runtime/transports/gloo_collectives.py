"""Gloo for large tiles and for whole exchanges: collectives of a step are calls of torch.distributed's."""

from __future__ import annotations

from maniple.runtime.transports.gloo import LEAST, GlooTransport
from maniple.runtime.transports.gloo_fabric import GlooFabric
from maniple.runtime.transports.transport import LOOPBACK

__all__: list[str] = []


class GlooCollectives(GlooTransport):
    """A `GlooTransport` with a fabric beside it.

    Args:
        rank: see `GlooTransport`.
        size: likewise.
        token: likewise.
        interface: likewise.
        least: likewise.
    """

    way = "Gloo, collectives whole"

    def __init__(self, rank: int, size: int, token: str, interface: str = LOOPBACK, *, least: int = LEAST) -> None:
        super().__init__(rank, size, token, interface, least=least)
        self.calls = GlooFabric(rank, interface, self.note_break)
        self.fabric = self.calls

    def close(self) -> None:
        """See `Transport.close`."""
        self.calls.close()
        super().close()


class SharedOrGlooCollectives(GlooCollectives):
    """The same between hosts; ranks of one host share memory."""

    shares_memory = True
