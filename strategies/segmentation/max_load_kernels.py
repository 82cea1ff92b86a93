"""Compiled dynamic programme for the least largest load of accelerators and CPUs over ideals.

From every ideal that a good solution can reach, the ideals above it are walked along the lattice's steps while the
part of the load that can only grow stays below the ceiling; the load is carried along, changed by one atom at a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from maniple.strategies.segmentation.ideal_kernels import Index, Ticks, Words
from maniple.strategies.segmentation.pair_kernels import INFINITE

__all__: list[str] = []

Floats = npt.NDArray[np.float64]
Small = npt.NDArray[np.int16]


class LoadTables(NamedTuple):
    """A placement problem over a lattice.

    Args:
        members: the ideals, shape (ideals, words).
        first: where the steps from each ideal start in ``larger``.
        larger: the ideals with one atom more.
        steps: that atom, for every step.
        accelerator: ticks of each ideal on an accelerator; of an atom that none can run, very many.
        cpu: on a CPU.
        needed: ticks of each ideal on accelerators, without the atoms that none can run.
        sizes: bytes of each ideal.
        sent_rows: where the outputs that touch each atom start in ``sent``.
        sent: outputs, row by row.
        users: the atoms of each output, shape (outputs, words).
        transfer: ticks of each output.
        memory: bytes of an accelerator.
        overlap: whether transfers overlap with work (the larger counts); else they add.
    """

    members: Words
    first: Index
    larger: Index
    steps: Index
    accelerator: Ticks
    cpu: Ticks
    needed: Ticks
    sizes: Floats
    sent_rows: Index
    sent: Index
    users: Words
    transfer: Ticks
    memory: float
    overlap: bool


@numba.njit(cache=True, nogil=True)
def steps_of(first: Index, larger: Index, members: Words) -> Index:
    """The atom that each step of a lattice adds."""
    steps = np.empty(larger.size, dtype=np.int32)
    for i in range(first.size - 1):
        for e in range(first[i], first[i + 1]):
            for w in range(members.shape[1]):
                new = members[larger[e], w] & ~members[i, w]
                if new != np.uint64(0):
                    place = 0
                    while new & np.uint64(1) == np.uint64(0):
                        new >>= np.uint64(1)
                        place += 1
                    steps[e] = (w << 6) + place
    return steps


@numba.njit(cache=True, nogil=True)
def grown(tables: LoadTables, start: int, inside: int, atom: int) -> tuple[np.int64, np.int64]:
    """How transfers change when an atom joins the stage from ideal ``start`` to ideal ``inside``.

    Returns:
        Ticks of outputs shared with what is before the stage, which stay, and of those shared with what is after it.
    """
    lasting, passing = np.int64(0), np.int64(0)
    words = tables.members.shape[1]
    for place in range(tables.sent_rows[atom], tables.sent_rows[atom + 1]):
        output = tables.sent[place]
        before, touched, left = False, False, False
        for w in range(words):
            users = tables.users[output, w]
            reached = tables.members[inside, w]
            if (atom >> 6) == w:
                reached |= np.uint64(1) << np.uint64(atom & 63)
            before = before or (users & tables.members[start, w]) != np.uint64(0)
            touched = touched or (users & tables.members[inside, w] & ~tables.members[start, w]) != np.uint64(0)
            left = left or (users & ~reached) != np.uint64(0)
        if before:
            if not touched:
                lasting += tables.transfer[output]
        elif not touched:
            passing += tables.transfer[output]
        elif not left:
            passing -= tables.transfer[output]
    return lasting, passing


@numba.njit(cache=True, nogil=True)
def least_load(
    tables: LoadTables, accelerators: int, cpus: int, ceiling: int, saving: float, best: Ticks, choice: Index
) -> int:
    """The least largest load below a ceiling.

    Args:
        tables: see there.
        accelerators: how many.
        cpus: how many.
        ceiling: only loads below it count.
        saving: ticks of an accelerator that a CPU's tick can replace, at most.
        best: result, shape (ideals, accelerators + 1, cpus + 1): the largest load of what is inside the ideal.
        choice: result, same shape and 2: the ideal before the last stage, and 1 for a CPU.

    Returns:
        The number of stages that were looked at.
    """
    count = tables.members.shape[0]
    best[:] = INFINITE
    best[0, 0, 0] = 0
    seen = np.full(count, -1, dtype=np.int32)
    queue = np.empty(count, dtype=np.int32)
    lasting, passing = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    looked = 0
    for i in range(count - 1):
        if not _alive(tables.needed[count - 1] - tables.needed[i], best[i], ceiling, saving):
            continue
        queue[0], seen[i], lasting[i], passing[i] = i, i, 0, 0
        head, tail = 0, 1
        while head < tail:
            j = queue[head]
            head += 1
            for e in range(tables.first[j], tables.first[j + 1]):
                k = tables.larger[e]
                if seen[k] == i:
                    continue
                seen[k] = i
                more, changed = grown(tables, i, j, tables.steps[e])
                lasting[k], passing[k] = lasting[j] + more, passing[j] + changed
                work = tables.accelerator[k] - tables.accelerator[i]
                least = max(work, lasting[k]) if tables.overlap else work + lasting[k]
                holds = tables.sizes[k] - tables.sizes[i] <= tables.memory and least < ceiling
                hosted = tables.cpu[k] - tables.cpu[i]
                if not holds and hosted >= ceiling:
                    continue
                queue[tail] = k
                tail += 1
                looked += 1
                moved = lasting[k] + passing[k]
                load = INFINITE
                if holds:
                    load = max(work, moved) if tables.overlap else work + moved
                _end(i, load, hosted, ceiling, best[i], best[k], choice[k])
    return looked


@numba.njit(cache=True, nogil=True)
def _alive(rest: int, best: Ticks, ceiling: int, saving: float) -> bool:
    """Whether the devices that are left can take the rest; strikes the counts of devices with which they cannot."""
    alive = False
    for a in range(best.shape[0]):
        for c in range(best.shape[1]):
            if best[a, c] < ceiling:
                if rest > ceiling * ((best.shape[0] - 1 - a) + (best.shape[1] - 1 - c) * saving):
                    best[a, c] = INFINITE
                else:
                    alive = True
    return alive


@numba.njit(cache=True, nogil=True)
def _end(start: int, load: int, hosted: int, ceiling: int, before: Ticks, best: Ticks, choice: Index) -> None:
    """End a stage on an accelerator or on a CPU, for every count of devices before it."""
    for a in range(best.shape[0]):
        for c in range(best.shape[1]):
            total = max(before[a, c], load)
            if a + 1 < best.shape[0] and total < ceiling and total < best[a + 1, c]:
                best[a + 1, c], choice[a + 1, c, 0], choice[a + 1, c, 1] = total, start, 0
            total = max(before[a, c], hosted)
            if c + 1 < best.shape[1] and total < ceiling and total < best[a, c + 1]:
                best[a, c + 1], choice[a, c + 1, 0], choice[a, c + 1, 1] = total, start, 1


@numba.njit(cache=True, nogil=True)
def least_serial(
    tables: LoadTables, atom_cpu: Ticks, blocks: int, ceiling: int, rest: Ticks, best: Ticks, choice: Index
) -> int:
    """The least time of one sample that passes one block after the other, each on an accelerator of its own.

    Args:
        tables: see there.
        atom_cpu: ticks of each atom on a CPU, where nothing is transferred.
        blocks: how many accelerators there are.
        ceiling: only times below it count.
        rest: for each ideal, ticks that what is outside takes at least.
        best: result, shape (ideals, blocks + 1).
        choice: result, same shape and 2: the ideal before the last block or atom, and 1 for a CPU.

    Returns:
        The number of blocks that were looked at.
    """
    count = tables.members.shape[0]
    best[:] = INFINITE
    best[0, 0] = 0
    seen = np.full(count, -1, dtype=np.int32)
    queue = np.empty(count, dtype=np.int32)
    lasting, passing = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    looked = 0
    for i in range(count - 1):
        for a in range(blocks + 1):
            if best[i, a] + rest[i] >= ceiling:
                best[i, a] = INFINITE
        soonest = best[i].min()
        if soonest == INFINITE:
            continue
        for e in range(tables.first[i], tables.first[i + 1]):
            k = tables.larger[e]
            _extend(i, atom_cpu[tables.steps[e]], 0, best[i], best[k], choice[k])
        queue[0], seen[i], lasting[i], passing[i] = i, i, 0, 0
        head, tail = 0, 1
        while head < tail:
            j = queue[head]
            head += 1
            for e in range(tables.first[j], tables.first[j + 1]):
                k = tables.larger[e]
                if seen[k] == i or tables.sizes[k] - tables.sizes[i] > tables.memory:
                    continue
                seen[k] = i
                more, changed = grown(tables, i, j, tables.steps[e])
                lasting[k], passing[k] = lasting[j] + more, passing[j] + changed
                work = tables.accelerator[k] - tables.accelerator[i]
                if soonest + work + lasting[k] + rest[k] >= ceiling:
                    continue
                queue[tail] = k
                tail += 1
                looked += 1
                _extend(i, work + lasting[k] + passing[k], 1, best[i], best[k], choice[k])
    return looked


@numba.njit(cache=True, nogil=True)
def _extend(start: int, load: int, blocks: int, before: Ticks, best: Ticks, choice: Index) -> None:
    """Append a block on an accelerator (1), or an atom on a CPU (0)."""
    for a in range(best.size - blocks):
        total = before[a] + load
        if total < best[a + blocks]:
            best[a + blocks], choice[a + blocks, 0], choice[a + blocks, 1] = total, start, 1 - blocks
