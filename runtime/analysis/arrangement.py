"""Arrangement: a fragment whose collectives go by the movement plans that were chosen for them.

Analysis says what a collective moves as if all went direct. Here its pushes and folds become the hops of another plan:
what a member sends goes to its parent in the tree of the block's owner, and a parent folds it into a tile of its own,
which is new, and sends that. Where the plan cuts blocks into pieces, every piece is pushed and folded by itself, in the
block's tiles. No row, dependence or byte is added: who takes part in a row is as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.space_piece import PiecedSpaces
from maniple.runtime.schedule import movement_plan
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.movement_plan import DIRECT, FOLDS, OWNER, RECEIVER, SENDER

if TYPE_CHECKING:
    from maniple.runtime.analysis.fragment import Fragment, Table
    from maniple.runtime.schedule.schedule import Column

__all__: list[str] = []

NONE = -1


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
    instances, parts = fragment.instances.tolist(), fragment.parts.tolist()
    kept = [[*row, NONE] for row in fragment.transfers[stays[0]].tolist()]
    spaces = PiecedSpaces(fragment.spaces)
    made = _Made([], kept, fragment.pieces[stays[1]].tolist(), instances, parts, spaces)
    for move in moves.tolist():
        _Exchange(fragment, move, int(plans[move]), hosts, tour).arrange(made, int(pieces[move]))
    return replace(
        fragment,
        accesses=_by_move([*fragment.accesses.tolist(), *made.accesses], columns.SLOT + 1),
        transfers=_by_move(made.transfers, columns.FOLLOWS + 1),
        pieces=_by_move(made.pieces, columns.LAST + 1),
        parts=np.asarray(parts, dtype=np.int64),
        instances=columns.table([tuple(row) for row in instances], 4),
        spaces=spaces.all(),
    )


def _by_move(rows: list[list[int]], width: int) -> Table:
    """Rows by ascending movement, those of one in the order in which they were given."""
    return columns.table([tuple(row) for row in sorted(rows, key=lambda row: row[columns.NODE])], width)


@dataclass(frozen=True, slots=True)
class _Made:
    """The rows of a fragment's tables, while those of its collectives are added."""

    accesses: list[list[int]]
    transfers: list[list[int]]
    pieces: list[list[int]]
    instances: list[list[int]]
    parts: list[int]
    spaces: PiecedSpaces

    def uses(self, move: int, space: int, instance: int, *, writes: bool) -> None:
        """Let a movement use a space of an instance."""
        self.accesses.append([move, space, instance, int(writes), 0 if writes else 1])

    def folds(self, move: int, space: int, memory: int, target: int, parts: list[int]) -> None:
        """Let a movement fold a space of some parts into an instance."""
        self.pieces.append([move, space, memory, target, len(self.parts), len(self.parts) + len(parts)])
        self.parts.extend(parts)

    def tile(self, memory: int, like: int) -> int:
        """Make a tile as large as another, in a memory."""
        _, _, space, elements = self.instances[like]
        self.instances.append([memory, InstanceKind.STAGING, space, elements])
        return len(self.instances) - 1


@dataclass(frozen=True, slots=True)
class _Block:
    """What one member of a group owns.

    Args:
        owner: the member, by place.
        space: the elements.
        kept: the instance at the owner.
        own: of each member, by place, the tile that it gives; of none where nothing is folded.
        staged: of each other member the tile that what it sends lands in.
    """

    owner: int
    space: int
    kept: int
    own: dict[int, int]
    staged: dict[int, int]


