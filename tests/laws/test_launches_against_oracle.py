"""Programs of launches mean what they mean when the launches run one after the other on plain tensors.

Hypothesis draws the programs: regions, partitions of every kind, privileges with all reductions, single and index
launches, places. Values are integers, so any order of a reduction gives exactly one result. Sums and products wrap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from placed_program import Placed, opened
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.regions.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.runtime.task import Task
from maniple.runtime.world import World

PRIVILEGES = (READ, WRITE_DISCARD, READ_WRITE, reduce("+"), reduce("*"), reduce("min"), reduce("max"))
TASKS: dict[tuple[Privilege, ...], Task[..., int]] = {}
SHAPES = ((), (7,), (4, 5), (2, 3, 3))
WORLDS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 1))


def work(color: tuple[int, ...], factor: int, privileges: Sequence[Privilege], views: Sequence[torch.Tensor]) -> int:
    """What every task does: what it writes depends on all that it may read, its colour and its place in a tile."""
    seed = factor + sum(3 ** (axis + 1) * number for axis, number in enumerate(color))
    for place, (privilege, view) in enumerate(zip(privileges, views, strict=True)):
        if privilege.reads and view.numel():
            weights = torch.arange(1, view.numel() + 1).reshape(view.shape)
            seed += (place + 1) * int((view * weights).sum())
    seed %= 1009
    for place, (privilege, view) in enumerate(zip(privileges, views, strict=True)):
        added = torch.arange(view.numel()).reshape(view.shape) * 7 % 11 + seed % (17 + place)
        if privilege == WRITE_DISCARD:
            view.copy_(added)
        elif privilege == READ_WRITE:
            view.copy_((view * 3 + added) % 100_003)
        elif privilege.op is not None:
            fold(privilege.op.symbol, view, added)
    return seed


def fold(symbol: str, target: torch.Tensor, part: torch.Tensor) -> None:
    if symbol == "+":
        target += part
    elif symbol == "*":
        target *= part
    else:
        target.copy_((torch.minimum if symbol == "min" else torch.maximum)(target, part))


def task_of(privileges: tuple[Privilege, ...]) -> Task[..., int]:
    """A task with a region argument for each privilege, the same one each time and on every thread."""
    return TASKS.setdefault(privileges, new_task(privileges))


def new_task(privileges: tuple[Privilege, ...]) -> Task[..., int]:
    """A task with a region argument for each privilege."""

    if len(privileges) == 1:

        def body(color: mp.Color, factor: int, a: torch.Tensor) -> int:
            return work(color, factor, privileges, (a,))
    elif len(privileges) == 2:

        def body(color: mp.Color, factor: int, a: torch.Tensor, b: torch.Tensor) -> int:  # type: ignore[misc]
            return work(color, factor, privileges, (a, b))
    else:

        def body(color: mp.Color, factor: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> int:  # type: ignore[misc]
            return work(color, factor, privileges, (a, b, c))

    for name, privilege in zip("abc", privileges, strict=False):
        body.__annotations__[name] = Annotated[torch.Tensor, privilege]
    return mp.task(name=f"work{[str(privilege) for privilege in privileges]}")(body)


@dataclass(frozen=True)
class Argument:
    """A region of a launch: a recipe of its tiles, or None for the whole region at each point."""

    region: int
    privilege: Privilege
    tiles: tuple[mp.Rect, ...] | None


@dataclass(frozen=True)
class Step:
    """A launch. Index launches have a point per processor that is listed."""

    arguments: tuple[Argument, ...]
    places: tuple[int, ...]
    single: bool
    factor: int


@dataclass(frozen=True)
class Written:
    """The whole of a region, written from outside."""

    region: int
    factor: int


@dataclass(frozen=True)
class Looked:
    """The whole of a region, brought to every rank."""

    region: int


@dataclass(frozen=True)
class Case:
    """A program on a world of (ranks, processors of each)."""

    world: tuple[int, int]
    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[Step | Written | Looked, ...]
    shuffle: int


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> mp.Rect:
    sides = [sorted(draw(st.tuples(st.integers(0, extent), st.integers(0, extent)))) for extent in shape]
    return mp.Rect(tuple(low for low, _ in sides), tuple(high for _, high in sides))


@st.composite
def tilings(draw: st.DrawFn, shape: tuple[int, ...], points: int) -> tuple[mp.Rect, ...] | None:
    """Tiles for some points: blocks, blocks with a halo, copies of one box, or any boxes."""
    whole = mp.Rect.of_shape(shape)
    kind = draw(st.sampled_from(["blocks", "blocks", "blocks", "halo", "boxes", "whole", "one"]))
    if kind == "whole":
        return None
    if kind == "one":
        return (draw(boxes(shape)),) * points
    if kind == "boxes" or not shape:
        return tuple(draw(boxes(shape)) for _ in range(points))
    axis = draw(st.integers(0, len(shape) - 1))
    base = mp.blocks([points if other == axis else 1 for other in range(len(shape))])
    if kind == "halo":
        base = mp.halo(base, [draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape])
    tiles = base.bind(whole).tiles
    return tuple(draw(st.permutations(tiles))) if draw(st.booleans()) else tiles


@st.composite
def launches(draw: st.DrawFn, shapes: Sequence[tuple[int, ...]], processors: int) -> Step:
    points = draw(st.integers(1, 4))
    arguments = [
        Argument(region, draw(st.sampled_from(PRIVILEGES)), draw(tilings(shapes[region], points)))
        for region in draw(st.lists(st.integers(0, len(shapes) - 1), min_size=1, max_size=3))
    ]
    places = tuple(draw(st.integers(0, processors - 1)) for _ in range(points))
    single = points == 1 and draw(st.booleans())
    return Step(tuple(arguments), places, single, draw(st.integers(0, 50)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world = draw(st.sampled_from(WORLDS))
    shapes = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
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
    return Case(world, shapes, tuple(steps), draw(st.integers(0, 99)))


def initial(shape: tuple[int, ...], factor: int) -> torch.Tensor:
    values = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return values * 5 % 13 + factor


class RefusalError(Exception):
    """The oracle's word for a launch that must be refused."""


