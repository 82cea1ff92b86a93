"""Segments: the steps of a device lane between two waits on something outside of its stream, as one submission.

What is outside waits for a segment too, by the one event at its end. So a segment ends after a step of which somebody
else is told, before a step that waits for somebody else, and before a movement is started:

    step        0 input   1 a   2 b (told)   3 start of a copy   4 c (waits for the copy)   5 d   6 fetch
    segment     |-------- 0 -------------|                       |------------- 1 ---------------|
    pieces      eager     graph                                  graph                           eager

Within a segment, pieces are what the device captures: neighbouring steps that put work into the stream and do nothing
else. They run once as they are, are captured as they run for the second time, and are one launch from then on. A step
that a device refuses to capture is left out from then on, with the reason: the pieces around it are captured later.

    run     1       2                     3       4         5
    steps   a b c   a b c, b is refused   a b c   [a] b c   [a] b [c]     [ ] one launch
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from maniple.runtime.devices.device import Refused
from maniple.runtime.schedule.lane import StepKind
from maniple.runtime.schedule.schedule import RowKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from maniple.runtime.devices.device import Captured
    from maniple.runtime.schedule.draft import Wait
    from maniple.runtime.schedule.lane import Step
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []

Waiting = tuple["Callable[[int, int], object]", int, int, int]


class BoundStep(NamedTuple):
    """A step that is bound.

    Args:
        row: its row.
        call: the body or fold; None starts the row's movement.
        eager: why it cannot be captured; "" if it may be.
        waits: what the lane's thread waits for: (how, where, counter, value).
        behind: the device lanes that it waits for: (counter, value).
        told: the steps taken with it, where somebody waits for it; else 0.
    """

    row: int
    call: Callable[[], object] | None
    eager: str
    waits: tuple[Waiting, ...]
    behind: tuple[Wait, ...]
    told: int


@final
class Piece:
    """Neighbouring steps of a segment that are captured together, or one that is not.

    Args:
        steps: the steps.
        eager: why they cannot be captured; "" if they may be.
        ran: whether they have run.
    """

    def __init__(self, steps: Sequence[BoundStep], eager: str = "", *, ran: bool = False) -> None:
        self.steps = tuple(steps)
        self.eager = eager
        self.bare = all(getattr(step.call, "bare", False) for step in steps)
        self.graph: Captured | None = None
        self.ran = ran


@final
class Segment:
    """Steps that are one submission.

    Args:
        steps: the steps; only the first waits for what is outside.
        capture: the device's; runs them, and gives what issues them again.
    """

    def __init__(
        self,
        steps: Sequence[BoundStep],
        capture: Callable[[Sequence[Callable[[], object]]], Captured | Refused],
    ) -> None:
        self.first = steps[0]
        self.rows = np.array([step.row for step in steps])
        self.told = steps[-1].told
        self.pieces = _cut(steps)
        self.failed: tuple[int, BaseException] | None = None
        """The row whose body raised, and what."""
        self.bare = False
        """Whether it only issues graphs, and bodies that say that they make no tensors: see ``Stream.submit``."""
        self.attended = False
        self._capture = capture

    def __call__(self) -> None:
        """Put all of it into the stream that runs this."""
        left: list[Piece] = []
        for piece in self.pieces:
            refused = None
            if piece.graph is not None:
                self._issue(piece.graph, piece.steps[0].row)
            elif piece.eager or not piece.ran:
                self._run(piece)
            else:
                refused = self._try(piece)
            piece.ran = True
            left += [piece] if refused is None else _leave_out(piece, refused)
        if len(left) > len(self.pieces) or not all(map(is_, left, self.pieces)):
            self.pieces = tuple(left)
        elif not self.bare:
            self.bare = all(piece.graph is not None or piece.bare for piece in self.pieces)

    def row_of(self, error: BaseException) -> int:
        """The row that a failure belongs to: where no body raised it, the first of those that it may be of."""
        if self.failed is not None and (self.failed[1] is error or self.failed[1] is error.__cause__):
            return self.failed[0]
        return int(self.rows[0])

    def begun(self, error: BaseException | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The rows that have begun, of a segment that has ended, well or not."""
        return self.rows if error is None else self.rows[: int(np.argmax(self.rows == self.row_of(error))) + 1]

    def _run(self, piece: Piece) -> None:
        row = -1
        try:
            for step in piece.steps:
                row = step.row
                step.call()  # type: ignore[misc]  # a step that starts a movement is in no segment
        except BaseException as error:
            self.failed = row, error
            raise

    def _issue(self, graph: Captured, row: int) -> None:
        try:
            graph()
        except BaseException as error:
            self.failed = row, error
            raise

    def _try(self, piece: Piece) -> Refused | None:
        found = self._capture([self._body(step) for step in piece.steps])
        if isinstance(found, Refused):
            return found
        piece.graph = found
        return None

    def _body(self, step: BoundStep) -> Callable[[], object]:
        """A step's body, whose failure is the step's."""

        def run() -> None:
            try:
                step.call()  # type: ignore[misc]  # a step that starts a movement is in no segment
            except BaseException as error:
                self.failed = step.row, error
                raise

        return run


