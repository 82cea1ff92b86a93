"""Attempts at a run: one that failed is followed by another, as often as the run may begin again.

    attempt   hosts          program                                 ended
    =======   ============   =====================================   =============================
    0         alpha, beta    steps 0 to 37, checkpoints at 10 to 30   beta is silent: lost
    1         alpha, gamma   resumes at 30, goes on                   done

Every attempt is a run of its own: new processes, a new world, new log files. That training goes on where it was is the
program's part: it resumes from its last whole checkpoint. What is refused (exit status 2), interrupted or done ends it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.cluster.coordinator_event import Finish
    from maniple.runtime.cluster.restarts.course import Course

__all__: list[str] = []

FAILED = 1
"""The exit status of runs that may begin again."""


@final
@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended.

    Args:
        ranks: how many ranks it had.
        finish: how it ended.
        course: when it got how far.
    """

    ranks: int
    finish: Finish
    course: Course


def persist(restarts: int, begin: Callable[[int, Finish | None], Attempt | None]) -> int:
    """Begin a run, and again whenever it fails.

    Args:
        restarts: how often it may begin again.
        begin: runs attempt n, after one that ended so; None where no hosts are left for it.

    Returns:
        The exit status of the last attempt.
    """
    attempts: list[Attempt] = []
    for number in count():
        attempt = begin(number, attempts[-1].finish if attempts else None)
        if attempt is None:
            break
        attempts.append(attempt)
        if attempt.finish.status != FAILED or number == restarts:
            break
        say(f"the run begins again, for the {_ordinal(number + 1)} time of at most {restarts}")
    if len(attempts) > 1:
        for line in describe(attempts):
            say(line)
    return attempts[-1].finish.status


def say(text: str) -> None:
    """Tell the user."""
    sys.stdout.flush()
    sys.stderr.write(f"maniple: {text}\n")
    sys.stderr.flush()


def describe(attempts: Sequence[Attempt]) -> list[str]:
    """Say what each attempt did, and what each failure cost.

    Args:
        attempts: in order; at least one.
    """
    lines = [f"{len(attempts)} attempts:"]
    for number, attempt in enumerate(attempts, 1):
        course, end = attempt.course, attempt.finish.message or ("done" if attempt.finish.status == 0 else "refused")
        steps = f", steps {course.before} to {course.reached}" if course.reached else ""
        lasted = _between(course.begun, course.faulted or course.ended)
        lines.append(f"  {number}: {attempt.ranks} ranks, {lasted}{steps}; {end.splitlines()[0]}")
        if number < len(attempts):
            lines.append(f"     cost: {_cost(attempt.course, attempts[number].course)}")
    return lines


def _cost(failed: Course, next_: Course) -> str:
    """Say what a failure cost, part by part, up to the first step of the next attempt."""
    parts = [
        f"{max(0, failed.reached - next_.before)} steps to be done again" if next_.reached else "no step done since",
        f"{_between(failed.faulted, failed.ended)} until all ranks had ended",
        f"{_between(next_.begun, next_.joined)} until all had joined again",
    ]
    if next_.stepped is not None:
        parts.append(f"{_between(next_.joined, next_.stepped)} from there to the first step done")
        parts.append(f"{_between(failed.faulted, next_.stepped)} in all")
    return ", ".join(parts)


def _between(start: float | None, end: float | None) -> str:
    return "no time known" if start is None or end is None else f"{end - start:.1f} s"


def _ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in {11, 12, 13} else 0, "th")
    return f"{number}{suffix}"
