"""Arrangement: a fragment whose collectives go by the movement plans that were chosen for them.

Analysis says what a collective moves as if all went direct. Here its pushes and folds become the hops of another plan:
what a member sends goes to its parent in the tree of the block's owner, and a parent folds it into a tile of its own,
which is new, and sends that. Where the plan cuts blocks into pieces, every piece is pushed and folded by itself, in the
block's tiles. No row, dependence or byte is added: who takes part in a row is as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis import hop_kernels
from maniple.runtime.analysis.hop_kernels import arrange_hops
from maniple.runtime.analysis.local_hops import local_hops
from maniple.runtime.analysis.space_piece import PiecedSpaces
from maniple.runtime.schedule import movement_plan
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.movement_plan import DIRECT, OWNER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.analysis.fragment import Fragment, Table
    from maniple.runtime.schedule.schedule import Column, Flags

    Places = tuple[Column, Column]

__all__: list[str] = []

NONE = -1


def arrange_part(fragment: Fragment, plans: Column, pieces: Column, places: Places, known: Flags) -> Fragment:
    """Give a fragment whose blocks are listed with the pushes and folds of collectives in which memories have a part.

    Args:
        fragment: of a region; one that lists all pushes is given back with its collectives by their plans.
        plans: the number of the plan of each movement.
        pieces: into how many pieces it cuts blocks.
        places: the host of each memory, and its place in the tour.
        known: whether each is asked for.
    """
    if fragment.blocks is None:
        return arrange(fragment, plans, pieces, *places)
    ends = fragment.blocks.ends
    single = ~np.isin(fragment.transfers[:, columns.NODE], ends[:, columns.NODE])
    kept = np.full((int(single.sum()), columns.FOLLOWS + 1), NONE, dtype=np.int64)
    kept[:, : columns.FOLLOWS] = fragment.transfers[single]
    made = _Made(
        [fragment.accesses],
        [kept],
        [np.zeros((0, columns.LAST + 1), dtype=np.int64)],
        fragment.instances.copy(),
        [np.zeros(0, dtype=np.int64)],
        PiecedSpaces(fragment.spaces),
    )
    cuts = [0, *(np.flatnonzero(np.diff(ends[:, columns.NODE])) + 1).tolist(), len(ends)]
    for first, last in pairwise(cuts if len(ends) else ()):
        group = ends[first:last]
        if known[group[:, columns.MEMORY_OF_END]].any():
            move = int(group[0, columns.NODE])
            _Part(fragment, group, int(plans[move]), places, known).arrange(made, int(pieces[move]))
    return made.put_into(fragment)


class _Part:
    """What some memories push and fold in a collective whose blocks are listed.

    Args:
        fragment: its region's.
        group: the members' rows of `Blocks.ends`.
        plan: the plan's number.
        places: the host of each memory, and its place in the tour.
        known: the memories.
    """

    def __init__(self, fragment: Fragment, group: Table, plan: int, places: Places, known: Flags) -> None:
        self.move, self.plan = int(group[0, columns.NODE]), plan
        self.group, self.mains = group[:, columns.MEMORY_OF_END].copy(), group[:, columns.MAIN_OF_END].copy()
        first, last = np.searchsorted(fragment.pieces[:, columns.NODE], (self.move, self.move + 1))
        listed = fragment.pieces[first:last]
        self.reduces = bool(listed[0, columns.FIRST] < listed[0, columns.LAST])
        owners = np.searchsorted(self.group, listed[:, columns.MEMORY])
        self.blocks = _columns(owners, listed[:, [columns.SPACE, columns.FOLDED, columns.FIRST]])
        self._given = fragment.parts
        self._places = places[0][self.group], places[1][self.group]
        self._known = known[self.group]

    def arrange(self, made: _Made, pieces: int) -> None:
        """Add the pushes and folds, in the order in which all members make them."""
        spaces = self.blocks[:, hop_kernels.SPACE]
        cut = [made.spaces.cut(space, pieces) for space in spaces.tolist()] if pieces > 1 else spaces[:, None].tolist()
        pushes, parts, folds, further, tiles, uses = local_hops(
            self.plan, self._places, self._known, self.blocks, self._given, self.mains,
            np.cumsum([0, *map(len, cut)]), np.asarray([space for each in cut for space in each], dtype=np.int64),
            len(made.instances), self.reduces, bool((self.mains != NONE).any()),
        )  # fmt: skip
        hulls = made.spaces.hulls(spaces[tiles[:, 1]])
        new = _columns(self.group[tiles[:, 0]], int(InstanceKind.STAGING), *hulls)
        made.instances = np.concatenate([made.instances, new])
        every, begins = np.concatenate([folds, further]), sum(map(len, made.parts))
        made.parts.append(parts)
        made.pieces.append(
            _columns(self.move, every[:, 0], self.group[every[:, 1]], every[:, 2], every[:, 3:] + begins)
        )
        made.accesses.append(_columns(self.move, spaces[uses[:, 0]], uses[:, 1:], 1 - uses[:, 2]))
        made.transfers.append(_in_turn(self.move, pushes))


def arrange(fragment: Fragment, plans: Column, pieces: Column, hosts: Column, tour: Column) -> Fragment:
    """Give a fragment with some of its collectives by other plans than direct; itself where there are none.

    Args:
        fragment: of a region.
        plans: the number of the plan of each movement.
        pieces: into how many pieces it cuts blocks.
        hosts: the host of each memory.
        tour: its place in the tour.
    """
    moves = np.flatnonzero(plans != DIRECT)
    if not len(moves):
        return fragment
    stays = ~np.isin(fragment.transfers[:, columns.NODE], moves), ~np.isin(fragment.pieces[:, columns.NODE], moves)
    kept = np.full((int(stays[0].sum()), columns.FOLLOWS + 1), NONE, dtype=np.int64)
    kept[:, : columns.FOLLOWS] = fragment.transfers[stays[0]]
    spaces = PiecedSpaces(fragment.spaces)
    made = _Made(
        [fragment.accesses], [kept], [fragment.pieces[stays[1]]], fragment.instances.copy(), [fragment.parts], spaces
    )
    for move in moves.tolist():
        _Exchange(fragment, move, int(plans[move]), hosts, tour).arrange(made, int(pieces[move]))
    return made.put_into(fragment)


def _by_move(tables: Sequence[Table]) -> Table:
    """Rows by ascending movement, those of one in the order in which they were given."""
    rows = np.concatenate(tables)
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


class _Exchange:
    """A collective that goes direct, and the hops of a plan for it.

    Members are told by their places in the group. Of each block there are its owner, its elements and the instance
    there; where it is folded, of each member the tile that it gives, and the one that what it sends lands in.

    Args:
        fragment: its region's.
        move: its number.
        plan: the plan's.
        hosts: the host of each memory.
        tour: its place in the tour.
    """

    def __init__(self, fragment: Fragment, move: int, plan: int, hosts: Column, tour: Column) -> None:
        self.move = move
        transfers = fragment.transfers[fragment.transfers[:, columns.NODE] == move]
        memories = fragment.instances[:, 0]
        ends = memories[transfers[:, columns.SOURCE]], memories[transfers[:, columns.TARGET]]
        self.group = np.unique(np.concatenate(ends))
        places = np.searchsorted(self.group, ends[0]), np.searchsorted(self.group, ends[1])
        lasting = transfers[:, columns.FEEDS] == NONE
        self.mains = np.full(len(self.group), NONE, dtype=np.int64)
        self.mains[places[1][lasting]] = transfers[lasting, columns.TARGET]
        pieces = fragment.pieces[fragment.pieces[:, columns.NODE] == move]
        reduces, spreads = len(pieces) > 0, bool(lasting.any())
        if reduces:
            self.blocks = _columns(np.searchsorted(self.group, pieces[:, columns.MEMORY]), pieces[:, [1, 3]])
        else:
            self.blocks = _sent(transfers, *places)
        self.own = np.full((len(self.blocks), len(self.group)), NONE, dtype=np.int64)
        self.staged = self.own.copy()
        fed = transfers[:, columns.FEEDS][~lasting]
        self.own[fed, places[0][~lasting]] = transfers[~lasting, columns.SOURCE]
        self.staged[fed, places[0][~lasting]] = transfers[~lasting, columns.TARGET]
        for number, (owner, *_) in enumerate(self.blocks.tolist() if reduces else ()):
            parts = fragment.parts[pieces[number, columns.FIRST] : pieces[number, columns.LAST]]
            (self.own[number, owner],) = np.setdiff1d(parts, self.staged[number]).tolist()
        owns = np.zeros(len(self.group), dtype=np.int64)
        owns[self.blocks[:, hop_kernels.OWNER]] = 1
        hops = movement_plan.table(plan, hosts[self.group], tour[self.group], owns, reduces, spreads)
        self.hops = hops[hops[:, OWNER].argsort(kind="stable")]

    def arrange(self, made: _Made, pieces: int) -> None:
        """Add the pushes and folds of the plan, by phase and piece and, within one, round the ring."""
        cut = [made.spaces.cut(space, pieces) for space in self.blocks[:, hop_kernels.SPACE].tolist()]
        cuts = np.cumsum([0, *map(len, cut)])
        first = np.searchsorted(self.hops[:, OWNER], np.arange(len(self.group) + 1))
        pushes, folds, further, parts, tiles, uses = arrange_hops(
            self.hops, first, self.blocks, self.own, self.staged, self.mains, cuts,
            np.asarray([space for each in cut for space in each], dtype=np.int64), len(made.instances),
        )  # fmt: skip
        memory = self.group[tiles[:, 0]]
        new = made.instances[tiles[:, 1]]
        new[:, 0], new[:, 1] = memory, InstanceKind.STAGING
        made.instances = np.concatenate([made.instances, new])
        fed = pushes[pushes[:, hop_kernels.FEEDS] != NONE]
        receivers = (fed[:, hop_kernels.BY] + fed[:, hop_kernels.DISTANCE]) % len(self.group)
        made.instances[fed[:, hop_kernels.TARGET], 0] = self.group[receivers]
        every = np.concatenate([folds, further])
        begins = sum(map(len, made.parts))
        made.parts.append(parts)
        made.pieces.append(
            _columns(self.move, every[:, 0], self.group[every[:, 1]], every[:, 2], every[:, 3:] + begins)
        )
        made.accesses.append(_columns(self.move, uses, 1 - uses[:, 2]))
        made.transfers.append(_in_turn(self.move, pushes))


def _in_turn(move: int, pushes: Table) -> Table:
    """Pushes of a movement in their turns; one that sends on what another has brought follows that, if it is known."""
    turns = pushes[:, : hop_kernels.BLOCK + 1]
    pushes = pushes[np.lexsort(turns.T[::-1])]
    brings, sent = pushes[:, hop_kernels.BRINGS], pushes[:, hop_kernels.FOLLOWS]
    lands = np.flatnonzero(brings != NONE)
    lands = lands[brings[lands].argsort()]
    follows = np.full(len(pushes), NONE, dtype=np.int64)
    if len(lands):
        at = np.minimum(np.searchsorted(brings[lands], sent), len(lands) - 1)
        follows = np.where((sent != NONE) & (brings[lands][at] == sent), lands[at], NONE)
    row = [hop_kernels.PART, hop_kernels.SOURCE, hop_kernels.TARGET, hop_kernels.FEEDS, hop_kernels.AFTER]
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
