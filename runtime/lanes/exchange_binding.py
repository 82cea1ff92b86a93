"""Binding of exchanges: this rank's part of a collective that a fabric makes, tied to storage.

What a call takes and brings is one row of elements. Where a main instance has them in one stretch, in the order of the
row, the call works on it as it lies there; else they are put together in a row of the exchange's own, and taken apart
again.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from maniple.process.error import RunError
from maniple.regions.index_space import RectSet, by_place
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.storage.copy_kernels import positions
from maniple.runtime.storage.push import Exchange, in_stream
from maniple.runtime.transports.fabric import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.devices.device import Device
    from maniple.runtime.lanes.whole_exchange import Whole
    from maniple.runtime.schedule.schedule import Piece, Transfer
    from maniple.runtime.storage.push import Movement
    from maniple.runtime.transports.fabric import Fabric

    View = Callable[[int, IndexSpace], torch.Tensor]

__all__: list[str] = []


class _Block(NamedTuple):
    """Elements of a call, as one rank has them.

    Args:
        owner: the memory that owns them; -1 where that does not matter.
        rect: which.
        given: the instance with what the rank adds or has; -1 for none.
        main: the instance where they belong in the end; -1 for none.
    """

    owner: int
    rect: IndexSpace
    given: int
    main: int


@final
@dataclass(frozen=True, slots=True)
class Instances:
    """What is known of instances while a row is bound.

    Args:
        memory_of: the memory of one.
        kind_of: why it exists.
        view: views the bounds of an index space in one of this rank.
        room: allocates so many bytes in a memory of this rank.
    """

    memory_of: Callable[[int], int]
    kind_of: Callable[[int], int]
    view: View
    room: Callable[[int, int], torch.Tensor]


@final
class ExchangeShare:
    """A rank's part of a collective that a fabric makes: which of its tiles and folds are left, and the call.

    Args:
        whole: the collective.
        transfers: its tiles, as far as this rank lists them.
        pieces: its folds, likewise.
        here: the memories of this rank, of which one takes part.
        instances: what they move.
        fabric: what makes it.
        room: gives bytes of a memory of this rank for the row, to keep.

    Raises:
        RunError: a tile goes from or to a memory that is not in the group of this rank's.
    """

    def __init__(
        self,
        whole: Whole,
        transfers: Sequence[Transfer],
        pieces: Sequence[Piece],
        here: Collection[int],
        instances: Instances,
        fabric: Fabric,
        room: Callable[[int, int], torch.Tensor],
    ) -> None:
        self._whole, self._fabric, self._room = whole, fabric, room
        self._transfers, self._instances = transfers, instances
        ends = [end for push in transfers for end in (push.source, push.target)]
        ends += [part for piece in pieces for part in (piece.target, *piece.parts)]
        self.memory = next(memory for end in ends if (memory := instances.memory_of(end)) in here)
        self.group = whole.group_of(self.memory)
        self.brought = frozenset(number for number, push in enumerate(transfers) if self._is_brought(push))
        tiles = {transfers[number].target for number in self.brought}
        own = {number: piece for number, piece in enumerate(pieces) if piece.memory == self.memory}
        left = {
            number: replace(piece, parts=tuple([part for part in piece.parts if part not in tiles]))
            for number, piece in own.items()
        }
        self.joins = frozenset(
            number for number, piece in own.items() if len(left[number].parts) < len(piece.parts) or self._sends(number)
        )
        self.pieces = {number: piece for number, piece in left.items() if len(piece.parts) > 1}
        """The folds that are left here, by number."""
        self._blocks = self._find(own, left)

    def _is_brought(self, push: Transfer) -> bool:
        """Say whether the call takes the place of a tile.

        Raises:
            RunError: it goes from or to a memory that is not in the group.
        """
        ends = {self._instances.memory_of(push.source), self._instances.memory_of(push.target)}
        if self.memory not in ends:
            return False
        if ends.issubset(self.group):
            return True
        if len(self._whole.groups) == 1:
            raise RunError(f"memory {self.memory} exchanges a tile with one outside of {self.group}: the ranks differ")
        return False

    def _sends(self, piece: int) -> bool:
        """Say whether a tile that the call takes the place of was to send on a fold."""
        return any(self._transfers[number].after == piece for number in self.brought)

    def _find(self, own: Mapping[int, Piece], left: Mapping[int, Piece]) -> list[_Block]:
        """Find the elements of the call, in the order of the row."""
        memory_of, kind_of = self._instances.memory_of, self._instances.kind_of
        given: dict[IndexSpace, int] = {}
        mains: dict[IndexSpace, int] = {}
        owners: dict[IndexSpace, int] = {}
        for number in sorted(self.brought):
            push = self._transfers[number]
            source, target = memory_of(push.source), memory_of(push.target)
            up = kind_of(push.target) == InstanceKind.STAGING
            if source == self.memory:
                if up:
                    given[push.rect] = self._given(left, push.after, push.source)
                elif self._whole.kind in {"all_gather", "broadcast"}:
                    given[push.rect] = mains[push.rect] = push.source
                owners.setdefault(push.rect, target if up else source)
            elif not up:
                mains[push.rect] = push.target
                owners[push.rect] = source
        for number, piece in own.items():
            if number in self.joins and kind_of(piece.target) != InstanceKind.STAGING:
                given[piece.rect], mains[piece.rect] = self._given(left, number, piece.target), piece.target
                owners[piece.rect] = self.memory
        free = self._whole.kind == "all_reduce"
        found = [
            _Block(-1 if free else owners[rect], rect, given.get(rect, -1), mains.get(rect, -1))
            for rect in owners.keys() | mains.keys()
        ]
        self._check(found)
        return sorted(found, key=lambda block: (block.owner, by_place(block.rect)))

    def _check(self, blocks: Sequence[_Block]) -> None:
        """See that the rank has what the call takes, and a place for what it brings.

        Raises:
            RunError: it lacks something.
        """
        kind = self._whole.kind
        for block in blocks:
            own = block.owner == self.memory
            lacks = block.given < 0 if kind in {"all_reduce", "reduce_scatter"} else block.main < 0
            lacks |= block.main < 0 and (kind == "all_reduce" or own)
            if lacks or (own and block.given < 0):
                raise RunError(f"{kind}: memory {self.memory} lacks its part of {block.rect}; the ranks differ")

    def _given(self, left: Mapping[int, Piece], piece: int, source: int) -> int:
        """Give the instance with this rank's part: what a fold of its own brings, or the only thing that it would."""
        if piece < 0 or piece not in left:
            return source
        return left[piece].target if len(left[piece].parts) > 1 else left[piece].parts[0]

    def others(self) -> list[tuple[int, Transfer]]:
        """Give the tiles that are left, in the order that both ends share: first those that a call may wait for.

        Cut into pieces, a tile of the first comes before one of the last that is still to be folded, and waits for the
        one call of all: in that order each would wait for the other.
        """
        kind_of = self._instances.kind_of
        left = [(number, push) for number, push in enumerate(self._transfers) if number not in self.brought]
        return sorted(left, key=lambda each: kind_of(each[1].target) != InstanceKind.STAGING)

    def sends(self, push: Transfer) -> bool:
        """Say whether a push that is left sends on what the call brings."""
        return push.after in self.joins or push.follows in self.brought

    def join(self, movement: Movement, ranks: Sequence[int], device: Device | None = None) -> None:
        """Tie the call to storage, and to a movement whose folds are bound.

        Args:
            movement: the row.
            ranks: the rank of every memory.
            device: whose memory takes part, None for the host's.
        """
        with nullcontext() if device is None else device.binding():
            row, takes, gives = self._row()
        rank_of = {memory: place for place, memory in enumerate(self.group)}
        root = rank_of[self._blocks[0].owner] if self._whole.kind == "broadcast" else 0
        group = tuple([ranks[memory] for memory in self.group])
        call = Call(self._whole.kind, group, self._whole.op, root)

        def begin(ended: Callable[[], None]) -> None:
            for take in takes:
                take()
            self._fabric.begin(call, row, ended)

        def end() -> None:
            for give in gives:
                give()

        def all_of_it() -> None:
            begin(end)

        folds = self.joins & self.pieces.keys()
        pushed = [self._transfers[number] for number in self.brought]
        sent = [push for push in pushed if self._instances.memory_of(push.source) == self.memory]
        size = sum(push.rect.volume for push in sent) * row.element_size()
        ways = (begin, end) if device is None else in_stream(device, movement, all_of_it)
        movement.exchange = Exchange(movement, size, *ways, len(folds))
        for number in folds:
            movement.folds[number].joins = movement.exchange

    def row_bytes(self) -> int:
        """Count the bytes of a row of the exchange's own; 0 where a main instance has all as the call takes it."""
        (starts, total), mains = self._starts(), self._mains()
        lies_there = _stretch(self._blocks, mains, starts, total) is not None
        return 0 if lies_there else total * self._dtype().itemsize

    def _mains(self) -> list[torch.Tensor | None]:
        """View each block where it belongs in the end."""
        view = self._instances.view
        return [None if block.main < 0 else view(block.main, block.rect) for block in self._blocks]

    def _dtype(self) -> torch.dtype:
        """Give the type of the elements."""
        block = self._blocks[0]
        return self._instances.view(block.main if block.given < 0 else block.given, block.rect).dtype

    def _row(self) -> tuple[torch.Tensor, list[Callable[[], None]], list[Callable[[], None]]]:
        """Lay out the row: its memory, what puts it together, and what takes it apart."""
        starts, total = self._starts()
        view, mains = self._instances.view, self._mains()
        row = _stretch(self._blocks, mains, starts, total)
        lies_there = row is not None
        if row is None:
            dtype = self._dtype()
            row = self._room(self.memory, total * dtype.itemsize).view(dtype)
        takes: list[Callable[[], None]] = []
        gives: list[Callable[[], None]] = []
        for block, start, main in zip(self._blocks, starts, mains, strict=True):
            cell = row[start : start + block.rect.volume]
            if block.given >= 0 and not (lies_there and block.given == block.main):
                takes.append(_copy_in(cell, view(block.given, block.rect), block.rect))
            if main is not None and not lies_there and self._is_brought_to(block):
                gives.append(_copy_out(cell, main, block.rect))
        return row, takes, gives

    def _is_brought_to(self, block: _Block) -> bool:
        """Say whether the call changes what this rank has of a block."""
        return self._whole.kind in {"all_reduce", "reduce_scatter"} or block.owner != self.memory

    def _starts(self) -> tuple[list[int], int]:
        """Where each block begins in the row, and the length of the row."""
        starts, at = [], 0
        if self._whole.kind in {"all_reduce", "broadcast"}:
            for block in self._blocks:
                starts.append(at)
                at += block.rect.volume
            return starts, at
        used = dict.fromkeys(self.group, 0)
        for block in self._blocks:
            starts.append(used[block.owner])
            used[block.owner] += block.rect.volume
        longest = max(used.values())
        place = {memory: number for number, memory in enumerate(self.group)}
        starts = [start + longest * place[block.owner] for start, block in zip(starts, self._blocks, strict=True)]
        return starts, longest * len(self.group)


