"""Compiled loops over ideals as bit sets."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel

__all__: list[str] = []

Words = npt.NDArray[np.uint64]
Index = npt.NDArray[np.int32]
Ticks = npt.NDArray[np.int64]

_ONE = np.uint64(1)


@numba.njit(cache=True, nogil=True, inline="always")
def holds(row: Words, node: int) -> bool:
    """Whether a bit set has a node."""
    return bool(((row[node >> 6] >> np.uint64(node & 63)) & _ONE) != np.uint64(0))


@kernel
def _mix(node: int) -> np.uint64:
    """A fixed random-looking word for a node (splitmix64)."""
    z = np.uint64(node + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def _rehash(hashes: Words, count: int, slots: int) -> Index:
    table = np.full(slots, -1, dtype=np.int32)
    for i in range(count):
        slot = np.int64(hashes[i, 0] & np.uint64(slots - 1))
        while table[slot] >= 0:
            slot = (slot + 1) & (slots - 1)
        table[slot] = i
    return table


@kernel
def _grow(array: Words, count: int, size: int) -> Words:
    larger = np.empty((size, array.shape[1]), dtype=np.uint64)
    larger[:count] = array[:count]
    return larger


@kernel
def _longer(array: Index, count: int, size: int) -> Index:
    longer = np.empty(size, dtype=np.int32)
    longer[:count] = array[:count]
    return longer


@kernel
def enumerate_all(
    n: int, words: int, below: Index, sources: Index, above: Index, targets: Index, limit: int
) -> tuple[int, Words, Index, Index, Index, Index]:
    """All ideals, breadth first: by size, and in the order in which they are reached by adding the lowest node first.

    Returns:
        How many there are (limit + 1: too many), the sets, rows of the steps to sets with one node more, and for each
        set one with a node less and that node.
    """
    room, slots = 1024, 4096
    members, free = np.zeros((room, words), dtype=np.uint64), np.zeros((room, words), dtype=np.uint64)
    hashes, larger = np.zeros((room, 1), dtype=np.uint64), np.empty(0, dtype=np.int32)
    parent, added = np.full(room, -1, dtype=np.int32), np.full(room, -1, dtype=np.int32)
    first = np.zeros(room + 1, dtype=np.int32)
    _release_sources(below, free[0])
    table = _rehash(hashes, 1, slots)
    count, edges, i = 1, 0, 0
    while i < count:
        first[i] = edges
        if edges + n > larger.size:
            larger = _longer(larger, edges, 2 * (edges + n))
        # Every step from this set may lead to a new one.
        if count + n > room:
            room = 2 * (count + n)
            members, free, hashes = _grow(members, count, room), _grow(free, count, room), _grow(hashes, count, room)
            parent, added = _longer(parent, count, room), _longer(added, count, room)
            first = _longer(first, count, room + 1)
        if 2 * (count + n) > slots:
            slots = _power_of_two(4 * (count + n))
            table = _rehash(hashes, count, slots)
        for word in range(words):
            rest = free[i, word]
            while rest != np.uint64(0):
                low = rest & (~rest + _ONE)
                rest ^= low
                node = (word << 6) + _trailing(low)
                key = hashes[i, 0] ^ _mix(node)
                slot = _slot(table, hashes, members, i, word, low, key)
                if table[slot] < 0:
                    if count == limit:
                        return limit + 1, members[:1], first[:2], larger[:0], parent[:1], added[:1]
                    members[count], free[count] = members[i], free[i]
                    members[count, word] |= low
                    free[count, word] ^= low
                    _release(node, members[count], free[count], below, sources, above, targets)
                    hashes[count, 0], parent[count], added[count], table[slot] = key, i, node, count
                    count += 1
                larger[edges] = table[slot]
                edges += 1
        i += 1
    first[count] = edges
    return (
        count,
        members[:count].copy(),
        first[: count + 1].copy(),
        larger[:edges].copy(),
        parent[:count],
        added[:count],
    )


@kernel
def _power_of_two(least: int) -> int:
    """The least power of two that is at least a number."""
    power = 1
    while power < least:
        power *= 2
    return power


@kernel
def _release_sources(below: Index, free: Words) -> None:
    """Mark the nodes without predecessors as free to join."""
    for node in range(below.size - 1):
        if below[node] == below[node + 1]:
            free[node >> 6] |= _ONE << np.uint64(node & 63)


@kernel
def _slot(table: Index, hashes: Words, members: Words, row: int, word: int, low: np.uint64, key: np.uint64) -> np.int64:
    """Where a set with one node more is in the table, or belongs."""
    slot = np.int64(key & np.uint64(table.size - 1))
    while table[slot] >= 0:
        j = table[slot]
        if hashes[j, 0] == key and _is_extension(members[j], members[row], word, low):
            break
        slot = (slot + 1) & (table.size - 1)
    return slot


@kernel
def _trailing(low: np.uint64) -> int:
    """The place of the only bit that is set."""
    place = 0
    for step in (32, 16, 8, 4, 2, 1):
        if low >> np.uint64(step) != np.uint64(0):
            low >>= np.uint64(step)
            place += step
    return place


@kernel
def _is_extension(candidate: Words, row: Words, word: int, low: np.uint64) -> bool:
    for w in range(row.size):
        expected = row[w] | low if w == word else row[w]
        if candidate[w] != expected:
            return False
    return True


@kernel
def _release(node: int, inside: Words, free: Words, below: Index, sources: Index, above: Index, targets: Index) -> None:
    """Mark the successors of a node that now have all their predecessors inside as free to join."""
    for e in range(above[node], above[node + 1]):
        target = targets[e]
        ready = True
        for p in range(below[target], below[target + 1]):
            if not holds(inside, sources[p]):
                ready = False
                break
        if ready:
            free[target >> 6] |= _ONE << np.uint64(target & 63)


@kernel
def totals(parent: Index, added: Index, weights: Ticks) -> Ticks:
    """Sums of node weights over each ideal, shape (ideals, k)."""
    sums = np.zeros((parent.size, weights.shape[1]), dtype=np.int64)
    for i in range(1, parent.size):
        for k in range(weights.shape[1]):
            sums[i, k] = sums[parent[i], k] + weights[added[i], k]
    return sums


@kernel
def crossings(
    parent: Index,
    added: Index,
    members: Words,
    made: Index,
    read_rows: Index,
    read: Index,
    reader_rows: Index,
    readers: Index,
    sizes: Ticks,
) -> Ticks:
    """Bytes of the tensors that leave each ideal, shape (ideals,).

    Args:
        parent: an ideal with one node less.
        added: that node.
        members: the ideals.
        made: where the tensors of each node start; they are numbered by producer.
        read_rows: where the tensors that each node reads start in ``read``.
        read: tensors.
        reader_rows: where the readers of each tensor start in ``readers``.
        readers: nodes.
        sizes: bytes of each tensor.
    """
    out = np.zeros(parent.size, dtype=np.int64)
    for i in range(1, parent.size):
        node = added[i]
        size = out[parent[i]]
        for tensor in range(made[node], made[node + 1]):
            if reader_rows[tensor] < reader_rows[tensor + 1]:
                size += sizes[tensor]
        for place in range(read_rows[node], read_rows[node + 1]):
            tensor = read[place]
            used_up = True
            for e in range(reader_rows[tensor], reader_rows[tensor + 1]):
                if not holds(members[i], readers[e]):
                    used_up = False
                    break
            if used_up:
                size -= sizes[tensor]
        out[i] = size
    return out
