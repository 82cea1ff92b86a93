"""A vigil over the ranks: who is alive, by one clock, and who gets on, by another. Pure.

A rank's *echo* needs no interpreter: it stops only if the process is stopped or cannot be reached. Its interpreter
tells its *headway* as often as it gets to: a count that changes with everything that gets on, and whether the rank only
waits.

=========  ===============  ==========  ======================================  =======================================
echo       progress         its word    others                                  verdict
=========  ===============  ==========  ======================================  =======================================
none 5 s                                                                        silent: the process is stopped or away
yes        some                                                                 none
yes        none for long    works       none waits as long                      none: busy is not dead
yes        none for long    works       one waits as long                       hung: the first that stopped getting on
yes        none for long    waits       all wait as long                        stuck: nobody is to blame
yes        none for 20 s    works       one waits as long                       late: said, and nothing done
=========  ===============  ==========  ======================================  =======================================

A rank whose word is older than `WORD_S` works: whatever it does keeps the interpreter lock, and no wait does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.runtime.transports.message import Headway

__all__: list[str] = []

SILENCE_S = 5.0
"""An echo comes back every second, without the interpreter: five in a row that do not are no accident of scheduling."""
HANG_S = 300.0
"""What a rank does between two calls (a data set read, a model built, kernels compiled) takes minutes at most."""
LATE_S = 20.0
"""Whoever waits for a rank as long wants to know for whom; it is said once for each time that a rank stands still."""
WORD_S = 3.0
"""A rank's interpreter tells its headway twice a second where it can; six words in a row that do not come are told."""


