"""Parts of fragments: what of a region's rows is done in the memories of a rank, and of those that it looks at. Pure.

Of a region that four ranks write, gather and read, what rank 1 lists:

    ==========  =================  ===========
    table       whole              part
    ==========  =================  ===========
    tasks       0 1 2 3, 0 1 2 3   1, 1
    movements   the all-gather     the same
    uses        of 0, 1, 2, 3      of 1
    pushes      0>1 0>2 ... 3>2    those with 1
    instances   0, 1, 2, 3         0, 1, 2, 3
    edges       all                all
    ==========  =================  ===========

Dependences are those of all rows: one order is found for all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.adjacency import csr
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.lane import MOST_NEIGHBOURS
from maniple.runtime.schedule.schedule import RowKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from maniple.runtime.analysis.fragment import Fragment, Table
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Column, Flags

__all__: list[str] = []


Sent = tuple["Fragment", int, bool]
"""Of a region its fragment, the bytes of an element, and whether its valid instances outlive a run."""


def listed(machine: Machine, known: Collection[int] | None, regions: Sequence[Sent], *, turns: bool) -> Flags:
    """Say of each memory whether it is listed what is done there: in those that are known, and by their neighbours.

    It is in all where all ranks might be neighbours, where regions take turns with storage, which is told of all
    memories, and where one was analysed use by use.

    Args:
        machine: the machine.
        known: the memories of a rank; none: all.
        regions: the regions.
        turns: whether regions take turns with storage.
    """
    ranks = {memory.rank for memory in machine.memories}
    others = ranks.difference(machine.memories[memory].rank for memory in known or ())
    found: Flags = np.full(len(machine.memories), fill_value=True)
    if known is None or turns or len(others) <= MOST_NEIGHBOURS:
        return found
    if all(fragment.blocks is not None for fragment, *_ in regions):
        found[:] = False
        found[[*known, *neighbours(machine, known, regions)]] = True
    return found


def neighbours(machine: Machine, known: Collection[int], sent: Sequence[Sent]) -> list[int]:
    """Give the memories of the ranks to which most of what lives within a run goes as single tiles.

    Args:
        machine: the machine.
        known: the memories that these tiles leave.
        sent: the regions.
    """
    got: Counter[int] = Counter()
    alike = Counter((id(fragment), size, outlives) for fragment, size, outlives in sent)
    fragments = {id(fragment): fragment for fragment, *_ in sent}
    known_memories = np.isin(np.arange(len(machine.memories)), list(known))
    for (number, size, outlives), times in alike.items():
        fragment = fragments[number]
        single = fragment.kinds[fragment.transfers[:, columns.NODE]] == RowKind.COPY
        if not single.any():
            continue
        pushed = fragment.transfers[single]
        memory, kind = fragment.instances[:, 0], fragment.instances[:, 1]
        source = pushed[:, columns.SOURCE]
        goes = known_memories[memory[source]] & ~(outlives & (kind[source] == InstanceKind.MAIN))
        ends = memory[pushed[goes, columns.TARGET]].tolist()
        for target, elements in zip(ends, fragment.elements[pushed[goes, columns.NODE]].tolist(), strict=True):
            got[machine.memories[target].rank] += elements * size * times
    for place in known:
        got.pop(machine.memories[place].rank, None)
    found = sorted(got, key=lambda rank: (-got[rank], rank))[:MOST_NEIGHBOURS]
    return [memory for rank in found for memory in machine.memories_of(rank)]


def part_of(fragment: Fragment, known: Flags) -> tuple[Fragment, Column]:
    """Give what of an arranged fragment is done in some memories, and the numbers of the tasks that are left.

    Movements are all there, but of these only uses of what lies there, pushes that leave or come there and folds there;
    and of the instances those that are left in any of that. Dependences are those of all.
    """
    here = known[fragment.instances[:, 0]]
    tasks = np.flatnonzero(here[fragment.tasks[:, columns.TASK_INSTANCE]])
    used, pushed, folded = fragment.accesses, fragment.transfers, fragment.pieces
    used = used[here[used[:, columns.INSTANCE]]]
    pushed = pushed[here[pushed[:, columns.SOURCE]] | here[pushed[:, columns.TARGET]]]
    stays = here.copy()
    for left in (pushed[:, columns.SOURCE], pushed[:, columns.TARGET], folded[:, columns.FOLDED], fragment.parts):
        stays[left] = True
    names = np.cumsum(stays) - 1

    def named(table: Table, *numbers: int) -> Table:
        table = table.copy()
        for column in numbers:
            table[:, column] = names[table[:, column]]
        return table

    found = replace(
        fragment,
        tasks=named(fragment.tasks[tasks], columns.TASK_INSTANCE),
        accesses=named(used, columns.INSTANCE),
        transfers=named(pushed, columns.SOURCE, columns.TARGET),
        pieces=named(folded, columns.FOLDED),
        parts=names[fragment.parts],
        instances=fragment.instances[stays],
    )
    return found, tasks


def has_to_do(machine: Machine, listed: Flags, processors: Column, *starts: Column) -> Flags:
    """Say of each row whether it runs in listed memories, or has anything in columns that list what is done there.

    Args:
        machine: the machine.
        listed: whether each memory is.
        processors: by row the processor, or -1.
        starts: where what is listed of each row begins.
    """
    place = np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
    found: Flags = (processors >= 0) & listed[place[processors]]
    for first in starts:
        found |= first[1:] > first[:-1]
    return found


def members_of(count: int, placed: Iterable[tuple[Column, Fragment]]) -> tuple[Column, Column]:
    """Give, behind starts by row, the memories that take part in each collective whose blocks are listed.

    Args:
        count: how many rows there are.
        placed: the rows of movements, and the fragment that they are of.
    """
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for moves, fragment in placed:
        if fragment.blocks is not None and len(fragment.blocks.ends):
            ends = fragment.blocks.ends
            rows = moves[ends[:, columns.NODE]]
            pairs.append(np.stack((rows, ends[:, columns.MEMORY_OF_END]), axis=1))
    return csr(count, np.concatenate(pairs))
