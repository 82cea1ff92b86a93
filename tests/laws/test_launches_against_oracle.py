"""Programs of launches mean what they mean when the launches run one after the other on plain tensors.

Hypothesis draws the programs: regions of one field and of several, partitions of every kind, dense and sparse, nested
and computed from fields, privileges with all reductions and a registered one, atomic coherence, single and index
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
from maniple.regions.index_space import IndexSpace, RectSet, simplest
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.runtime.session import Session
from maniple.runtime.task import Task
from maniple.runtime.world import World

OR = mp.register_reduction("or", torch.bitwise_or, 0)
PRIVILEGES = (READ, WRITE_DISCARD, READ_WRITE, reduce("+"), reduce("*"), reduce("min"), reduce("max"), OR)
SHAPES = ((), (7,), (4, 5), (2, 3, 3))
TASKS: dict[tuple[Privilege, ...], Task[..., int]] = {}
FOLDS = {"min": torch.minimum, "max": torch.maximum, "or": torch.bitwise_or}
WORLDS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 1))


def work(color: tuple[int, ...], factor: int, privileges: Sequence[Privilege], views: Sequence[torch.Tensor]) -> int:
    """What every task does: what it writes depends on all that it may read, its colour and the place in a tile.

    Args:
        color: the task's point.
        factor: a number of the launch.
        privileges: one for each argument.
        views: the elements of each argument, in one row.
    """
    seed = factor + sum(3 ** (axis + 1) * number for axis, number in enumerate(color))
    for place, (privilege, view) in enumerate(zip(privileges, views, strict=True)):
        if privilege.reads and view.numel():
            weights = torch.arange(1, view.numel() + 1)
            seed += (place + 1) * int((view * weights).sum())
    seed %= 1009
    for place, (privilege, view) in enumerate(zip(privileges, views, strict=True)):
        added = torch.arange(view.numel()) * 7 % 11 + seed % (17 + place)
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
        target.copy_(FOLDS[symbol](target, part))


def on_elements(
    color: tuple[int, ...], factor: int, privileges: Sequence[Privilege], views: Sequence[torch.Tensor]
) -> int:
    """Do a task's work on the elements that are its own, wherever in the views they are."""
    spaces = [mp.index_space(view) for view in views]
    where = [space.positions() for space in spaces]
    rows = [view[index].reshape(-1).clone() for view, index in zip(views, where, strict=True)]
    found = work(color, factor, privileges, rows)
    for view, index, row, privilege in zip(views, where, rows, privileges, strict=True):
        if privilege != READ:
            view[index] = row if isinstance(index, tuple) else row.reshape(view.shape)
    return found


def task_of(privileges: tuple[Privilege, ...]) -> Task[..., int]:
    """A task with a region argument for each privilege, the same one each time and on every thread."""
    return TASKS.setdefault(privileges, new_task(privileges))