class _Exchange:
    """A collective that goes direct, and the hops of a plan for it.

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
        self.places = np.searchsorted(self.group, ends[0]), np.searchsorted(self.group, ends[1])
        lasting = transfers[:, columns.FEEDS] == NONE
        mains = transfers[lasting, columns.TARGET].tolist()
        self.mains = dict(zip(self.places[1][lasting].tolist(), mains, strict=True))
        pieces = fragment.pieces[fragment.pieces[:, columns.NODE] == move].tolist()
        self.reduces, self.spreads = bool(pieces), bool(lasting.any())
        self.blocks = self._folded(fragment, transfers, pieces) if pieces else self._sent(transfers)
        owns = np.zeros(len(self.group), dtype=np.int64)
        owns[[block.owner for block in self.blocks]] = 1
        self.hops = movement_plan.table(plan, hosts[self.group], tour[self.group], owns, self.reduces, self.spreads)

    def _folded(self, fragment: Fragment, transfers: Table, pieces: list[list[int]]) -> list[_Block]:
        """The blocks of a reduction, as they are folded."""
        own: list[dict[int, int]] = [{} for _ in pieces]
        staged: list[dict[int, int]] = [{} for _ in pieces]
        for place, row in zip(self.places[0].tolist(), transfers.tolist(), strict=True):
            fed = row[columns.FEEDS]
            if fed != NONE:
                own[fed][place], staged[fed][place] = row[columns.SOURCE], row[columns.TARGET]
        found = []
        for number, (_, space, memory, target, first, last) in enumerate(pieces):
            owner = int(np.searchsorted(self.group, memory))
            (own[number][owner],) = set(fragment.parts[first:last].tolist()) - set(staged[number].values())
            found.append(_Block(owner, space, target, own[number], staged[number]))
        return found

    def _sent(self, transfers: Table) -> list[_Block]:
        """The blocks that members have and all others get."""
        found = []
        first: dict[int, int] = {}
        for source, target, row in zip(
            self.places[0].tolist(), self.places[1].tolist(), transfers.tolist(), strict=True
        ):
            if first.setdefault(source, target) == target:
                found.append(_Block(source, row[columns.SPACE], row[columns.SOURCE], {}, {}))
        return sorted(found, key=lambda block: block.owner)

    def arrange(self, made: _Made, pieces: int) -> None:
        """Add the pushes and folds of the plan, by phase and piece and, within one, round the ring."""
        hops = self.hops[self.hops[:, OWNER].argsort(kind="stable")]
        first = np.searchsorted(hops[:, OWNER], np.arange(len(self.group) + 1))
        own = [made.spaces.cut(block.space, pieces) for block in self.blocks]
        # The folds of owners come first, block by block and piece by piece, then those of others.
        starts = np.cumsum([0, *map(len, own)]).tolist() if self.reduces else [0] * (len(own) + 1)
        folds: list[tuple[int, int, int, list[int]]] = []
        further: list[tuple[int, int, int, list[int]]] = []
        pushes: list[_Push] = []
        for number, block in enumerate(self.blocks):
            mine = hops[first[block.owner] : first[block.owner + 1]].tolist()
            sends, fold_of = dict(block.own), dict[int, int]()
            for member, parts in _parts(block, mine).items():
                target = block.kept
                if member == block.owner:
                    fold_of[member] = starts[number]
                else:
                    fold_of[member] = starts[-1] + len(further)
                    target = sends[member] = made.tile(int(self.group[member]), next(iter(block.staged.values())))
                    made.uses(self.move, block.space, target, writes=True)
                    made.uses(self.move, block.space, target, writes=False)
                found = folds if member == block.owner else further
                found += [(space, int(self.group[member]), target, parts) for space in own[number]]
            pushes += self._pushes(made, number, own[number], mine, sends, fold_of)
            onwards = {hop[SENDER] for hop in mine if not hop[FOLDS]} - {block.owner}
            for member in sorted(onwards):
                made.uses(self.move, block.space, self.mains[member], writes=False)
        for space, memory, target, parts in (*folds, *further):
            made.folds(self.move, space, memory, target, parts)
        self._send(made, pushes)

    def _pushes(
        self,
        made: _Made,
        number: int,
        spaces: list[int],
        hops: list[list[int]],
        sends: dict[int, int],
        fold_of: dict[int, int],
    ) -> list[_Push]:
        """Make the pushes of a block's hops, one for each of its pieces."""
        block, found = self.blocks[number], []
        for phase, sender, receiver, owner, folds in hops:
            if folds:
                source, target = sends[sender], block.staged[sender]
                made.instances[target][0] = int(self.group[receiver])
            else:
                source, target = block.kept if sender == owner else self.mains[sender], self.mains[receiver]
            for piece, space in enumerate(spaces):
                feeds = fold_of[receiver] + piece if folds else NONE
                after = fold_of[sender] + piece if (folds or sender == owner) and sender in fold_of else NONE
                turn = (phase + piece, piece, (receiver - sender) % len(self.group), sender, owner, number)
                row = [self.move, space, source, target, feeds, after, NONE]
                onwards = not folds and sender != owner
                found.append(_Push(turn, row, (space, receiver), (space, sender) if onwards else None))
        return found

    def _send(self, made: _Made, pushes: list[_Push]) -> None:
        """Add pushes in their turns; one that sends on what another has brought follows that."""
        pushes.sort(key=lambda push: push.turn)
        brought: dict[tuple[int, int], int] = {}
        for place, push in enumerate(pushes):
            if push.follows is not None:
                push.row[columns.FOLLOWS] = brought[push.follows]
            if push.row[columns.FEEDS] == NONE:
                brought[push.brings] = place
            made.transfers.append(push.row)


@dataclass(frozen=True, slots=True)
class _Push:
    """A push of a plan.

    Args:
        turn: its place among those of its row.
        row: its row of the table of transfers.
        brings: the piece, by its space, and the member that gets it.
        follows: the piece and the member that must have got it; None where nobody must.
    """

    turn: tuple[int, ...]
    row: list[int]
    brings: tuple[int, int]
    follows: tuple[int, int] | None


def _parts(block: _Block, hops: list[list[int]]) -> dict[int, list[int]]:
    """What each member folds of a block: tiles of its children and its own, by ascending memory."""
    children: dict[int, list[int]] = {}
    for hop in hops:
        if hop[FOLDS]:
            children.setdefault(hop[RECEIVER], []).append(hop[SENDER])
    return {
        member: [block.own[at] if at == member else block.staged[at] for at in sorted([*sent, member])]
        for member, sent in sorted(children.items())
    }