def why_eager(schedule: Schedule, step: Step) -> str:
    """Why a device runs a task or fold as it comes, instead of issuing again what was captured; "" where it may."""
    if step.kind == StepKind.FOLD or schedule.kind[step.row] == RowKind.FOLD:
        return ""
    ask: Any = getattr(schedule.launches[int(schedule.launch[step.row])].binder, "eager", None)
    return "its binder does not say" if ask is None else str(ask(int(schedule.point[step.row])))


def bound_steps(
    steps: Sequence[Step],
    devices: Collection[int],
    call: Callable[[Step], Callable[[], object]],
    wait: Callable[[int, int], Waiting],
    schedule: Schedule,
) -> list[BoundStep]:
    """Bind the steps of a device lane.

    Args:
        steps: its steps.
        devices: the processors of the rank that are devices.
        call: binds a task or fold.
        wait: gives what waits for a counter's value.
        schedule: what the steps are of.
    """
    found: list[BoundStep] = []
    for place, step in enumerate(steps):
        behind = tuple(part for part in step.waits if part[0] in devices)
        waits = tuple(wait(*part) for part in step.waits if part[0] not in devices)
        body = None if step.kind == StepKind.START else call(step)
        told = place + 1 if step.told or place + 1 == len(steps) else 0
        eager = "" if body is None else why_eager(schedule, step)
        found.append(BoundStep(step.row, body, eager, waits, behind, told))
    return found


def cut_lane(
    steps: Sequence[BoundStep], capture: Callable[[Sequence[Callable[[], object]]], Captured | Refused]
) -> tuple[Segment | BoundStep, ...]:
    """Cut a lane into its segments, with the steps that start movements between them.

    Args:
        steps: of the lane, in order.
        capture: the device's.
    """
    found: list[Segment | BoundStep] = []
    held: list[BoundStep] = []

    def end() -> None:
        if held:
            found.append(Segment(tuple(held), capture))
            held.clear()

    for step in steps:
        if step.call is None or step.waits or step.behind:
            end()
        if step.call is None:
            found.append(step)
            continue
        held.append(step)
        if step.told:
            end()
    end()
    return tuple(found)


def _cut(steps: Sequence[BoundStep]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    held: list[BoundStep] = []
    for step in steps:
        if step.eager and held:
            pieces.append(Piece(held))
            held = []
        if step.eager:
            pieces.append(Piece((step,), step.eager))
        else:
            held.append(step)
    if held:
        pieces.append(Piece(held))
    return tuple(pieces)


def _leave_out(piece: Piece, refused: Refused) -> list[Piece]:
    """The pieces that are left of one of which a step cannot be captured, or none can."""
    if refused.part < 0:
        return [Piece(piece.steps, refused.reason)]
    before, after = piece.steps[: refused.part], piece.steps[refused.part + 1 :]
    found = [Piece((piece.steps[refused.part],), refused.reason)]
    return [*([Piece(before, ran=True)] if before else []), *found, *([Piece(after, ran=True)] if after else [])]
