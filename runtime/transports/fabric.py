"""Fabrics: what makes whole exchanges of a group of ranks by calls of its own, where a transport moves single tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

__all__: list[str] = []


CARRIED = frozenset(["float64", "float32", "float16", "int64", "int32", "int8", "uint8"])
"""Types of elements that backends of torch.distributed fold as Maniple does."""
FOLDED = frozenset(["+", "*"])
ORDERED = frozenset(["min", "max"])
"""What they fold as Maniple does of integers alone: Gloo may lose a NaN, and NCCL was not seen not to."""
KINDS = frozenset(["all_reduce", "reduce_scatter", "all_gather", "broadcast"])


def folds_alike(kind: str, op: str, dtype: str) -> bool:
    """Say whether a backend of torch.distributed gives what tiles would give, sums in their last bits aside."""
    folded = not op or op in FOLDED or (op in ORDERED and "float" not in dtype)
    return kind in KINDS and dtype in CARRIED and folded


@final
@dataclass(frozen=True, slots=True)
class Call:
    """What all ranks of a group ask of a fabric, each for a row of the same length.

    A row has a block for each member, in the order of the group, all of one length:

        ==============  ================================  ==========================================
        kind            a member's row before             and after
        ==============  ================================  ==========================================
        all_reduce      what it adds                      the fold of all rows
        reduce_scatter  what it adds to each block        in its own block the fold; the rest is lost
        all_gather      in its own block what it has      all blocks
        broadcast       at the root, what all are to get  the same everywhere
        ==============  ================================  ==========================================

    Args:
        kind: which.
        group: the ranks that take part.
        op: the symbol of what folds; "" where nothing is folded.
        root: the place of a broadcast's root in the group.
    """

    kind: str
    group: tuple[int, ...]
    op: str = ""
    root: int = 0


class Fabric(ABC):
    """One rank's end of a fabric.

    Every member of a group opens it, is told the addresses of all, and then begins the group's calls in one order, the
    same on all of them; a call may be begun while others are under way. In which order a fabric folds is its own
    business, but it is the same order for equal calls of equal groups, and all members get the same bits.

    A class says what it is called, `name`, and in memory of what kind of processors its rows lie: `kind`. One of GPUs
    begins a call in the current stream, which goes on when that is over, and tells its end at once. Its `device` is set
    before a group is opened.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "cpu"
    device: torch.device | None = None

    @abstractmethod
    def carries(self, kind: str, op: str, dtype: str) -> bool:
        """Say whether there is such a call for rows of a type of elements; the same on all ranks.

        Args:
            kind: see `Call`.
            op: likewise.
            dtype: such as `float32`.
        """

    @abstractmethod
    def is_open(self, group: tuple[int, ...]) -> bool:
        """Say whether this rank's end of a group is open."""

    @abstractmethod
    def open(self, group: tuple[int, ...]) -> bytes:
        """Open this rank's end of a group that it is a member of; gives an address for the other members.

        Raises:
            RunError: that is not possible here.
        """

    @abstractmethod
    def meet(self, group: tuple[int, ...], addresses: Sequence[bytes]) -> None:
        """Be told the addresses of all members, in their order."""

    @abstractmethod
    def begin(self, call: Call, row: torch.Tensor, ended: Callable[[], None]) -> None:
        """Begin a call.

        Args:
            call: the call.
            row: the row: in one stretch of memory, of one axis, and left alone until the call is over.
            ended: is told that it is over, from any thread; of a call that broke only the transport tells.
        """

    @abstractmethod
    def close(self) -> None:
        """End it, and whatever is under way; closing twice is allowed."""
