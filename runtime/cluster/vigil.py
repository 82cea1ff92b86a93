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
=========  ===============  ==========  ======================================  =======================================

A rank whose word is older than `WORD_S` works: whatever it does keeps the interpreter lock, and no wait does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

SILENCE_S = 5.0
"""An echo comes back every second, without the interpreter: five in a row that do not are no accident of scheduling."""
HANG_S = 300.0
"""What a rank does between two calls (a data set read, a model built, kernels compiled) takes minutes at most."""
WORD_S = 3.0
"""A rank's interpreter tells its headway twice a second where it can; six words in a row that do not come are told."""


class Trouble(Enum):
    """What is wrong with a rank, or with all."""

    SILENT = "silent"
    HUNG = "hung"
    STUCK = "stuck"


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
    """

    trouble: Trouble
    rank: int
    seconds: float
    witness: int | None = None
    gone: tuple[int, ...] = ()

    def describe(self, place: Callable[[int], str], called: str) -> str:
        """Say it.

        Args:
            place: names a rank.
            called: what the rank called last.
        """
        where, still = place(self.rank), f"has not got on for {self.seconds:.0f} s"
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
    excused_until: float = 0.0
    ended: bool = False


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

    def admit(self, rank: int, now: float) -> None:
        """Watch a rank from now on."""
        self._ranks[rank] = _Watched(now, now, now)

    def note_echo(self, rank: int, now: float) -> None:
        """Take in that a rank's echo came back."""
        self._ranks[rank].heard = now

    def note_progress(self, rank: int, progress: int, now: float, *, waits: bool, patience_s: float = 0.0) -> None:
        """Take in a rank's word; it is no sign of life, since it may have lain in a queue.

        Args:
            rank: whose.
            progress: its count.
            now: seconds.
            waits: whether it only waits.
            patience_s: seconds from now within which its program expects no progress.
        """
        watched = self._ranks[rank]
        fresh = now - watched.told <= WORD_S
        watched.told = now
        excused = patience_s > 0
        if progress != watched.progress or excused or now < watched.excused_until:
            watched.progress, watched.moved, watched.waits_since = progress, now, None
        watched.excused_until = now + patience_s if excused else now
        if not waits:
            watched.waits_since = None
        elif watched.waits_since is None or not fresh:
            watched.waits_since = now

    def end(self, rank: int) -> None:
        """Take in that a rank's program ended; its process stays, and its echo with it, until all have.

        It may have ended a wait of others, whose word of that is on its way: from here on they wait anew.
        """
        self._ranks[rank].ended = True
        for watched in self._ranks.values():
            watched.waits_since = None

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
        # A program that has ended wants nothing of the others, and may wait for them as long as they like.
        running = {rank: one for rank, one in self._ranks.items() if not one.ended}
        waiting = {
            rank: one.waits_since
            for rank, one in running.items()
            if one.waits_since is not None and now - one.told <= WORD_S and now >= one.excused_until
        }
        patient = [(since, rank) for rank, since in waiting.items() if now - since >= self._hang_s]
        still = [
            (one.moved, rank)
            for rank, one in running.items()
            if rank not in waiting and now - one.moved >= self._hang_s and now >= one.excused_until
        ]
        if patient and still:
            moved, rank = min(still)
            return Verdict(Trouble.HUNG, rank, now - moved, min(patient)[1])
        if patient and len(patient) == len(running):
            since, rank = min(patient)
            gone = tuple(sorted(self._ranks.keys() - running.keys()))
            return Verdict(Trouble.STUCK, rank, now - since, gone=gone)
        return None
