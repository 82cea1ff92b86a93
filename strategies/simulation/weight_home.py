"""Weight homes: where weights live and are updated, as arrays; by default as `operators/plan/weight_home.py` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.weight import at_home
from maniple.operators.rules.configuration import WeightPlan
from maniple.operators.rules.tile import split_range
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Point
from maniple.strategies.lowering import boxes, validity
from maniple.strategies.lowering.boxes import AXES, HIGH, LOW, Boxes
from maniple.strategies.lowering.compiled import inner, kernel
from maniple.strategies.lowering.region_cache import boxes_of

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.lowering.history import Table
    from maniple.strategies.lowering.network import Column

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightHome:
    """A weight's home.

    Args:
        degrees: into how many blocks each dimension is cut.
        places: the processors of the blocks, replicas next to each other.
        replicas: how many processors hold each block.
        processors: by update task, where it runs.
        colors: by update task, its block.
        blocks: by update task, what it updates.
        held: the same, labelled by memory.
    """

    degrees: tuple[int, ...]
    places: tuple[int, ...]
    replicas: int
    processors: Column
    colors: Column
    blocks: Boxes
    held: Boxes

    def plan(self) -> WeightPlan:
        """The home as a plan has it."""
        return WeightPlan(self.degrees, self.places, self.replicas)

    def points(self) -> list[Point]:
        """The points of a launch whose tasks run where the weight lives."""
        colors = zip(*(axis.tolist() for axis in np.unravel_index(self.colors, self.degrees or (1,))), strict=True)
        replica = np.arange(len(self.colors)) - np.searchsorted(self.colors, self.colors)
        return [Point(*point) for point in zip(colors, self.processors.tolist(), replica.tolist(), strict=True)]


def planned_home(shape: tuple[int, ...], plan: WeightPlan, machine: Machine) -> WeightHome:
    """The home that a plan names."""
    points, rects, home = at_home(shape, plan, machine)
    return WeightHome(
        plan.degrees,
        plan.processors,
        plan.replicas,
        np.asarray([point.processor for point in points], dtype=np.int64),
        np.cumsum([0, *(point.replica == 0 for point in points[1:])]),
        boxes_of((0, rect) for rect in rects),
        boxes_of((memory, rect) for memory, held in home for rect in held),
    )


def default_home(shape: tuple[int, ...], tiles: Boxes, users: Table, memory_of: Column) -> WeightHome:
    """The home where each block has one user, or else an even spread over all; see `operators.home.default_home`.

    Args:
        shape: the weight's.
        tiles: what tasks use of it; there is at least one.
        users: by tile the processors that use it.
        memory_of: the memory of each processor.
    """
    low, degrees, owners = _in_place(tiles, users, np.asarray(shape, dtype=np.int64))
    if len(owners):
        return _home(tuple(degrees.tolist()), owners, tiles[low], memory_of)
    return _spread_home(shape, tiles, users, memory_of)


def unread_home(shape: tuple[int, ...], processor: int, memory_of: Column) -> WeightHome:
    """The whole of a weight on one processor."""
    whole = boxes_of([(0, Rect.of_shape(shape))])
    return _home((1,) * len(shape), np.asarray([processor], dtype=np.int64), whole, memory_of)


def _spread_home(shape: tuple[int, ...], tiles: Boxes, users: Table, memory_of: Column) -> WeightHome:
    """Blocks along one dimension, each at a processor that uses it."""
    everyone, place = np.unique(users, return_inverse=True)
    whole = boxes_of([(0, Rect.of_shape(shape))])
    if not shape:
        return _home((), everyone[:1], whole, memory_of)
    cut = [axis for axis in range(len(shape)) if np.any(tiles[:, LOW + axis] != tiles[0, LOW + axis])]
    largest = max(range(len(shape)), key=lambda dimension: (shape[dimension], -dimension))
    axis = cut[0] if len(cut) == 1 and shape[cut[0]] >= len(everyone) else largest
    count = min(shape[axis], len(everyone))
    low, high = np.asarray(split_range(shape[axis], count)).T
    shares = np.minimum(high, tiles[:, HIGH + axis, None]) - np.maximum(low, tiles[:, LOW + axis, None])
    used = np.zeros((len(everyone), count), dtype=np.int64)
    for column in place.reshape(users.shape).T:
        np.maximum.at(used, column, shares)
    owners = np.empty(count, dtype=np.int64)
    for block in range(count):
        owner = int(used[:, block].argmax())
        used[owner], owners[block] = -1, everyone[owner]
    blocks = np.repeat(whole, count, axis=0)
    blocks[:, LOW + axis], blocks[:, HIGH + axis] = low, high
    degrees = tuple(count if dimension == axis else 1 for dimension in range(len(shape)))
    return _home(degrees, owners, blocks, memory_of)


def _home(degrees: tuple[int, ...], owners: Column, blocks: Boxes, memory_of: Column) -> WeightHome:
    blocks = blocks.copy()
    blocks[:, 0] = 0
    memories = memory_of[owners]
    order = np.argsort(memories, kind="stable")
    held = blocks[order]
    held[:, 0] = memories[order]
    return WeightHome(degrees, tuple(owners.tolist()), 1, owners, np.arange(len(owners)), blocks, held)


@kernel
def _in_place(tiles: Boxes, users: Boxes, shape: Column) -> tuple[Column, Column, Column]:
    """One tile of each block, the degrees and the owners, row-major; no owners where the tiles are no such blocks."""
    nothing = np.empty(0, dtype=np.int64)
    order = boxes.order_rows(tiles)
    first, owners = np.empty(len(tiles), dtype=np.int64), np.empty(len(tiles), dtype=np.int64)
    count = 0
    for place in range(len(order)):
        tile = order[place]
        for user in users[tile]:
            if user != users[tile, 0]:
                return nothing, nothing, nothing
        if place and _equal(tiles, first[count - 1], tile):
            if owners[count - 1] != users[tile, 0]:
                return nothing, nothing, nothing
            continue
        first[count], owners[count] = tile, users[tile, 0]
        count += 1
    degrees = np.ones(len(shape), dtype=np.int64)
    rank = np.empty((count, len(shape)), dtype=np.int64)
    blocks = 1
    for axis in range(len(shape)):
        degrees[axis] = _number(tiles, first[:count], axis, rank)
        blocks *= degrees[axis]
    if blocks != count:
        return nothing, nothing, nothing
    for number in range(count):
        for axis in range(len(shape)):
            size, rest, part = shape[axis] // degrees[axis], shape[axis] % degrees[axis], rank[number, axis]
            low = part * size + min(part, rest)
            high = low + size + (part < rest)
            if tiles[first[number], LOW + axis] != low or tiles[first[number], HIGH + axis] != high:
                return nothing, nothing, nothing
    return first[:count], degrees, owners[:count]


@inner
def _number(tiles: Boxes, first: Column, axis: int, rank: Table) -> int:
    """Number the lows of some tiles on an axis by size; how many differ. np.unique would take seconds to compile."""
    lows, used = np.empty(len(first), dtype=np.int64), 0
    for tile in first:
        used = validity.insert(lows, 0, used, tiles[tile, LOW + axis])
    for number in range(len(first)):
        rank[number, axis] = validity.place(lows, 0, used, tiles[first[number], LOW + axis])
    return used


@inner
def _equal(tiles: Boxes, i: int, j: int) -> bool:
    for column in range(LOW, LOW + 2 * AXES):
        if tiles[i, column] != tiles[j, column]:
            return False
    return True
