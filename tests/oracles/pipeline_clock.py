"""A clock for pipelines, by the book: when each action of each lane begins, transfers taking no time.

Written without the code that it judges: it knows only lists of texts such as ``2F0``, a chain of stages, and that an
action begins when its lane is free and what it reads is there. Times are whole ticks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Timed:
    """A lane gone through: the text, the begin and the end of each action."""

    actions: tuple[tuple[str, int, int], ...]

    @property
    def busy(self) -> int:
        return sum(end - begin for _, begin, end in self.actions)

    @property
    def span(self) -> int:
        """From the lane's first tick to its last."""
        return self.actions[-1][2] - self.actions[0][1]

    @property
    def bubble(self) -> int:
        return self.span - self.busy


def parts_of(text: str) -> tuple[int, str, int]:
    stage, kind, part = re.fullmatch(r"(\d+)([A-Z])(\d+)", text).groups()  # type: ignore[union-attr]
    return int(stage), kind, int(part)


def timed(lanes: list[list[str]], ticks: dict[str, int], stages: int) -> list[Timed]:
    """Every lane in time.

    Args:
        lanes: their actions.
        ticks: what an action takes, by its kind.
        stages: how many there are in the chain.
    """
    ended: dict[tuple[int, str, int], int] = {}
    free = [0] * len(lanes)
    found: list[list[tuple[str, int, int]]] = [[] for _ in lanes]

    def arrived(stage: int, kind: str, part: int) -> int | None:
        """When all that an action reads is there; None if not yet known."""
        if kind == "F":
            return ended.get((stage - 1, "F", part)) if stage else 0
        if kind == "W":
            return ended.get((stage, "I", part))
        own = ended.get((stage, "F", part))
        above = 0 if stage == stages - 1 else ended.get((stage + 1, "BI", part))
        return None if own is None or above is None else max(own, above)

    moving = True
    while moving:
        moving = False
        for lane, actions in enumerate(lanes):
            while len(found[lane]) < len(actions):
                stage, kind, part = parts_of(actions[len(found[lane])])
                there = arrived(stage, kind, part)
                if there is None:
                    break
                begin = max(free[lane], there)
                free[lane] = begin + ticks[kind]
                ended[stage, kind, part] = free[lane]
                if kind in "BI":
                    ended[stage, "BI", part] = free[lane]
                found[lane].append((actions[len(found[lane])], begin, free[lane]))
                moving = True
    assert all(len(done) == len(actions) for done, actions in zip(found, lanes, strict=True)), "the lanes cannot meet"
    return [Timed(tuple(done)) for done in found]


def held(lane: list[str]) -> int:
    """The most micro-batches, one counted once for each stage, whose activations a lane holds at once."""
    alive: set[tuple[int, int]] = set()
    most = 0
    for stage, kind, part in map(parts_of, lane):
        if kind == "F":
            alive.add((stage, part))
        if kind in "BW":
            alive.remove((stage, part))
        most = max(most, len(alive))
    assert not alive
    return most


def bubble(lanes: list[list[str]], ticks: dict[str, int], stages: int) -> int:
    """The ticks that the worst lane waits between its first action and its last."""
    return max(lane.bubble for lane in timed(lanes, ticks, stages))
