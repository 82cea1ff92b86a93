"""The place of a rank that another program than ours started, such as torchrun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class RankPlace:
    """What a rank that another program than ours started knows: its place, and where all of them can meet.

    Args:
        rank: this process, counted over all hosts.
        world_size: number of ranks.
        local_rank: this process, counted within its host.
        ranks_per_node: ranks of each host.
        meeting: where the program that started them has its store, `HOST:PORT`.
        run: what stands for this run, and for this try of it, wherever its ranks are.
        has_store: whether a store is there, and not only its name.
        processors: processors of each rank.
        join_timeout_s: seconds that ranks wait for each other.
        device: what the processors are.
        transport: name of what carries tiles to other ranks.
        mapper: name of the mapper to use, None for the default.
        machine: file of the machine that stands in place of what is found, None for none.
        record: file for a timeline of the whole run, None for none.
        encrypt_tiles: whether nobody on the way can read tiles.
        verify_tiles: whether tiles that were altered on the way are refused.
        deterministic: whether launches that are not traced run in the order of the program.
        memory_bytes: the most that a program may have of each memory, None for all.
        compiles: whether torch compiles what trainers' bodies call.
    """

    rank: int
    world_size: int
    local_rank: int
    ranks_per_node: int
    meeting: str
    run: str
    has_store: bool
    processors: int = 1
    join_timeout_s: float = 60.0
    device: str = "cpu"
    transport: str = "shared"
    mapper: str | None = None
    machine: str | None = None
    record: str | None = None
    encrypt_tiles: bool = False
    verify_tiles: bool = False
    deterministic: bool = False
    memory_bytes: int | None = None
    compiles: bool = False

    @property
    def node(self) -> int:
        """Which of the hosts this one is."""
        return self.rank // self.ranks_per_node

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return self.world_size // self.ranks_per_node
