"""The lanes of one small schedule, step by step as the module's table has them; `tests/laws/` has all others."""

from __future__ import annotations

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule import lane
from maniple.runtime.schedule.lane import Layout, StepKind
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.schedule import Schedule

WHOLE = Rect((0,), (4,))
HALVES = (Rect((0,), (2,)), Rect((2,), (4,)))
SUM = LogicalRegion(1, "sum", WHOLE, "float64")
STATE = LogicalRegion(0, "state", WHOLE, "float64")


def launch(name: str, *uses: tuple[LogicalRegion, Privilege, tuple[Rect, ...]]) -> Launch:
    """A task on each of two ranks."""
    return Launch(name, (Point((0,), 0), Point((1,), 1)), tuple(Requirement(*use) for use in uses), None)


def counted() -> Schedule:
    """Two ranks add to a sum that both look at; each adds half of it to its half of a state."""
    launches = (
        launch("contribute", (SUM, reduce("+"), (WHOLE, WHOLE))),
        launch("look", (SUM, READ, (WHOLE, WHOLE))),
        launch("update", (STATE, READ_WRITE, HALVES), (SUM, READ, HALVES)),
    )
    homes = {STATE.id: ((0, HALVES[:1]), (1, HALVES[1:]))}
    return lower(Program(launches, homes), FragmentCache(Machine.cpu(1, ranks=2)))


def drawn(schedule: Schedule) -> list[tuple[str, str, str, str]]:
    """The rows of the table: what each lane does, and the steps of the other one that it waits for."""
    rows: list[list[str]] = []
    for rank in range(2):
        (steps,) = Layout(schedule, (rank,), (0, 1)).lanes().steps.values()
        for number, step in enumerate(steps):
            if rank == 0:
                rows.append([])
            names = {
                StepKind.RUN: lambda row=step.row: schedule.label(row).partition("@")[0],
                StepKind.MEET: lambda item=step.item: f"meet rank {item}",
                StepKind.PUSH: lambda step=step: f"push piece {piece_of(schedule, step.row, step.item)}",
                StepKind.FOLD: lambda item=step.item: f"fold piece {item}",
                StepKind.END: lambda: "end",
            }
            waits = [f"p{other}'s step {value - 1}" for other, value in step.waits]
            rows[number] += [names[step.kind](), ", ".join(waits)]
    return [(a, b, c, d) for a, b, c, d in rows]


def piece_of(schedule: Schedule, row: int, number: int) -> int:
    push = schedule.transfers(row)[number]
    return max(push.feeds, push.after)


def test_the_table_of_the_module() -> None:
    drawing = [line for line in str(lane.__doc__).splitlines() if line.startswith("    ")]
    ruler = drawing[0] + " "
    starts = [i for i in range(len(ruler)) if ruler[i] == "=" and ruler[i - 1] == " "]
    ends = [*starts[1:], None]
    table = [tuple(line[a:b].strip() for a, b in zip(starts, ends, strict=True)) for line in drawing[3:-1]]
    assert [row[1:] for row in table] == drawn(counted())


def test_what_nobody_waits_for_is_not_told() -> None:
    (steps,) = Layout(counted(), (0,), (0, 1)).lanes().steps.values()
    assert [step.told for step in steps] == [False, False, True, True, True, True, False, False]


def test_a_rank_alone_hands_every_movement_to_the_copy_engine() -> None:
    schedule = counted()
    lanes = Layout(schedule, (1,), (1,)).lanes()
    kinds = [step.kind for step in lanes.steps[1]]
    assert kinds == [StepKind.RUN, StepKind.START, StepKind.RUN, StepKind.RUN]
    assert lanes.engine == (2,)
    # What the copy engine has moved is counted by a counter of the row's own.
    assert lanes.steps[1][2].waits == ((-3, 1),)
