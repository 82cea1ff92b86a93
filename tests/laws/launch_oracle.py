"""What launches mean: they run in program order, points in order, on plain tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from drawn_launches import Argument, Step, Written
from launched_work import fold, work

import maniple as mp
from maniple.regions.index_space import IndexSpace
from maniple.regions.privilege import READ, WRITE_DISCARD


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
