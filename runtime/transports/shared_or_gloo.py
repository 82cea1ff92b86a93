"""Memory that ranks share where they can, torch.distributed's Gloo elsewhere."""

from __future__ import annotations

from typing import final

from maniple.runtime.transports.gloo import GlooTransport

__all__: list[str] = []


@final
class SharedOrGloo(GlooTransport):
    """Gloo for large tiles that go to ranks of other hosts; those of this one share memory."""

    shares_memory = True