def _stretch(
    blocks: Sequence[_Block], mains: Sequence[torch.Tensor | None], starts: Sequence[int], total: int
) -> torch.Tensor | None:
    """View the row where the main instance has it in one stretch; None where it does not."""
    first, instance = mains[0], blocks[0].main
    if first is None or sum(block.rect.volume for block in blocks) != total:
        return None
    for block, main, start in zip(blocks, mains, starts, strict=True):
        if main is None or isinstance(block.rect, RectSet) or not main.is_contiguous():
            return None
        if block.main != instance or main.storage_offset() != first.storage_offset() + start:
            return None
    return first.as_strided((total,), (1,))


def _copy_in(cell: torch.Tensor, view: torch.Tensor, rect: IndexSpace) -> Callable[[], None]:
    """Bind the copy of elements into the row."""
    if isinstance(rect, RectSet):
        index = positions(rect)
        return lambda: _drop(cell.copy_(view[index]))
    return partial(_copy, cell.view(view.shape), view)


def _copy_out(cell: torch.Tensor, view: torch.Tensor, rect: IndexSpace) -> Callable[[], None]:
    """Bind the copy of elements out of the row."""
    if isinstance(rect, RectSet):
        index = positions(rect)
        return lambda: view.__setitem__(index, cell)
    return partial(_copy, view, cell.view(view.shape))


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _drop(result: object) -> None:
    """Take what nobody wants."""


