"""Step conflicts: which steps of one row have to wait for which steps of another, by what both touch. Pure.

Two steps conflict where one of them writes what both touch of an instance. In an exchange among n members that share
memory, n - 1 pushes write blocks of a member's instance, and as many read the one block of its own; of the same
exchange in the next run each block meets itself alone:

    instance of 0   block 0          block 1       block 2
    written by      its fold         push 1 -> 0   push 2 -> 0
    read by         push 0 -> 1, 2

So steps are looked at by what they touch, and of many such spaces only those that meet.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from maniple.regions.index_space import crossing, meets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule.draft import Touch

__all__: list[str] = []

Spaces = dict["IndexSpace", tuple[list[int], list[int]]]
"""By what they touch of one instance: the steps of a row, by number, that write it, and those that only read it."""
Users = dict[int, Spaces]
"""The same by instance."""
FEW = 64
"""Below so many comparisons, comparing all costs less than sorting."""


def users_of(touches: Iterable[Sequence[Touch]]) -> Users:
    """Give what uses each instance, from what each step touches."""
    users: Users = {}
    for number, used in enumerate(touches):
        for instance, space, writes in used:
            users.setdefault(instance, {}).setdefault(space, ([], []))[not writes].append(number)
    return users


def conflicts(earlier: Users, later: Users) -> dict[int, set[int]]:
    """Give, by step of the later row, the steps of the earlier one that it has to wait for."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for instance in earlier.keys() & later.keys():
        for first, second in _meeting(earlier[instance], later[instance]):
            (writers, readers), (rewriters, rereaders) = earlier[instance][first], later[instance][second]
            for then in rewriters:
                found[then].update(writers, readers)
            for then in rereaders if writers else ():
                found[then].update(writers)
    return found


def _meeting(earlier: Spaces, later: Spaces) -> Iterator[tuple[IndexSpace, IndexSpace]]:
    """Give what some touch and what others touch, as far as the two share an element."""
    if len(earlier) * len(later) < FEW:
        yield from ((first, second) for first in earlier for second in later if meets(first, second))
        return
    spaces = [*earlier, *(space for space in later if space not in earlier)]
    yield from ((space, space) for space in earlier if space in later and not space.is_empty)
    for one, other in crossing(spaces):
        for first, second in ((spaces[one], spaces[other]), (spaces[other], spaces[one])):
            if first in earlier and second in later:
                yield first, second
