"""Replayed launches mean what launches mean: programs with traces against the same launches one after the other.

Hypothesis draws programs in which sequences of launches come again and again, under several traces, with other values
each time, and with launches, writes and reads outside of any trace in between. The oracle knows nothing of traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
from drawn_launches import PLAIN, SHAPES, WORLDS, Looked, Step, Written, launches
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from launch_oracle import Oracle, RefusalError, initial
from placed_program import launched, opened, resolved
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.session import automatic
from maniple.runtime.session.session import Session


@dataclass(frozen=True)
class Traced:
    """One run of a trace."""

    number: int
    added: int


@dataclass(frozen=True)
class Case:
    """A program on a world of (ranks, processors of each): traces, and what is done with them."""

    world: tuple[int, int]
    shapes: tuple[tuple[int, ...], ...]
    traces: tuple[tuple[Step | Written, ...], ...]
    program: tuple[Traced | Step | Written | Looked, ...]
    shuffle: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world = draw(st.sampled_from(WORLDS))
    shapes = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
    numbers = st.integers(0, len(shapes) - 1)
    launch = launches(shapes, world[0] * world[1], PLAIN)
    inside = st.one_of(launch, launch, launch, st.builds(Written, numbers, st.integers(0, 9)))
    traces = tuple(tuple(draw(st.lists(inside, min_size=1, max_size=5))) for _ in range(draw(st.integers(1, 2))))
    runs = st.builds(Traced, st.integers(0, len(traces) - 1), st.integers(0, 9))
    outside = st.one_of(runs, runs, runs, runs, launch, st.builds(Looked, numbers))
    first = [Written(region, draw(st.integers(0, 9))) for region in range(len(shapes)) if draw(st.integers(0, 9))]
    program = (*first, *draw(st.lists(outside, min_size=3, max_size=12)))
    return Case(world, shapes, traces, program, draw(st.integers(0, 99)))


def with_values(step: Step | Written, added: int) -> Step | Written:
    return replace(step, factor=step.factor + added)


def legal(case: Case) -> tuple[Case, list[object]]:
    """The program without the launches that must be refused, and what the others come to."""
    oracle = Oracle(case.shapes)
    traces: dict[int, tuple[Step | Written, ...]] = {}
    program: list[Traced | Step | Written | Looked] = []
    outcomes: list[object] = []
    for step in case.program:
        if isinstance(step, Traced):
            inside = traces.get(step.number, case.traces[step.number])
            kept = [inner for inner in inside if tried(oracle, with_values(inner, step.added), outcomes)]
            traces.setdefault(step.number, tuple(kept))
            program.append(step)
        elif tried(oracle, step, outcomes):
            program.append(step)
    ends = [oracle.look(r).tolist() if bool(oracle.written[r].all()) else None for r in range(len(case.shapes))]
    chosen = tuple(traces.get(number, ()) for number in range(len(case.traces)))
    return replace(case, traces=chosen, program=tuple(program)), outcomes + ends


def tried(oracle: Oracle, step: Step | Written | Looked, outcomes: list[object]) -> bool:
    try:
        if isinstance(step, Written):
            oracle.write(step)
        elif isinstance(step, Looked):
            outcomes.append(oracle.look(step.region).tolist())
        else:
            outcomes.append(oracle.launch(step))
    except RefusalError:
        return False
    return True


def ran(case: Case, world: World, *, annotated: bool, machine: mp.Machine | None = None) -> list[object]:
    """The program on this rank of a world, with its traces or without, perhaps on another machine than its own."""
    session = opened(world, machine=machine)
    session.auto_trace(on=not annotated)
    regions = [session.region(shape, "int64", f"r{number}") for number, shape in enumerate(case.shapes)]
    outcomes: list[object] = []
    for step in case.program:
        if isinstance(step, Traced):
            with session.trace(f"trace {step.number}") if annotated else nullcontext():
                for inner in case.traces[step.number]:
                    outcomes += done(session, regions, with_values(inner, step.added))
        else:
            outcomes += done(session, regions, step)
    found = [list(entry.values()) if isinstance(entry, mp.FutureMap) else resolved(entry) for entry in outcomes]
    for region in regions:
        try:
            found.append(region.read().tolist())
        except mp.RequestError:
            found.append(None)
    return found


def done(session: Session, regions: Sequence[mp.Region], step: Step | Written | Looked) -> list[object]:
    if isinstance(step, Written):
        regions[step.region].write(initial(tuple(regions[step.region].shape), step.factor))
        return []
    if isinstance(step, Looked):
        return [regions[step.region].read().tolist()]
    return [launched(session, regions, step)]


@settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(cases())
def test_traced_launches_mean_what_they_mean_one_after_the_other(case: Case) -> None:
    case, wanted = legal(case)
    ranks, processors = case.world
    event(f"{ranks}x{processors}")
    found = run_on_ranks(
        ranks, lambda world: ran(case, world, annotated=True), processors=processors, shuffle=case.shuffle
    )
    for outcomes in found:
        assert outcomes == wanted


@settings(suppress_health_check=list(HealthCheck))
@given(cases())
def test_launches_that_are_traced_by_themselves_mean_the_same(case: Case) -> None:
    case, wanted = legal(replace(case, program=case.program + case.program[-6:] * 3))
    ranks, processors = case.world
    judged: list[bool] = []
    judge = automatic.AutomaticTracing.judge

    def noted(self: automatic.AutomaticTracing, candidate: automatic.Candidate, *, finished: bool) -> None:
        judged.append(finished)
        judge(self, candidate, finished=finished)

    def body(world: World) -> list[object]:
        return ran(case, world, annotated=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic, "SHORTEST", 2)
        patch.setattr(automatic, "SCALE", 4)
        patch.setattr(automatic.AutomaticTracing, "judge", noted)
        found = run_on_ranks(ranks, body, processors=processors, shuffle=case.shuffle)
    event("replayed" if any(judged) else "given up" if judged else "not repeated")
    for outcomes in found:
        assert outcomes == wanted