@final
@dataclass(frozen=True, slots=True)
class ExchangeBinder:
    """Finds this rank's shares of the exchanges of a schedule that a fabric makes.

    Args:
        wholes: the exchanges, by row.
        fabric: what makes them.
    """

    wholes: Mapping[int, Whole]
    fabric: Fabric
    rows: dict[int, torch.Tensor] = field(default_factory=dict)
    """The memory of rows of exchanges' own, by row: one for all runs, of which one at a time makes a movement."""

    def share(
        self,
        row: int,
        transfers: Sequence[Transfer],
        pieces: Sequence[Piece],
        here: Collection[int],
        instances: Instances,
    ) -> ExchangeShare | None:
        """Give this rank's share of a row; None where a fabric does not make it.

        Args:
            row: its number.
            transfers: its tiles, as far as this rank lists them.
            pieces: its folds, likewise.
            here: the memories of this rank, of which one takes part.
            instances: what they move.
        """
        whole = self.wholes.get(row)
        if whole is None:
            return None
        room = partial(self._room, row, instances)
        share = ExchangeShare(whole, transfers, pieces, here, instances, self.fabric, room)
        return share if share.brought else None  # its group stands for no block

    def _room(self, row: int, instances: Instances, memory: int, size: int) -> torch.Tensor:
        """Give the memory of a row, the same each time."""
        if row not in self.rows:
            self.rows[row] = instances.room(memory, size)
        return self.rows[row]
