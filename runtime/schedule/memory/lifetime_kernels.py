"""Compiled rules of `lifetime`: what comes after each step, when instances begin, and which may be alive together.

Imports numba, so it is imported where the memory of a schedule is planned.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import kernel, leaf
from maniple.runtime.schedule.step_table import (
    BEGIN,
    END,
    NEED,
    NEVER,
    OR_BEGIN,
    OR_END,
    STEP,
    Bits,
    Clock,
    Column,
    Table,
)

__all__: list[str] = []


@kernel
def clocks(
    lanes: int, lane: Column, index: Column, starts: Column, needs: Column, carried: Table
) -> tuple[Clock, Clock]:
    """For every step the first step of each lane that begins after it has ended: in this run, and in the next."""
    count = len(lane)
    ended, renewed = np.full((count, lanes), NEVER, np.int32), np.full((count, lanes), NEVER, np.int32)
    following = np.full((lanes, lanes), NEVER, np.int32)  # what begins after the last step of a lane seen, it included
    _spread(ended, following, lane, index, starts, needs, True)
    # What the first step of a lane knows is known after the last one of the run before.
    for row in range(len(carried)):
        later, need = carried[row, STEP], carried[row, NEED]
        _lower(renewed, need, ended, later)
        if lane[later] >= 0:
            renewed[need, lane[later]] = min(renewed[need, lane[later]], index[later])
    _spread(renewed, following, lane, index, starts, needs, False)
    return ended, renewed


@leaf
def _spread(
    clock: Clock,
    following: Clock,
    lane: Column,
    index: Column,
    starts: Column,
    needs: Column,
    own: bool,  # noqa: FBT001
) -> None:
    """Have what is known after a step known after those that it comes after; its own place, too, if it is to be."""
    for step in range(len(lane) - 1, -1, -1):
        place = lane[step]
        if place >= 0:
            _lower(clock, step, following, place)
            _lower(following, place, clock, step)
            if own:
                following[place, place] = index[step]
        for at in range(starts[step], starts[step + 1]):
            _lower(clock, needs[at], clock, step)
            if own and place >= 0:
                clock[needs[at], place] = min(clock[needs[at], place], index[step])


@leaf
def _lower(clock: Clock, row: int, other: Clock, by: int) -> None:
    """Take the smaller of each two."""
    for lane in range(clock.shape[1]):
        clock[row, lane] = min(clock[row, lane], other[by, lane])


@kernel
def latest(clock: Clock, starts: Column, used: Table) -> Clock:
    """For every instance the first step of each lane that begins after all its uses have ended."""
    result = np.zeros((len(starts) - 1, clock.shape[1]), np.int32)
    for row in range(len(result)):
        for use in range(starts[row], starts[row + 1]):
            end, other = used[use, END], used[use, OR_END]
            for lane in range(clock.shape[1]):
                result[row, lane] = max(result[row, lane], min(clock[end, lane], clock[other, lane]))
    return result


@kernel
def first_uses(lane: Column, index: Column, starts: Column, used: Table) -> tuple[Column, Table]:
    """For every instance the steps with which it begins, but for those that come after others of them."""
    result, found = np.empty((len(used), 4), np.int64), np.zeros(len(starts), np.int64)
    count = 0
    for row in range(len(starts) - 1):
        for use in range(starts[row], starts[row + 1]):
            one, other = used[use, BEGIN], used[use, OR_BEGIN]
            result[count, 0], result[count, 1] = lane[one], index[one]
            result[count, 2], result[count, 3] = lane[other], index[other]
            if not _follows(result, found[row], count):
                count += 1
        found[row + 1] = count
    return found, result[:count].copy()


@leaf
def _follows(begins: Table, first: int, last: int) -> bool:
    """Whether a use begins after one of those before it: wherever that one is known to, so is it."""
    for before in range(first, last):
        if _is_behind(begins, before, 0, last) and _is_behind(begins, before, 2, last):
            return True
    return False


@leaf
def _is_behind(begins: Table, before: int, side: int, use: int) -> bool:
    """Whether a use begins with no earlier step of a lane than the one on one side of another."""
    lane, index = begins[before, side], begins[before, side + 1]
    first, second = begins[use, 0] == lane, begins[use, 2] == lane
    return bool((first and begins[use, 1] >= index) or (second and begins[use, 3] >= index))


@kernel
def clashes(rows: Column, starts: Column, begins: Table, ended: Clock, renewed: Clock) -> Bits:
    """Say of each two instances whether they may be alive together."""
    count = len(rows)
    found = np.zeros((count, count), np.bool_)
    for one in range(count):
        for other in range(one):
            a, b = rows[one], rows[other]
            turns = _through(ended, a, starts, begins, b) and _through(renewed, b, starts, begins, a)
            turns |= _through(ended, b, starts, begins, a) and _through(renewed, a, starts, begins, b)
            found[one, other] = found[other, one] = not turns
    return found


@leaf
def _through(clock: Clock, one: int, starts: Column, begins: Table, other: int) -> bool:
    """Whether all uses of one instance have ended before any of another begins, by what comes after the former."""
    for use in range(starts[other], starts[other + 1]):
        if clock[one, begins[use, 0]] > begins[use, 1] and clock[one, begins[use, 2]] > begins[use, 3]:
            return False
    return True
