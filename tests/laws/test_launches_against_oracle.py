"""Programs of launches mean what they mean when the launches run one after the other on plain tensors.

Hypothesis draws the programs: regions of one field and of several, partitions of every kind, dense and sparse, nested
and computed from fields, privileges with all reductions and a registered one, atomic coherence, single and index
launches, places. Values are integers, so any order of a reduction gives exactly one result. Sums and products wrap.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from drawn_launches import SHAPES, WORLDS, Argument, Looked, Step, Written, launches
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from launch_oracle import Oracle, RefusalError, initial
from placed_program import launched, opened, resolved
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.process.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.runtime.control.world import World


@dataclass(frozen=True)
class Case:
    """A program on a world of (ranks, processors of each).

    ``shapes`` has one for every field, ``groups`` how many neighbouring fields are those of one region.
    """

    world: tuple[int, int]
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    steps: tuple[Step | Written | Looked, ...]
    shuffle: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world = draw(st.sampled_from(WORLDS))
    kinds = draw(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from([1, 1, 2])), min_size=1, max_size=3))
    shapes = tuple(shape for shape, fields in kinds for _ in range(fields))
    steps: list[Step | Written | Looked] = [
        Written(region, draw(st.integers(0, 9))) for region in range(len(shapes)) if draw(st.integers(0, 9))
    ]
    count = world[0] * world[1]
    some = st.one_of(
        launches(shapes, count),
        launches(shapes, count),
        launches(shapes, count),
        launches(shapes, count),
        st.builds(Written, st.integers(0, len(shapes) - 1), st.integers(0, 9)),
        st.builds(Looked, st.integers(0, len(shapes) - 1)),
    )
    steps += draw(st.lists(some, min_size=1, max_size=12))
    return Case(world, shapes, tuple(fields for _, fields in kinds), tuple(steps), draw(st.integers(0, 99)))


def expected(case: Case) -> list[object]:
    """What every launch, read and refusal of a program comes to, and every region at its end."""
    oracle = Oracle(case.shapes)
    outcomes: list[object] = []
    for step in case.steps:
        try:
            if isinstance(step, Written):
                oracle.write(step)
            elif isinstance(step, Looked):
                outcomes.append(oracle.look(step.region).tolist())
            else:
                outcomes.append(oracle.launch(step))
        except RefusalError as refusal:
            outcomes.append("refused")
            event(f"refused: {refusal}")
    ends = [oracle.look(r).tolist() if bool(oracle.written[r].all()) else None for r in range(len(case.shapes))]
    return outcomes + ends


def ran(case: Case, world: World, machine: mp.Machine | None = None) -> list[object]:
    """The same on this rank of a world, perhaps on another machine than its own."""
    session = opened(world, machine=machine)
    regions: list[mp.Region] = []
    for number, fields in enumerate(case.groups):
        shape = case.shapes[len(regions)]
        names = {f"f{field}": "int64" for field in range(fields)}
        made = session.region(shape, "int64", f"r{number}", names if fields > 1 else None)
        regions += [made[name] for name in names] if fields > 1 else [made]
    outcomes: list[object] = []
    for step in case.steps:
        try:
            if isinstance(step, Written):
                regions[step.region].write(initial(case.shapes[step.region], step.factor))
            elif isinstance(step, Looked):
                outcomes.append(regions[step.region].read().tolist())
            else:
                outcomes.append(launched(session, regions, step))
        except RequestError:
            outcomes.append("refused")
    for region in regions:
        try:
            outcomes.append(region.read().tolist())
        except RequestError:
            outcomes.append(None)
    return [list(entry.values()) if isinstance(entry, mp.FutureMap) else resolved(entry) for entry in outcomes]


@settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_program_means_what_its_launches_mean_one_after_the_other(case: Case) -> None:
    wanted = expected(case)
    ranks, processors = case.world
    event(f"{ranks}x{processors}")
    found = run_on_ranks(
        ranks, lambda world: ran(case, world), processors=processors, shuffle=case.shuffle, shared=case.shuffle % 2 > 0
    )
    for outcomes in found:
        assert outcomes == wanted


def test_the_oracle_refuses_and_folds() -> None:
    halves = mp.blocks((2,)).bind(mp.Rect.of_shape((7,))).tiles
    both = (mp.Rect((0,), (5,)), mp.Rect((2,), (7,)))
    oracle = Oracle(((7,),))
    for privilege, tiles in ((READ, halves), (READ_WRITE, both), (WRITE_DISCARD, both)):
        with pytest.raises(RefusalError):
            oracle.launch(Step((Argument(0, privilege, tiles),), (0, 0), False, 1))
    oracle.write(Written(0, 1))
    before = oracle.look(0)
    oracle.launch(Step((Argument(0, reduce("+"), both),), (0, 0), False, 1))
    assert torch.equal(oracle.look(0) > before, torch.ones(7, dtype=torch.bool))
    with pytest.raises(RefusalError):
        oracle.launch(Step((Argument(0, READ, both), Argument(0, reduce("+"), both)), (0, 0), False, 1))
