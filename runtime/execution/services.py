"""Services: what replays, launches and recordings use of their rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from maniple.runtime.program.future import Rank

if TYPE_CHECKING:
    from maniple.runtime.control.waiting import Waiting
    from maniple.runtime.execution.recorder import Journal
    from maniple.runtime.execution.recovery import Recovery
    from maniple.runtime.execution.resources import Resources
    from maniple.runtime.execution.under_way import UnderWay
    from maniple.runtime.storage.scratch import ScratchTable

__all__: list[str] = []


class Services(Rank, Protocol):
    """The parts of a rank, and what futures ask of it; a part is changed by its own methods, and none is replaced."""

    @property
    def waiting(self) -> Waiting:
        """How threads wait, and the first failure."""
        ...

    @property
    def resources(self) -> Resources:
        """Processors, memories, and the ways between them."""
        ...

    @property
    def under_way(self) -> UnderWay:
        """What has begun and not ended."""
        ...

    @property
    def recovery(self) -> Recovery:
        """How the program goes on after failures."""
        ...

    @property
    def journal(self) -> Journal:
        """What records, if anything does."""
        ...

    @property
    def scratch(self) -> ScratchTable:
        """What bodies take beside their arguments."""
        ...
