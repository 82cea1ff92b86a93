"""Kernels of the frontier: the search of the branches, depth first over choices, each leaf timed from its fragments.

What `frontier` and `layer_fragment` lay out in arrays is read here. A choice is gone past where a symmetry makes an
earlier one of it, or where some bound with its rest is no less than the limit; a plan that is complete is put together
from its fragments and simulated, and only one that lacks a fragment, or is nearly the fastest, is handed out.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel
from maniple.runtime.schedule.order import first_come

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Sums = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Cube = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]
Tables = tuple[Integers, Integers, Grid, Flags]
"""By layer the first of the tables of terms that it completes; the offset of each, its strides by layer, and whether it
is of decided layers alone, not of the rest."""
Index = tuple[Integers, Integers, Grid]
"""Numbers of fragments by group and choices; where each group begins there, and its strides by layer."""
Kept = tuple[Grid, Grid, Grid, Grid, Grid]
"""Heads, launches, rows, holds and edges of the fragments."""
Known = tuple[Index, Kept, tuple[int, int, int]]
"""Fragments, of which those with numbers below the first of the last three count; how many launches and lanes there
are."""

FOUND, PAUSED, ENDED = range(3)
LEAF = 20
"""A plan counts as so many more choices that are tried."""
UNKNOWN = -1
HERE = -1
"""Instead of a launch: the rows of the fragment itself."""
# The columns of heads come in pairs, from and to.
LAUNCHES, ROWS, HOLDS, EDGES = range(0, 8, 2)
KEY, DURATION, COUNT = range(3)


@inner
def _add(sums: Sums, whole: Floats, terms: Floats, tables: Tables, place: Integers, depth: int) -> None:
    """What the choice at a depth makes of the sums, and these with the rest."""
    starts, offsets, strides, decided = tables
    mine = sums[depth + 1]
    mine[:] = sums[depth]
    for table in range(starts[depth], starts[depth + 1]):
        if decided[table]:
            at = offsets[table]
            for layer in range(depth + 1):
                at += strides[table, layer] * place[layer]
            for bound in range(len(mine)):
                mine[bound] += terms[at + bound]
    whole[:] = mine
    for table in range(starts[depth], starts[depth + 1]):
        if not decided[table]:
            at = offsets[table]
            for layer in range(depth + 1):
                at += strides[table, layer] * place[layer]
            for bound in range(len(mine)):
                whole[bound] += terms[at + bound]


@kernel
def advance(
    place: Integers,
    least: Floats,
    terms: Floats,
    tables: Tables,
    sizes: Integers,
    images: Cube,
    fragments: Known,
    limits: tuple[int, int, int],
) -> tuple[int, int]:
    """See ``Frontier.after``; `place` is changed. Gives the state, and how many plans were timed."""
    most, near, tries = limits
    timed = 0
    depths = len(sizes)
    sums = np.empty((depths + 1, len(least)))
    sums[0] = least
    alive = np.ones((depths + 1, images.shape[1]), dtype=np.bool_)
    whole = np.empty(len(least))
    depth = 0
    # What the position has decided is added up again; its last choice was tried already.
    while depth < depths - 1 and place[depth + 1] >= 0:
        _add(sums, whole, terms, tables, place, depth)
        alive[depth + 1] = alive[depth] & (images[depth, :, place[depth]] == place[depth])
        depth += 1
    while depth >= 0:
        place[depth] += 1
        choice = place[depth]
        if choice >= sizes[depth]:
            place[depth] = -1
            depth -= 1
            continue
        if not _is_first(images[depth], alive[depth], choice):
            continue
        tries -= 1
        _add(sums, whole, terms, tables, place, depth)
        if whole.max() < most:
            if depth == depths - 1:
                makespan = assembled_ns(place, fragments, near)
                tries -= LEAF
                if makespan == UNKNOWN or makespan < near:
                    return FOUND, timed
                timed += 1
            else:
                alive[depth + 1] = alive[depth] & (images[depth, :, choice] == choice)
                depth += 1
                continue  # a pause here would forget what lies below: the position names choices that were tried
        if tries <= 0:
            return PAUSED, timed
    return ENDED, timed


@inner
def _is_first(images: Grid, alive: Flags, choice: int) -> bool:
    """Whether no symmetry that keeps all choices before makes an earlier choice of this one."""
    return not (alive & (images[:, choice] < choice)).any()


@kernel
def assembled_ns(place: Integers, fragments: Known, limit: int) -> int:
    """See ``Fragments.step_ns``."""
    index, kept, (count, slots, lanes) = fragments
    chosen = _choose(place, index, count)
    if chosen.min() == UNKNOWN:
        return UNKNOWN
    load = _load(chosen, kept, lanes).max()
    if load >= limit:
        return int(load)
    rank, base, first = _ranks(chosen, kept, slots)
    pairs = np.empty((_count(chosen, kept[0], EDGES), 2), np.int64)
    at = 0
    for group, fragment in enumerate(chosen):
        for edge in range(kept[0][fragment, EDGES], kept[0][fragment, EDGES + 1]):
            for end in range(2):
                slot, point = kept[4][edge, 2 * end], kept[4][edge, 2 * end + 1]
                pairs[at, end] = rank[point + (base[group] if slot == HERE else first[slot])]
            at += 1
    duration, held = _columns(chosen, kept, rank, _count(chosen, kept[0], HOLDS))
    return first_come(duration, held, _successors(pairs, len(rank)), lanes)[2]


@inner
def _choose(place: Integers, index: Index, count: int) -> Integers:
    """The fragment of each group, if its number is below the count."""
    numbers, starts, strides = index
    chosen = np.empty(len(starts), np.int64)
    for group in range(len(starts)):
        entry = starts[group]
        for layer in range(len(place)):
            entry += strides[group, layer] * place[layer]
        chosen[group] = numbers[entry] if numbers[entry] < count else UNKNOWN
    return chosen


@inner
def _count(chosen: Integers, heads: Grid, part: int) -> int:
    """How many rows, holds or edges some fragments have."""
    count = 0
    for fragment in chosen:
        count += heads[fragment, part + 1] - heads[fragment, part]
    return count


@inner
def _load(chosen: Integers, kept: Kept, lanes: int) -> Integers:
    """For how long each lane is held."""
    load = np.zeros(lanes, np.int64)
    for fragment in chosen:
        for hold in range(kept[0][fragment, HOLDS], kept[0][fragment, HOLDS + 1]):
            load[kept[3][hold, 0]] += kept[3][hold, 1]
    return load


@inner
def _ranks(chosen: Integers, kept: Kept, slots: int) -> tuple[Integers, Integers, Integers]:
    """The rank of each row by its key, and the first row of each fragment and of each launch."""
    heads, launches, rows, _, _ = kept
    keys, base = np.empty(_count(chosen, heads, ROWS), np.int64), np.empty(len(chosen), np.int64)
    first = np.empty(slots, np.int64)
    at = 0
    for group, fragment in enumerate(chosen):
        base[group] = at
        for launch in range(heads[fragment, LAUNCHES], heads[fragment, LAUNCHES + 1]):
            first[launches[launch, 0]] = at + launches[launch, 1]
        for row in range(heads[fragment, ROWS], heads[fragment, ROWS + 1]):
            keys[at] = rows[row, KEY]
            at += 1
    rank = np.empty(len(keys), np.int64)
    rank[np.argsort(keys)] = np.arange(len(keys))
    return rank, base, first


@inner
def _columns(
    chosen: Integers, kept: Kept, rank: Integers, count: int
) -> tuple[Integers, tuple[Integers, Integers, Integers]]:
    """Durations and holds by rank."""
    heads, _, rows, holds, _ = kept
    duration, starts = np.empty(len(rank), np.int64), np.zeros(len(rank) + 1, np.int64)
    at = 0
    for fragment in chosen:
        for row in range(heads[fragment, ROWS], heads[fragment, ROWS + 1]):
            duration[rank[at]], starts[rank[at] + 1] = rows[row, DURATION], rows[row, COUNT]
            at += 1
    starts[:] = np.cumsum(starts)
    lanes, spans = np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    for fragment in chosen:
        hold = heads[fragment, HOLDS]
        for row in range(heads[fragment, ROWS], heads[fragment, ROWS + 1]):
            for place in range(rows[row, COUNT]):
                lanes[starts[rank[at]] + place], spans[starts[rank[at]] + place] = holds[hold, 0], holds[hold, 1]
                hold += 1
            at += 1
    return duration, (starts, lanes, spans)


@inner
def _successors(pairs: Grid, count: int) -> tuple[Integers, Integers]:
    """Starts and rows of who waits for each row."""
    starts = np.zeros(count + 1, np.int64)
    for pair in range(len(pairs)):
        starts[pairs[pair, 0] + 1] += 1
    starts[:] = np.cumsum(starts)
    filled, found = starts.copy(), np.empty(len(pairs), np.int64)
    for pair in range(len(pairs)):
        found[filled[pairs[pair, 0]]] = pairs[pair, 1]
        filled[pairs[pair, 0]] += 1
    return starts, found
