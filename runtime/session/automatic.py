"""Automatic tracing: repeated launches found in the program's stream, and replayed without annotation."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from maniple.runtime.program.body import TaskBinder
from maniple.runtime.program.launch_execution import Calls, Frames
from maniple.runtime.session.periods import find_repeats
from maniple.runtime.session.trace import Recording, Trace

if TYPE_CHECKING:
    from maniple.runtime.execution.dynamic import DynamicLaunches
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.program.operation import Operation
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.session.periods import Word

__all__: list[str] = []

SHORTEST = 4
"""Launches that a trace must have to be worth a replay."""
SCALE = 32
"""Launches between two looks at the history."""
WINDOW = SCALE << 7
"""Launches that are remembered."""
PATIENCE = 4
"""How often a trace may be begun and not finished, beyond the times that it was."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A trace that was found.

    Args:
        word: its tokens.
        trace: the recording made of them.
        credit: how much more often it was begun and finished than begun and given up, plus `PATIENCE`.
    """

    word: Word
    trace: Trace
    credit: int = PATIENCE


class AutomaticTracing:
    """What is known of the stream of launches: its history as tokens, and the traces found there.

    A simplified Apophenia (Yadav et al., "Automatic Tracing in Task-Based Runtime Systems", ASPLOS 2025, section 4).
    Launches that differ in nothing but values share a token. Every `SCALE` launches the recent past is searched for
    repeats (`find_repeats`), each time as far back as the ruler function says, so that short loops are found soon and
    long ones without searching everything again and again:

        look            1  2  3  4  5  6  7  8
        launches / 32   1  2  1  4  1  2  1  8

    A trace that was found is replayed when its first launch comes: the launches are held back while they agree with
    it, and started one by one if one does not. Where the program waits for a value no trace may go on.

    Args:
        rank: the rank.
        dynamic: the program's regions and the path of launches that are not replayed.
    """

    def __init__(self, rank: RankRuntime, dynamic: DynamicLaunches) -> None:
        self.candidates: list[Candidate] = []
        self._rank = rank
        self._dynamic = dynamic
        self._tokens: dict[object, int] = {}
        self._known: dict[int, tuple[Operation, Launch, tuple[type, ...]]] = {}
        self._history: deque[int] = deque(maxlen=WINDOW)
        self._breaks = count(-1, -1)
        self._numbers = count()
        self._seen = 0
        self._refused: set[Word] = set()

    def interrupt(self) -> None:
        """Say that here the program waits, or does what no trace holds."""
        self._history.append(next(self._breaks))

    def note(self, operation: Operation, launch: Launch) -> None:
        """Take in a launch that was started by itself, and now and then look for repeats."""
        key = operation.key()
        token = self._tokens.get(key)
        if token is None:
            token = self._tokens[key] = next(self._numbers)
            kinds = tuple(map(type, operation.values))
            self._known[token] = (operation.without_values(), _detach(launch), kinds)
        self._history.append(token)
        self._seen += 1
        if self._seen % SCALE == 0:
            look = self._seen // SCALE
            self._search(SCALE * (look & -look))

    def begun_by(self, operation: Operation) -> Candidate | None:
        """Give the longest trace that begins with a launch."""
        token = self._tokens.get(operation.key())
        return next((candidate for candidate in self.candidates if candidate.word[0] == token), None)

    def judge(self, candidate: Candidate, *, finished: bool) -> None:
        """Count a replay, or a replay that was given up; a trace that is given up too often goes."""
        candidate.credit = min(candidate.credit + 1, 2 * PATIENCE) if finished else candidate.credit - 1
        if candidate.credit < 0:
            self.candidates.remove(candidate)
            self._refused.add(candidate.word)
            candidate.trace.discard()

    def forget(self, region: int) -> None:
        """Forget the launches and traces that name a region."""
        for candidate in [found for found in self.candidates if found.trace.uses(region)]:
            self.candidates.remove(candidate)
            candidate.trace.discard()
        for key, token in list(self._tokens.items()):
            if any(requirement.region.id == region for requirement in self._known[token][1].requirements):
                # The token stays in the history, where it can begin nothing any more.
                del self._tokens[key], self._known[token]

    def _search(self, back: int) -> None:
        recent = list(self._history)[-back:] if back < len(self._history) else list(self._history)
        held = {candidate.word for candidate in self.candidates}
        alive = set(self._tokens.values())
        for word in find_repeats(recent, SHORTEST):
            if word not in held and word not in self._refused and alive.issuperset(word):
                recording = Recording()
                for token in word:
                    recording.take_down(*self._known[token])
                name = "automatic " + ".".join(map(str, word[:4]))
                self.candidates.append(Candidate(word, Trace(name, recording, self._rank, self._dynamic)))
        self.candidates.sort(key=lambda candidate: (-len(candidate.word), candidate.word))


def _detach(launch: Launch) -> Launch:
    """A launch whose binder keeps no call alive."""
    binder = launch.binder
    return (
        replace(launch, binder=replace(binder, frames=Frames([Calls()]))) if isinstance(binder, TaskBinder) else launch
    )