class Oracle:
    """Runs launches in program order, points in order, on plain tensors; knows which elements were written.

    Args:
        shapes: of the regions.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.values = [torch.zeros(shape, dtype=torch.int64) for shape in shapes]
        self.written = [torch.zeros(shape, dtype=torch.bool) for shape in shapes]

    def write(self, step: Written) -> None:
        self.values[step.region].copy_(initial(tuple(self.values[step.region].shape), step.factor))
        self.written[step.region].fill_(True)

    def look(self, region: int) -> torch.Tensor:
        if not bool(self.written[region].all()):
            raise RefusalError("unwritten")
        return self.values[region].clone()

    def tiles(self, step: Step) -> list[list[mp.Rect]]:
        """The box of every point of every argument."""
        return [
            [mp.Rect.of_shape(tuple(self.values[argument.region].shape))] * len(step.places)
            if argument.tiles is None
            else list(argument.tiles)
            for argument in step.arguments
        ]

    def check(self, step: Step) -> None:
        """Refuse points, or arguments of one point, that interfere, and reads of what was never written."""
        tiles = self.tiles(step)
        uses = [(a, p) for a in range(len(step.arguments)) for p in range(len(step.places))]
        for (a, p), (b, q) in itertools.combinations(uses, 2):
            one, other = step.arguments[a], step.arguments[b]
            shared = one.region == other.region and not tiles[a][p].intersect(tiles[b][q]).is_empty
            if shared and (one.privilege != other.privilege or one.privilege.writes):
                raise RefusalError("interference")
        for argument, rects in zip(step.arguments, tiles, strict=True):
            if argument.privilege.reads:
                for box in rects:
                    if not bool(self.written[argument.region][box.slices((0,) * box.ndim)].all()):
                        raise RefusalError("unwritten")

    def launch(self, step: Step) -> list[int]:
        self.check(step)
        tiles = self.tiles(step)
        privileges = [argument.privilege for argument in step.arguments]
        before = [values.clone() for values in self.values]
        results = []
        for point in range(len(step.places)):
            views, targets = [], []
            for number, argument in enumerate(step.arguments):
                box = tiles[number][point]
                target = self.values[argument.region][box.slices((0,) * box.ndim)]
                if argument.privilege.op is not None:
                    view = torch.full_like(target, int(argument.privilege.op.identity("int64")))
                elif argument.privilege == WRITE_DISCARD:
                    view = torch.full_like(target, -1)
                else:
                    view = before[argument.region][box.slices((0,) * box.ndim)].clone()
                views.append(view)
                targets.append((argument, target, box))
            results.append(work(() if step.single else (point,), step.factor, privileges, views))
            for (argument, target, box), view in zip(targets, views, strict=True):
                self._store(argument, target, box, view)
        return results

    def _store(self, argument: Argument, target: torch.Tensor, box: mp.Rect, view: torch.Tensor) -> None:
        op, known = argument.privilege.op, self.written[argument.region][box.slices((0,) * box.ndim)]
        if op is None:
            if argument.privilege.writes:
                target.copy_(view)
                known.fill_(True)
            return
        base = torch.where(known, target, torch.full_like(target, int(op.identity("int64"))))
        fold(op.symbol, base, view)
        target.copy_(base)
        known.fill_(True)


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


def ran(case: Case, world: World) -> list[object]:
    """The same on this rank of a world."""
    session = opened(world)
    regions = [session.region(shape, "int64", f"r{number}") for number, shape in enumerate(case.shapes)]
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


def resolved(entry: object) -> object:
    return [entry.get()] if isinstance(entry, mp.Future) else entry


def launched(session: object, regions: Sequence[mp.Region], step: Step) -> object:
    arguments: list[object] = []
    for argument in step.arguments:
        region = regions[argument.region]
        if argument.tiles is None:
            arguments.append(region)
        elif step.single:
            arguments.append(region[mp.rectangles(argument.tiles)][0])
        else:
            arguments.append(region[mp.rectangles(argument.tiles)])
    task = task_of(tuple([argument.privilege for argument in step.arguments]))
    mapper = Placed(step.places)
    if step.single:
        return session.launch(task, step.factor, *arguments, mapper=mapper)  # type: ignore[attr-defined]
    return session.index_launch(task, len(step.places), step.factor, *arguments, mapper=mapper)  # type: ignore[attr-defined]


@settings(max_examples=4 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_program_means_what_its_launches_mean_one_after_the_other(case: Case) -> None:
    wanted = expected(case)
    ranks, processors = case.world
    event(f"{ranks}x{processors}")
    found = run_on_ranks(ranks, lambda world: ran(case, world), processors=processors, shuffle=case.shuffle)
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
