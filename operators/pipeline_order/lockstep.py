"""Lists that wait for each other, gone through in lockstep: in every tick each list takes its next item if it may.

Two lanes of a pipeline, two micro-batches, an item a tick (``tests/operators/pipeline_order/test_lockstep.py``):

    lane 0   0F0  0F1  --   0B0  --   0B1
    lane 1   --   1F0  1B0  1F1  1B1  --

What all ticks hold, one after the other, is an order that every list and every need agrees with. Where the lists cannot
be gone through, the circle that they wait in is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

__all__: list[str] = []

T = TypeVar("T", bound="Hashable")


@final
class CircleError(RequestError):
    """Lists that wait for each other.

    Args:
        message: the circle.
        lanes: the numbers of the lists in it.
    """

    def __init__(self, message: str, lanes: tuple[int, ...]) -> None:
        super().__init__(message)
        self.lanes = lanes


def in_lockstep(
    lanes: Sequence[Sequence[T]], needs: Callable[[T], Iterable[T]], where: str = "order"
) -> list[list[T | None]]:
    """What each list takes in every tick; None where it waits.

    Args:
        lanes: the lists; no item stands twice.
        needs: what must be done before an item, besides what stands before it in its list.
        where: what the message of a circle begins with.

    Raises:
        CircleError: the lists wait for each other in a circle, or for something that no list has.
    """
    done: set[T] = set()
    places = [0] * len(lanes)
    left = sum(map(len, lanes))
    ticks: list[list[T | None]] = []
    while left:
        tick: list[T | None] = []
        for lane, place in zip(lanes, places, strict=True):
            ready = place < len(lane) and all(need in done for need in needs(lane[place]))
            tick.append(lane[place] if ready else None)
        taken = [item for item in tick if item is not None]
        if not taken:
            said, among = circle(lanes, places, needs, done)
            raise CircleError(f"{where}: {said}", among)
        done.update(taken)
        left -= len(taken)
        for index, item in enumerate(tick):
            places[index] += item is not None
        ticks.append(tick)
    return ticks


def circle(
    lanes: Sequence[Sequence[T]], places: Sequence[int], needs: Callable[[T], Iterable[T]], done: set[T]
) -> tuple[str, tuple[int, ...]]:
    """The circle that lists wait in, and the numbers of the lists in it.

    The circle is told as ``1B0 waits for 2B0, which stands after 2F3; 2F3 waits for ...``.

    Args:
        lanes: the lists.
        places: how far each has come; none may go on.
        needs: what must be done before an item.
        done: what was.
    """
    heads = {lane[place]: lane[place] for lane, place in zip(lanes, places, strict=True) if place < len(lane)}
    head_of = {item: lane[place] for lane, place in zip(lanes, places, strict=True) for item in lane[place:]}
    lane_of = {item: number for number, lane in enumerate(lanes) for item in lane}
    here, said, seen = next(iter(heads)), "", list[T]()
    while here not in seen:
        seen.append(here)
        wanted = next(need for need in needs(here) if need not in done)
        if wanted not in head_of:
            return f"{here} waits for {wanted}, which nothing does", (lane_of[here],)
        here = head_of[wanted]
    told = []
    for item in seen[seen.index(here) :]:
        wanted = next(need for need in needs(item) if need not in done)
        head = head_of[wanted]
        told.append(f"{item} waits for {wanted}" + ("" if head == wanted else f", which stands after {head}"))
    said = "; ".join(told)
    return f"cannot go on, for {said}", tuple(sorted({lane_of[item] for item in seen[seen.index(here) :]}))