def new_task(privileges: tuple[Privilege, ...]) -> Task[..., int]:
    """A task with a region argument for each privilege."""

    if len(privileges) == 1:

        def body(color: mp.Color, factor: int, a: torch.Tensor) -> int:
            return on_elements(color, factor, privileges, (a,))
    elif len(privileges) == 2:

        def body(color: mp.Color, factor: int, a: torch.Tensor, b: torch.Tensor) -> int:  # type: ignore[misc]
            return on_elements(color, factor, privileges, (a, b))
    else:

        def body(color: mp.Color, factor: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> int:  # type: ignore[misc]
            return on_elements(color, factor, privileges, (a, b, c))

    for name, privilege in zip("abc", privileges, strict=False):
        body.__annotations__[name] = Annotated[torch.Tensor, privilege]
    made = mp.task(name=f"work{[str(privilege) for privilege in privileges]}")(body)
    made.variant("cuda")(body)
    return made


@dataclass(frozen=True)
class Argument:
    """A field of a launch: its tiles and how they are made, or None for the whole field at each point.

    ``made`` is None for tiles that are listed, a box for blocks of that sub-region, an array of colours for a partition
    by field.
    """

    region: int
    privilege: Privilege
    tiles: tuple[IndexSpace, ...] | None
    made: mp.Rect | tuple[int, ...] | None = None
    atomic: bool = False


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
    """A program on a world of (ranks, processors of each).

    ``shapes`` has one for every field, ``groups`` how many neighbouring fields are those of one region.
    """

    world: tuple[int, int]
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    steps: tuple[Step | Written | Looked, ...]
    shuffle: int


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> mp.Rect:
    sides = [sorted(draw(st.tuples(st.integers(0, extent), st.integers(0, extent)))) for extent in shape]
    return mp.Rect(tuple(low for low, _ in sides), tuple(high for _, high in sides))


Tiling = tuple[tuple[IndexSpace, ...] | None, mp.Rect | tuple[int, ...] | None]
PLAIN = ("blocks", "blocks", "blocks", "halo", "boxes", "whole", "one", "sparse", "nested")
KINDS = (*PLAIN, "by_field")


@st.composite
def tilings(draw: st.DrawFn, shape: tuple[int, ...], points: int, kinds: Sequence[str]) -> Tiling:
    """Tiles for some points, and how a program comes by them."""
    whole = mp.Rect.of_shape(shape)
    kind = draw(st.sampled_from(kinds))
    if kind == "whole":
        return None, None
    if kind == "one":
        return (draw(boxes(shape)),) * points, None
    if kind == "boxes" or not shape:
        return tuple(draw(boxes(shape)) for _ in range(points)), None
    if kind == "sparse":
        pieces = [RectSet.of(draw(st.lists(boxes(shape), max_size=3))) for _ in range(points)]
        return tuple(simplest(piece, len(shape)) for piece in pieces), None
    if kind == "nested":
        inside = draw(boxes(shape))
        return mp.blocks((points,) + (1,) * (len(shape) - 1)).bind(inside).tiles, inside
    if kind == "by_field":
        size = torch.Size(shape).numel()
        colors = tuple(draw(st.lists(st.integers(-1, points - 1), min_size=size, max_size=size)))
        placed = list(zip(whole.points(), colors, strict=True))
        alike = [[p for p, color in placed if color == c] for c in range(points)]
        single = [RectSet.of(mp.Rect(p, tuple(i + 1 for i in p)) for p in chosen) for chosen in alike]
        return tuple(simplest(space, len(shape)) for space in single), colors
    axis = draw(st.integers(0, len(shape) - 1))
    base = mp.blocks([points if other == axis else 1 for other in range(len(shape))])
    if kind == "halo":
        base = mp.halo(base, [draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape])
    tiles = base.bind(whole).tiles
    return tuple(draw(st.permutations(tiles))) if draw(st.booleans()) else tiles, None


@st.composite
def launches(draw: st.DrawFn, shapes: Sequence[tuple[int, ...]], processors: int, kinds: Sequence[str] = KINDS) -> Step:
    """A launch; of kinds of partitions that are none of those computed from fields, one that a trace may have."""
    points = draw(st.integers(1, 4))
    atomic = draw(st.integers(0, 5)) == 0
    arguments = [
        Argument(region, draw(st.sampled_from(PRIVILEGES)), *draw(tilings(shapes[region], points, kinds)), atomic)
        for region in draw(st.lists(st.integers(0, len(shapes) - 1), min_size=1, max_size=3))
    ]
    places = tuple(draw(st.integers(0, processors - 1)) for _ in range(points))
    single = points == 1 and draw(st.booleans())
    return Step(tuple(arguments), places, single, draw(st.integers(0, 50)))


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


def initial(shape: tuple[int, ...], factor: int) -> torch.Tensor:
    values = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return values * 5 % 13 + factor


class RefusalError(Exception):
    """The oracle's word for a launch that must be refused."""


def get(values: torch.Tensor, space: IndexSpace) -> torch.Tensor:
    """The elements of an index space, in one row."""
    found = [values[point] for point in points_of(space)]
    return torch.stack(found) if found else values.new_zeros(0)


def put(values: torch.Tensor, space: IndexSpace, row: torch.Tensor) -> None:
    for point, value in zip(points_of(space), row, strict=True):
        values[point] = value


def points_of(space: IndexSpace) -> list[tuple[int, ...]]:
    return [point for rect in space.rects for point in rect.points()]


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

    def tiles(self, step: Step) -> list[list[IndexSpace]]:
        """The elements of every point of every argument."""
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
            shared = one.region == other.region and set(points_of(tiles[a][p])) & set(points_of(tiles[b][q]))
            ordered = one.atomic and other.atomic and p != q
            if shared and not ordered and (one.privilege != other.privilege or one.privilege.writes):
                raise RefusalError("interference")
        for argument, rects in zip(step.arguments, tiles, strict=True):
            if argument.privilege.reads:
                for box in rects:
                    if not bool(get(self.written[argument.region], box).all()):
                        raise RefusalError("unwritten")

    def launch(self, step: Step) -> list[int]:
        self.check(step)
        tiles = self.tiles(step)
        privileges = [argument.privilege for argument in step.arguments]
        before = [values.clone() for values in self.values]
        results = []
        for point in range(len(step.places)):
            if any(argument.atomic for argument in step.arguments):
                before = [values.clone() for values in self.values]
            views, targets = [], []
            for number, argument in enumerate(step.arguments):
                box = tiles[number][point]
                target = get(self.values[argument.region], box)
                if argument.privilege.op is not None:
                    view = torch.full_like(target, int(argument.privilege.op.identity("int64")))
                elif argument.privilege == WRITE_DISCARD:
                    view = torch.full_like(target, -1)
                else:
                    view = get(before[argument.region], box)
                views.append(view)
                targets.append((argument, box))
            results.append(work(() if step.single else (point,), step.factor, privileges, views))
            for (argument, box), view in zip(targets, views, strict=True):
                self._store(argument, box, view)
        return results

    def _store(self, argument: Argument, box: IndexSpace, view: torch.Tensor) -> None:
        op, values, written = argument.privilege.op, self.values[argument.region], self.written[argument.region]
        if op is not None:
            target = get(values, box)
            base = torch.where(get(written, box), target, torch.full_like(target, int(op.identity("int64"))))
            fold(op.symbol, base, view)
            view = base
        if argument.privilege != READ:
            put(values, box, view)
            put(written, box, torch.ones(len(view), dtype=torch.bool))


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


def resolved(entry: object) -> object:
    return [entry.get()] if isinstance(entry, mp.Future) else entry


def given_to(session: Session, region: mp.Region, argument: Argument, single: bool) -> object:
    """What a program passes for an argument: a field, its partition, or a sub-region of it."""
    if argument.atomic:
        region = region.atomic
    if argument.tiles is None:
        return region
    if isinstance(argument.made, mp.Rect):
        cut = region[mp.rectangles([argument.made])][0][mp.rectangles(argument.tiles)]
    elif argument.made is not None:
        colors = session.region(region.shape, "int64", "colors")
        colors.write(torch.tensor(argument.made).reshape(region.shape))
        cut = region[colors.by_field(len(argument.tiles))]
    else:
        cut = region[mp.rectangles(argument.tiles)]
    return cut[0] if single else cut


def launched(session: Session, regions: Sequence[mp.Region], step: Step) -> object:
    arguments = [given_to(session, regions[argument.region], argument, step.single) for argument in step.arguments]
    task = task_of(tuple([argument.privilege for argument in step.arguments]))
    mapper = Placed(step.places)
    if step.single:
        return session.launch(task, step.factor, *arguments, mapper=mapper)
    return session.index_launch(task, len(step.places), step.factor, *arguments, mapper=mapper)


@settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
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
