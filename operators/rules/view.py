"""Views: tensors whose elements are elements of another tensor, in another order or shape, or some of them.

A linear layer gives queries, keys and values side by side, and attention reads the keys with heads before places:

    root       linear   (b s c)     = (2, 5, 24), c counts 3 parts of 2 heads of 4 features
    member     keys     (b h s d)   = (2, 2, 5, 4)
    strides of the member in the root, as if that lay in memory row by row: (120, 4, 24, 1), from element 8 on

    axis of the root    cut by the member's axes              a tile h [1:2] of the member uses
    b                   b                                     b [0:2]
    s                   s                                     s [0:5]
    c                   h in steps of 4, d in steps of 1      c [12:16]: from 8 on, one step of 4

What a tile of the member uses is a box of the root if of each axis of the root its parts behind the first that has more
than one element are whole. A tile d [0:2] of both heads is none: it uses c [8:10] and [12:14].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Self, final

import numpy as np

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from maniple.operators.rules.bounds import Bounds
    from maniple.operators.rules.rule import Shape

__all__: list[str] = []


@final
class Strided(NamedTuple):
    """Where the elements of a tensor are among those of another, which lies row by row.

    Args:
        shape: of the tensor.
        strides: by its axes.
        offset: of its first element.
    """

    shape: Shape
    strides: Shape
    offset: int = 0

    @classmethod
    def whole(cls, shape: Shape) -> Strided:
        """The other tensor itself."""
        return cls(shape, tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))]))

    def permuted(self, order: Sequence[int]) -> Strided:
        """With its axes in another order."""
        return Strided(
            tuple([self.shape[axis] for axis in order]), tuple([self.strides[axis] for axis in order]), self.offset
        )

    def sliced(self, axis: int, start: int, stop: int) -> Strided:
        """A range along one axis."""
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return Strided(shape, self.strides, self.offset + start * self.strides[axis])

    def reshaped(self, shape: Shape) -> Strided | None:
        """In another shape; None where no strides say where the elements then are."""
        if prod(shape) != prod(self.shape) or not prod(shape):
            return None
        # Axes that lie one within the other are one, from the last on.
        left: list[tuple[int, int]] = []
        for extent, stride in reversed([pair for pair in zip(self.shape, self.strides, strict=True) if pair[0] > 1]):
            if left and stride == left[-1][0] * left[-1][1]:
                left[-1] = left[-1][0] * extent, left[-1][1]
            else:
                left.append((extent, stride))
        strides, at, done = [0] * len(shape), 0, 1
        for axis in reversed(range(len(shape))):
            if shape[axis] == 1:
                continue
            if at < len(left) and done == left[at][0]:
                at, done = at + 1, 1
            if at == len(left) or left[at][0] % (done * shape[axis]):
                return None
            strides[axis], done = left[at][1] * done, done * shape[axis]
        return Strided(shape, tuple(strides), self.offset)


@final
@dataclass(frozen=True, slots=True)
class Rearrangement:
    """How the result of an operator that computes nothing lies in its operand.

    Args:
        order: the operand's axes in the result's order; empty: they stay.
        shape: of the result, if it is another than of the axes so ordered.
        cut: (axis, first, one past the last) of what the result has of the operand.
    """

    order: tuple[int, ...] = ()
    shape: Shape | None = None
    cut: tuple[int, int, int] | None = None

    def result(self, operand: Strided) -> Strided | None:
        """Where the result's elements are, where the operand's are known."""
        if self.cut is not None:
            return operand.sliced(*self.cut)
        if self.order:
            return operand.permuted(self.order)
        return operand if self.shape is None else operand.reshaped(self.shape)

    def operand(self, result: Strided, shape: Shape) -> Strided | None:
        """Where the operand's elements are, where the result's are known.

        Args:
            result: the result's.
            shape: the operand's.
        """
        if self.cut is not None:
            return None
        if self.order:
            return result.permuted(np.argsort(self.order).tolist())
        return result if self.shape is None else result.reshaped(shape)


@final
class _Part(NamedTuple):
    """What an axis of a member is to an axis of the root.

    Args:
        axis: of the member; -1: none, it has one element of the part.
        step: elements of the root's axis from one of the member's to the next.
        full: how many steps there are before the part before it has one.
    """

    axis: int
    step: int
    full: int


@final
@dataclass(frozen=True, slots=True)
class View:
    """A member's place in a root.

    Args:
        shape: the root's.
        member: the member's.
        parts: by axis of the root, the parts that cut it, outermost first.
        start: by axis of the root, where the member begins.
    """

    shape: Shape
    member: Shape
    parts: tuple[tuple[_Part, ...], ...]
    start: Shape

    @classmethod
    def of(cls, root: Shape, member: Strided) -> Self | None:
        """The view of a member; None where one of its axes runs over several of the root's."""
        rows = Strided.whole(root).strides
        found: list[list[tuple[int, int]]] = [[] for _ in root]
        for axis, (extent, stride) in enumerate(zip(member.shape, member.strides, strict=True)):
            if extent == 1:
                continue
            inside = [place for place, row in enumerate(rows) if root[place] > 1 and row <= stride]
            if not inside or stride % rows[inside[0]] or extent * stride > rows[inside[0]] * root[inside[0]]:
                return None
            found[inside[0]].append((stride // rows[inside[0]], axis))
        start = tuple([member.offset // row % extent for row, extent in zip(rows, root, strict=True)])
        parts = []
        for place, cuts in enumerate(found):
            whole, own = root[place], []
            for step, axis in sorted(cuts, reverse=True):
                # What begins within a part ends within it.
                if whole % step or start[place] % whole // step + member.shape[axis] > whole // step:
                    return None
                own.append(_Part(axis, step, whole // step))
                whole = step
            if whole > 1:
                own.append(_Part(-1, 1, whole))
            parts.append(tuple(own))
        return cls(root, member.shape, tuple(parts), start)

    @property
    def is_whole(self) -> bool:
        """Whether the member has all of the root's elements."""
        return prod(self.shape) == prod(self.member)

    def image(self) -> Bounds | None:
        """All that the member has of the root; None where that is no box."""
        ends = np.asarray([(0, extent) for extent in self.member], dtype=np.int64)
        return self.bounds(ends.reshape(1, len(self.member), 2))

    def bounds(self, tiles: Bounds) -> Bounds | None:
        """What tiles of the member use of the root, by tile, axis and end; None where one of them uses no box.

        Args:
            tiles: the same of the member; an empty one uses nothing.
        """
        extents = tiles[:, :, 1] - tiles[:, :, 0]
        there = (extents > 0).all(axis=1)
        if not self.shape and not there.all():  # a root without axes is used by all
            return None
        found = np.zeros((len(tiles), len(self.shape), 2), dtype=np.int64)
        for place, own in enumerate(self.parts):
            low, length = np.full(len(tiles), self.start[place]), np.ones(len(tiles), dtype=np.int64)
            several = np.zeros(len(tiles), dtype=np.bool_)
            for axis, step, full in own:
                extent = extents[:, axis] if axis >= 0 else np.ones(len(tiles), dtype=np.int64)
                if (several & there & (extent != full)).any():
                    return None
                # Of the first part of several elements so many steps; what comes behind it is whole.
                length = np.where(several, length, np.where(extent > 1, extent * step, length))
                several |= extent > 1
                if axis >= 0:
                    low = low + tiles[:, axis, 0] * step
            found[:, place, 0], found[:, place, 1] = low, low + length
        found[~there] = 0
        return found

    def tile(self, values: Tensor, extents: Shape) -> Tensor:
        """A tile of the member, in the memory of what it uses of the root.

        Args:
            values: what the tile uses of the root.
            extents: the tile's.
        """
        split: list[int] = []
        where = dict.fromkeys(range(len(extents)), -1)
        for own in self.parts:
            for axis, _, _ in own or (_Part(-1, 1, 1),):
                if axis >= 0:
                    where[axis] = len(split)
                split.append(extents[axis] if axis >= 0 else 1)
        found = values.view(split)
        order = [place for place in where.values() if place >= 0]
        found = found.permute([*order, *(place for place in range(len(split)) if place not in order)])
        for _ in range(len(split) - len(order)):
            found = found.select(-1, 0)
        for axis, place in where.items():
            if place < 0:
                found = found.unsqueeze(axis)
        if tuple(found.shape) != tuple(extents):
            raise RequestError(
                f"expected a tile of {tuple(extents)} in {tuple(values.shape)}, got {tuple(found.shape)}"
            )
        return found
