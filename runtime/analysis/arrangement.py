"""Arrangement: a fragment whose collectives go by the movement plans that were chosen for them.

Analysis says what a collective moves as if all went direct. Here its pushes and folds become the hops of another plan:
what a member sends goes to its parent in the tree of the block's owner, and a parent folds it into a tile of its own,
which is new, and sends that. Where the plan cuts blocks into pieces, every piece is pushed and folded by itself, in the
block's tiles. No row, dependence or byte is added: who takes part in a row is as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis import local_hops
from maniple.runtime.analysis.space_piece import PiecedSpaces
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.movement_plan import DIRECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.runtime.analysis.fragment import Blocks, Fragment, Table
    from maniple.runtime.schedule.schedule import Column, Flags

    Places = tuple[Column, Column]

__all__: list[str] = []

NONE = -1


def arrange(fragment: Fragment, plans: Column, pieces: Column, places: Places, known: Flags) -> Fragment:
    """Give a fragment with its collectives by their plans; itself where there is none, or its pushes are those already.

    Args:
        fragment: of a region. If its blocks are listed, it gets the pushes and folds in which memories have a part.
        plans: the number of the plan of each movement.
        pieces: into how many pieces it cuts blocks.
        places: the host of each memory, and its place in the tour.
        known: whether each memory is asked for; where all pushes are listed, all are.
    """
    listed = fragment.blocks is None
    if fragment.blocks is None:
        moves = np.flatnonzero(plans != DIRECT).tolist()
        sent, folded = (np.isin(each[:, columns.NODE], moves) for each in (fragment.transfers, fragment.pieces))
        transfers, folds, parts = fragment.transfers[~sent], fragment.pieces[~folded], fragment.parts
    else:
        moves = list(dict.fromkeys(fragment.blocks.ends[:, 0].tolist()))
        transfers, folds, parts = fragment.transfers, fragment.pieces[:0], fragment.parts[:0]
    if not moves:
        return fragment
    kept = np.full((len(transfers), columns.FOLLOWS + 1), NONE, dtype=np.int64)
    kept[:, : columns.FOLLOWS] = transfers
    spaces = PiecedSpaces(fragment.spaces)
    made = _Made([fragment.accesses], [kept], [folds], fragment.instances.copy(), [parts], spaces)
    for move in moves:
        exchange = _Exchange.of_pushes(fragment, move) if listed else _Exchange.of_blocks(fragment, move)
        asked = known[exchange.group] | listed
        if asked.any():
            exchange.arrange(made, int(plans[move]), int(pieces[move]), places, asked)
    return made.put_into(fragment)


def _by_move(tables: Sequence[Table]) -> Table:
    """Rows by ascending movement, those of one in the order in which they were given."""
    filled = [table for table in tables if len(table)]
    if len(filled) < 2:
        return filled[0] if filled else tables[0]
    rows = np.concatenate(filled)
    found: Table = rows[rows[:, columns.NODE].argsort(kind="stable")]
    return found


@dataclass(slots=True)
class _Made:
    """The rows of a fragment's tables, while those of its collectives are added."""

    accesses: list[Table]
    transfers: list[Table]
    pieces: list[Table]
    instances: Table
    parts: list[Column]
    spaces: PiecedSpaces

    def put_into(self, fragment: Fragment) -> Fragment:
        """The fragment with these rows in place of its own."""
        return replace(
            fragment,
            accesses=_by_move(self.accesses),
            transfers=_by_move(self.transfers),
            pieces=_by_move(self.pieces),
            parts=np.concatenate(self.parts),
            instances=self.instances,
            spaces=self.spaces.all(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Exchange:
    """The blocks of a collective and its members, who are told by their places in the group.

    Args:
        move: its number.
        group: the memories.
        mains: by member its instance of valid values, if any block is spread.
        blocks: owner, elements, instance and first given tile of each.
        given: the tiles that members give.
        staged: where all pushes were listed, by block and member the tile that what it sends lands in.
        reduces: whether blocks are reduced.
    """

    move: int
    group: Column
    mains: Column
    blocks: Table
    given: Column
    staged: Table
    reduces: bool

    @classmethod
    def of_blocks(cls, fragment: Fragment, move: int) -> _Exchange:
        """The collective of a fragment whose blocks are listed."""
        ends = _rows_of(cast("Blocks", fragment.blocks).ends, move)
        listed, group = _rows_of(fragment.pieces, move), ends[:, columns.MEMORY_OF_END].copy()
        owners = np.searchsorted(group, listed[:, columns.MEMORY])
        blocks = _columns(owners, listed[:, [columns.SPACE, columns.FOLDED, columns.FIRST]])
        reduces = bool(listed[0, columns.FIRST] < listed[0, columns.LAST])
        none = np.empty((0, len(group)), dtype=np.int64)
        return cls(move, group, ends[:, columns.MAIN_OF_END].copy(), blocks, fragment.parts, none, reduces)

    @classmethod
    def of_pushes(cls, fragment: Fragment, move: int) -> _Exchange:
        """The collective of a fragment that says who pushes what where if it goes direct."""
        transfers, pieces = _rows_of(fragment.transfers, move), _rows_of(fragment.pieces, move)
        ends = fragment.instances[transfers[:, [columns.SOURCE, columns.TARGET]], 0].T
        group = np.unique(ends)
        sources, targets = np.searchsorted(group, ends)
        lasting = transfers[:, columns.FEEDS] == NONE
        mains = np.full(len(group), NONE, dtype=np.int64)
        mains[targets[lasting]] = transfers[lasting, columns.TARGET]
        if not len(pieces):
            none = np.empty((0, len(group)), dtype=np.int64)
            return cls(move, group, mains, _sent(transfers, sources, targets), mains[:0], none, False)
        owners = np.searchsorted(group, pieces[:, columns.MEMORY])
        blocks = _columns(owners, pieces[:, [columns.SPACE, columns.FOLDED]], np.arange(len(pieces)) * len(group))
        staged = np.full((len(pieces), len(group)), NONE, dtype=np.int64)
        given, fed = staged.copy(), transfers[:, columns.FEEDS][~lasting]
        given[fed, sources[~lasting]] = transfers[~lasting, columns.SOURCE]
        staged[fed, sources[~lasting]] = transfers[~lasting, columns.TARGET]
        for block, owner in enumerate(owners.tolist()):
            parts = fragment.parts[pieces[block, columns.FIRST] : pieces[block, columns.LAST]]
            (given[block, owner],) = np.setdiff1d(parts, staged[block]).tolist()
        return cls(move, group, mains, blocks, given.ravel(), staged, True)

    def arrange(self, made: _Made, plan: int, pieces: int, places: Places, known: Flags) -> None:
        """Add the pushes and folds in which members have a part, in the order in which all members make them."""
        spaces = self.blocks[:, local_hops.SPACE]
        cuts, cut = np.arange(len(spaces) + 1), np.ascontiguousarray(spaces)
        if pieces > 1:
            each = [made.spaces.cut(space, pieces) for space in spaces.tolist()]
            cuts, cut = np.cumsum([0, *map(len, each)]), np.asarray([space for part in each for space in part])
        pushes, parts, folds, further, tiles, uses = local_hops.local_hops(
            plan, (places[0][self.group], places[1][self.group]), known, self.blocks, self.given, self.staged,
            self.mains, cuts, cut, len(made.instances), self.reduces, bool((self.mains != NONE).any()),
        )  # fmt: skip
        room: Iterable[Column] = made.instances[:0, 2:].T
        if len(self.staged):  # a tile has room for its block, as those have that are there already
            room = made.instances[self.staged.max(axis=1)[tiles[:, 1]], 2:].T
        elif len(tiles):
            room = made.spaces.hulls(spaces[tiles[:, 1]])
        if len(tiles):
            new = _columns(self.group[tiles[:, 0]], int(InstanceKind.STAGING), *room)
            made.instances = np.concatenate([made.instances, new])
        if len(folds) or len(further):
            fed = pushes[pushes[:, local_hops.FEEDS] != NONE]
            receivers = (fed[:, local_hops.BY] + fed[:, local_hops.DISTANCE]) % len(self.group)
            made.instances[fed[:, local_hops.TARGET], 0] = self.group[receivers]
        every, begins = np.concatenate([folds, further]), sum(map(len, made.parts))
        made.parts.append(parts)
        made.pieces.append(
            _columns(self.move, every[:, 0], self.group[every[:, 1]], every[:, 2], every[:, 3:] + begins)
        )
        made.accesses.append(_columns(self.move, spaces[uses[:, 0]], uses[:, 1:], 1 - uses[:, 2]))
        made.transfers.append(_in_turn(self.move, pushes))


def _rows_of(rows: Table, move: int) -> Table:
    """The rows of a movement, of rows by ascending movement."""
    if len(rows) and rows[0, columns.NODE] == rows[-1, columns.NODE] == move:
        return rows
    first, last = np.searchsorted(rows[:, columns.NODE], (move, move + 1))
    found: Table = rows[first:last]
    return found


def _in_turn(move: int, pushes: Table) -> Table:
    """Pushes of a movement in their turns; one that sends on what another has brought follows that, if it is known."""
    turns = pushes[:, : local_hops.BLOCK + 1]
    pushes = pushes[np.lexsort(turns.T[::-1])]
    brings, sent = pushes[:, local_hops.BRINGS], pushes[:, local_hops.FOLLOWS]
    lands = np.flatnonzero(brings != NONE)
    follows = np.full(len(pushes), NONE, dtype=np.int64)
    if len(lands) and (sent != NONE).any():
        lands = lands[brings[lands].argsort()]
        at = np.minimum(np.searchsorted(brings[lands], sent), len(lands) - 1)
        follows = np.where((sent != NONE) & (brings[lands][at] == sent), lands[at], NONE)
    row = [local_hops.PART, local_hops.SOURCE, local_hops.TARGET, local_hops.FEEDS, local_hops.AFTER]
    return _columns(move, pushes[:, row], follows)


def _sent(transfers: Table, sources: Column, targets: Column) -> Table:
    """The blocks that members have and all others get, by owner: of each what goes to the first that gets any."""
    senders, first = np.unique(sources, return_index=True)
    rows = np.flatnonzero(targets == targets[first][np.searchsorted(senders, sources)])
    rows = rows[sources[rows].argsort(kind="stable")]
    return _columns(sources[rows], transfers[rows][:, [columns.SPACE, columns.SOURCE]])


def _columns(*parts: int | Column | Table) -> Table:
    """A table of columns and tables next to each other; a number is the same in all rows."""
    count = max(len(part) for part in parts if not isinstance(part, int))
    blocks = [
        np.full((count, 1), part) if isinstance(part, int) else part[:, None] if part.ndim == 1 else part
        for part in parts
    ]
    found: Table = np.ascontiguousarray(np.concatenate(blocks, axis=1), dtype=np.int64)
    return found
