"""Compiled dynamic programme for the least largest load of accelerators and CPUs over ideals.

From every ideal that a good solution can reach, the ideals above it are walked along the lattice's steps while the
part of the load that can only grow stays below the ceiling; the load is carried along, changed by one atom at a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel
from maniple.strategies.pipeline.ideal_kernels import Index, Ticks, Words, holds
from maniple.strategies.pipeline.pair_kernels import INFINITE

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
        user_rows: where the atoms of each output start in ``users``.
        users: atoms, row by row.
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
    user_rows: Index
    users: Index
    transfer: Ticks
    memory: float
    overlap: bool


@kernel
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


@kernel
def grow(tables: LoadTables, start: int, inside: int, atom: int) -> tuple[int, int]:
    """How transfers change when an atom joins the stage from ideal ``start`` to ideal ``inside``.

    Returns:
        Ticks of outputs shared with what is before the stage, which stay, and of those shared with what is after it.
    """
    lasting: int = 0
    passing: int = 0
    for place in range(tables.sent_rows[atom], tables.sent_rows[atom + 1]):
        output = tables.sent[place]
        before, touched, left = False, False, False
        for e in range(tables.user_rows[output], tables.user_rows[output + 1]):
            user = tables.users[e]
            if user == atom:
                continue
            if holds(tables.members[start], user):
                before = True
            elif holds(tables.members[inside], user):
                touched = True
            else:
                left = True
        ticks = int(tables.transfer[output])
        if before:
            lasting += 0 if touched else ticks
        elif not touched:
            passing += ticks
        elif not left:
            passing -= ticks
    return lasting, passing


@kernel
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
        spare = _spare(tables.needed[count - 1] - tables.needed[i], best[i], ceiling, saving)
        if spare < 0:
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
                more, changed = grow(tables, i, j, tables.steps[e])
                lasting[k], passing[k] = lasting[j] + more, passing[j] + changed
                work = tables.accelerator[k] - tables.accelerator[i]
                least = max(work, lasting[k]) if tables.overlap else work + lasting[k]
                fits = tables.sizes[k] - tables.sizes[i] <= tables.memory and least < ceiling
                hosted = tables.cpu[k] - tables.cpu[i]
                if not fits and hosted >= ceiling:
                    continue
                queue[tail] = k
                tail += 1
                looked += 1
                moved = lasting[k] + passing[k]
                load = INFINITE
                if fits:
                    load = max(work, moved) if tables.overlap else work + moved
                # Too little in this stage for the devices that are left: nothing ends here.
                if tables.needed[count - 1] - tables.needed[k] <= ceiling * spare:
                    _end(i, load, hosted, ceiling, best[i], best[k], choice[k])
    return looked


@kernel
def _spare(rest: int, best: Ticks, ceiling: int, saving: float) -> float:
    """How many devices, counted in accelerators, are left at most after one more stage; -1 where the rest is too much.

    Strikes the counts of devices with which it is too much.
    """
    spare = -1.0
    for a in range(best.shape[0]):
        for c in range(best.shape[1]):
            if best[a, c] < ceiling:
                left = (best.shape[0] - 1 - a) + (best.shape[1] - 1 - c) * saving
                if rest > ceiling * left:
                    best[a, c] = INFINITE
                else:
                    # The stage takes one device, the weaker kind at best.
                    spare = max(spare, left - min(1.0, saving) if c + 1 < best.shape[1] else left - 1.0, 0.0)
    return spare


@kernel
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


@kernel
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
        soonest: int = best[i].min()
        if soonest == INFINITE:
            continue
        for e in range(tables.first[i], tables.first[i + 1]):
            k = tables.larger[e]
            alone = int(atom_cpu[tables.steps[e]])
            _extend(i, alone, 0, best[i], best[k], choice[k])
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
                more, changed = grow(tables, i, j, tables.steps[e])
                lasting[k], passing[k] = lasting[j] + more, passing[j] + changed
                work = tables.accelerator[k] - tables.accelerator[i]
                if soonest + work + lasting[k] + rest[k] >= ceiling:
                    continue
                queue[tail] = k
                tail += 1
                looked += 1
                _extend(i, work + lasting[k] + passing[k], 1, best[i], best[k], choice[k])
    return looked


@kernel
def _extend(start: int, load: int, blocks: int, before: Ticks, best: Ticks, choice: Index) -> None:
    """Append a block on an accelerator (1), or an atom on a CPU (0)."""
    for a in range(best.size - blocks):
        total = before[a] + load
        if total < best[a + blocks]:
            best[a + blocks], choice[a + blocks, 0], choice[a + blocks, 1] = total, start, 1 - blocks
