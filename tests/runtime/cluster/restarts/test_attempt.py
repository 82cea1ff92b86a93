"""Attempts: which ends are final, and what is said of those that are not."""

from __future__ import annotations

import pytest

from maniple.runtime.cluster.coordinator_event import Finish
from maniple.runtime.cluster.restarts.attempt import Attempt, persist
from maniple.runtime.cluster.restarts.course import Course

DEAD = Finish(1, "node 1 (rank 1) was killed by signal 9 (SIGKILL)\nmore", 1, (1,))


def attempts(*ends: Finish | None) -> tuple[list[Finish | None], object]:
    """What the program of `persist` is told, and that program: it ends as said, one after another."""
    told: list[Finish | None] = []

    def begin(number: int, before: Finish | None) -> Attempt | None:
        assert number == len(told)
        told.append(before)
        end = ends[number]
        return None if end is None else Attempt(2, end, Course())

    return told, begin


@pytest.mark.parametrize(
    ("restarts", "ends", "status"),
    [
        (0, [DEAD], 1),
        (3, [Finish(0, None, None)], 0),
        (3, [Finish(2, None, None)], 2),
        (3, [DEAD, Finish(130, "interrupted", None)], 130),
        (2, [DEAD, DEAD, DEAD], 1),
        (2, [DEAD, DEAD, Finish(0, None, None)], 0),
        (2, [DEAD, None], 1),
    ],
)
def test_what_failed_begins_again_as_often_as_it_may(
    restarts: int, ends: list[Finish | None], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    told, begin = attempts(*ends)
    assert persist(restarts, begin) == status  # type: ignore[arg-type]
    assert told == [None, *ends[:-1]]
    said = capsys.readouterr().err
    assert said.count("the run begins again") == len(ends) - 1
    assert (" attempts:" in said) == (sum(end is not None for end in ends) > 1)


def test_the_cost_of_a_failure_is_told_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    courses = iter(
        (
            Course(begun=0.0, joined=3.0, stepped=4.0, faulted=12.0, ended=13.0, before=0, reached=37),
            Course(begun=13.1, joined=16.0, stepped=17.5, ended=40.0, before=30, reached=100),
        )
    )
    ends = iter((DEAD, Finish(0, None, None)))
    persist(5, lambda *_: Attempt(2, next(ends), next(courses)))
    assert capsys.readouterr().err.splitlines() == [
        "maniple: the run begins again, for the 1st time of at most 5",
        "maniple: 2 attempts:",
        "maniple:   1: 2 ranks, 12.0 s, steps 0 to 37; node 1 (rank 1) was killed by signal 9 (SIGKILL)",
        (
            "maniple:      cost: 7 steps to be done again, 1.0 s until all ranks had ended, 2.9 s until all had joined "
            "again, 1.5 s from there to the first step done, 5.5 s in all"
        ),
        "maniple:   2: 2 ranks, 26.9 s, steps 30 to 100; done",
    ]


def test_steps_are_counted_from_what_a_run_resumed() -> None:
    course = Course()
    for now, reached in enumerate((30, 30, 33, 31, 36)):
        course.note_steps(30, reached, float(now))
    assert (course.before, course.reached, course.stepped) == (30, 36, 2.0)
