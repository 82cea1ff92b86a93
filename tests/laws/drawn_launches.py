"""Launches that hypothesis draws: partitions of every kind, all privileges, single and index launches, places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from launched_work import PRIVILEGES

import maniple as mp
from maniple.regions.index_space import IndexSpace, RectSet, simplest
from maniple.regions.privilege import Privilege

SHAPES = ((), (7,), (4, 5), (2, 3, 3))
WORLDS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 1))
Tiling = tuple[tuple[IndexSpace, ...] | None, mp.Rect | tuple[int, ...] | None]
PLAIN = ("blocks", "blocks", "blocks", "halo", "boxes", "whole", "one", "sparse", "nested")
KINDS = (*PLAIN, "by_field")


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


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> mp.Rect:
    sides = [sorted(draw(st.tuples(st.integers(0, extent), st.integers(0, extent)))) for extent in shape]
    return mp.Rect(tuple(low for low, _ in sides), tuple(high for _, high in sides))


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