class Trouble(Enum):
    """What is wrong with a rank, or with all."""

    SILENT = "silent"
    HUNG = "hung"
    STUCK = "stuck"
    LATE = "late"


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What a vigil found.

    Args:
        trouble: what is wrong.
        rank: whose it is; for all of them, the one that has waited longest.
        seconds: for how long.
        witness: the rank that waits longest meanwhile, where one hangs.
        gone: ranks whose programs have ended, where all others wait.
        doing: the task that the rank is in, if it has told.
    """

    trouble: Trouble
    rank: int
    seconds: float
    witness: int | None = None
    gone: tuple[int, ...] = ()
    doing: str = ""

    def describe(self, place: Callable[[int], str], called: str) -> str:
        """Say it.

        Args:
            place: names a rank.
            called: what the rank called last.
        """
        where, still = place(self.rank), f"has not got on for {self.seconds:.0f} s"
        called = f", in task `{self.doing}`{called}" if self.doing else called
        if self.trouble is Trouble.LATE and self.witness is not None:
            return f"{where} is late: {place(self.witness)} has waited {self.seconds:.0f} s for it{called}"
        if self.trouble is Trouble.SILENT:
            return f"{where} has not answered for {self.seconds:.0f} s (stopped or unreachable){called}"
        advice = (
            "the stacks of all ranks are in their logs; put what takes longer into `with mp.world().busy(seconds):`, "
            "or raise --hang-timeout"
        )
        if self.witness is not None:
            return f"{where} {still} while {place(self.witness)} waits{called}; {advice}"
        gone = f" ({', '.join(map(place, self.gone))} ended before)" if self.gone else ""
        return f"no rank has got on for {self.seconds:.0f} s, all wait{gone}; {where} waits longest{called}; {advice}"


@dataclass(slots=True)
class _Watched:
    heard: float
    moved: float
    told: float
    progress: int = -1
    waits_since: float | None = None
    era: int = 0
    excused_until: float = 0.0
    ended: bool = False
    doing: str = ""
    named: bool = False


@final
class Vigil:
    """What is known of the ranks that have joined, as pure transitions on a clock that is passed in.

    Args:
        hang_s: seconds without progress after which a rank that others wait for hangs.
        silence_s: seconds without an echo after which a rank is silent.
    """

    def __init__(self, hang_s: float = HANG_S, silence_s: float = SILENCE_S) -> None:
        self._hang_s = hang_s
        self._silence_s = silence_s
        self._ranks: dict[int, _Watched] = {}
        self._era = 0  # how many programs have ended: a wait that began before the last of these is none

    def admit(self, rank: int, now: float) -> None:
        """Watch a rank from now on."""
        self._ranks[rank] = _Watched(now, now, now)

    def note_echo(self, rank: int, now: float) -> None:
        """Take in that a rank's echo came back."""
        self._ranks[rank].heard = now

    def note(self, rank: int, word: Headway, now: float) -> None:
        """Take in a rank's word; it is no sign of life, since it may have lain in a queue."""
        watched = self._ranks[rank]
        fresh = now - watched.told <= WORD_S
        watched.told, watched.doing = now, word.doing
        excused = word.patience > 0
        if word.progress != watched.progress or excused or now < watched.excused_until:
            watched.progress, watched.moved, watched.waits_since, watched.named = word.progress, now, None, False
        watched.excused_until = now + word.patience / 1000 if excused else now
        if not word.waits:
            watched.waits_since = None
        elif watched.waits_since is None or watched.era != self._era or not fresh:
            watched.waits_since, watched.era = now, self._era

    def end(self, rank: int) -> None:
        """Take in that a rank's program ended; its process stays, and its echo with it, until all have.

        It may have ended a wait of others, whose word of that is on its way: from here on they wait anew.
        """
        self._ranks[rank].ended = True
        self._era += 1

    def forget(self, rank: int) -> None:
        """Watch a rank no more: its process has ended."""
        self._ranks.pop(rank, None)

    def forgive(self, gap: float) -> None:
        """Move all clocks on by a time in which nobody watched."""
        for watched in self._ranks.values():
            watched.heard += gap
            watched.moved += gap
            watched.told += gap
            if watched.waits_since is not None:
                watched.waits_since += gap

    def look(self, now: float) -> Verdict | None:
        """Judge: the rank that has been silent longest, or else the one that stopped getting on first."""
        silent = [(one.heard, rank) for rank, one in self._ranks.items() if now - one.heard > self._silence_s]
        if silent and not all(one.ended for one in self._ranks.values()):
            heard, rank = min(silent)
            return Verdict(Trouble.SILENT, rank, now - heard)
        if len(self._ranks) < 2:
            return None
        running, waiting, working = self._standing(now)
        if not waiting:
            return None
        since, witness = min(waiting)
        if working and now - since >= self._hang_s:
            moved, rank = min(working)
            if now - moved >= self._hang_s:
                return Verdict(Trouble.HUNG, rank, now - moved, witness, doing=running[rank].doing)
        if len(waiting) == len(running) and all(now - each >= self._hang_s for each, _ in waiting):
            gone = tuple(sorted(self._ranks.keys() - running.keys()))
            return Verdict(Trouble.STUCK, witness, now - since, gone=gone)
        return None

    def late(self, now: float) -> Verdict | None:
        """Give a rank for which another has waited long, once for each time that it stands still."""
        running, waiting, working = self._standing(now)
        late = [(moved, rank) for moved, rank in working if now - moved >= LATE_S and not running[rank].named]
        if not late or not waiting or now - min(waiting)[0] < LATE_S:
            return None
        (moved, rank), (since, witness) = min(late), min(waiting)
        running[rank].named = True
        return Verdict(Trouble.LATE, rank, now - max(moved, since), witness, doing=running[rank].doing)

    def _standing(self, now: float) -> tuple[dict[int, _Watched], list[tuple[float, int]], list[tuple[float, int]]]:
        """Give the programs that run, which of them wait, since when, and which do not, and when these got on last."""
        # A program that has ended wants nothing of the others, and may wait for them as long as they like.
        running = {rank: one for rank, one in self._ranks.items() if not one.ended}
        expected = {rank: one for rank, one in running.items() if now >= one.excused_until}
        waiting = [
            (one.waits_since, rank)
            for rank, one in expected.items()
            if one.waits_since is not None and one.era == self._era and now - one.told <= WORD_S
        ]
        waits = {rank for _, rank in waiting}
        return running, waiting, [(one.moved, rank) for rank, one in expected.items() if rank not in waits]
