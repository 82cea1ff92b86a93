"""Builder methods for layout: parts of tensors, tensors joined, padded and reordered, with torch's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from maniple.operators.graph.writer import GraphWriter
from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.library.shapes.layout import END, Pad, Triangle, concatenate, gather, permute_axes, slice_axis
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.pattern_text import broadcast, text
from maniple.process.error import RequestError


class LayoutMethods(GraphWriter):
    """The methods that pick, join and reorder elements."""

    @final
    def concat(self, tensors: Sequence[Tensor], dim: int = 0, name: str | None = None) -> Tensor:
        """Tensors one after the other along a dimension, as torch.concat.

        Args:
            tensors: Of one dtype; their shapes differ along ``dim`` alone.
            dim: A dimension.
            name: The node's name.

        Raises:
            RequestError: The tensors do not fit.
        """
        if not tensors:
            raise RequestError("concat: expected at least one tensor, got none")
        first = tensors[0]
        axis = _dimension("concat", first, dim)
        for other in tensors[1:]:
            beside = [
                (a, b) for place, (a, b) in enumerate(zip(first.shape, other.shape, strict=False)) if place != axis
            ]
            if len(first.shape) != len(other.shape) or any(a != b for a, b in beside) or first.dtype != other.dtype:
                raise RequestError(
                    f"concat: expected tensors that differ along dimension {axis} alone, got '{first.name}' "
                    f"{first.shape} of {first.dtype} and '{other.name}' {other.shape} of {other.dtype}"
                )
        operator = concatenate([tensor.shape for tensor in tensors], axis, first.dtype)
        return self.append(operator, tensors, (), name or self.fresh("concat"))

    @final
    def slice(
        self, x: Tensor, dim: int = 0, start: int = 0, end: int = END, step: int = 1, name: str | None = None
    ) -> Tensor:
        """Every step-th element of a range along a dimension, as ``x[:, start:end:step]``.

        Args:
            x: The tensor.
            dim: A dimension.
            start: The first element; negative: counted from the end.
            end: The one after the last.
            step: At least 1.
            name: The node's name.

        Raises:
            RequestError: Nothing lies in the range, or the step is below 1.
        """
        axis = _dimension("slice", x, dim)
        if step < 1:
            raise RequestError(f"slice.step: expected an integer >= 1, got {step}")
        first, last, _ = slice(start, end, step).indices(x.shape[axis])
        if first >= last:
            raise RequestError(f"slice: expected elements in {start}:{end} of dimension {axis} of '{x.name}' {x.shape}")
        operator = slice_axis(x.shape, axis, first, last, step, x.dtype)
        return self.append(operator, (x,), (), name or self.fresh("slice"))

    @final
    def split(
        self, x: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0, name: str | None = None
    ) -> tuple[Tensor, ...]:
        """Parts along a dimension, as torch.split.

        Args:
            x: The tensor.
            split_size_or_sections: Elements of every part but a smaller last one, or of each part.
            dim: A dimension.
            name: Of the first part's node; the others' are counted on.

        Raises:
            RequestError: The parts do not add up to the dimension.
        """
        axis = _dimension("split", x, dim)
        extent, given = x.shape[axis], split_size_or_sections
        if isinstance(given, int):
            sizes = [min(given, extent - start) for start in range(0, extent, given)] if given > 0 else []
        else:
            sizes = list(given)
        if not sizes or min(sizes) < 1 or sum(sizes) != extent:
            raise RequestError(f"split: expected parts of at least 1 element that add up to {extent}, got {given}")
        parts, start = [], 0
        for place, size in enumerate(sizes):
            label = self.fresh("split") if name is None else f"{name}_{place}" if place else name
            operator = slice_axis(x.shape, axis, start, start + size, 1, x.dtype)
            parts.append(self.append(operator, (x,), (), label))
            start += size
        return tuple(parts)

    @final
    def permute(self, x: Tensor, dims: Sequence[int], name: str | None = None) -> Tensor:
        """The dimensions in another order, as torch.permute.

        Raises:
            RequestError: ``dims`` is no order of the dimensions.
        """
        order = [_dimension("permute", x, dim) for dim in dims]
        if sorted(order) != [*range(len(x.shape))]:
            raise RequestError(f"permute: expected an order of {len(x.shape)} dimensions, got {tuple(dims)}")
        return self.append(permute_axes(order, x.dtype), (x,), (), name or self.fresh("permute"))

    @final
    def pad(self, x: Tensor, pad: Sequence[int], value: float = 0.0, name: str | None = None) -> Tensor:
        """A constant around a tensor, as torch.nn.functional.pad.

        Args:
            x: The tensor.
            pad: Elements before and after, of the last dimension first; negative: cut off.
            value: The constant.
            name: The node's name.

        Raises:
            RequestError: There are no two numbers for each of the dimensions, or nothing is left.
        """
        if len(pad) % 2 or not 0 < len(pad) <= 2 * len(x.shape):
            raise RequestError(
                f"pad: expected 2 to {2 * len(x.shape)} numbers, two for each dimension, got {tuple(pad)}"
            )
        pairs = [(pad[place], pad[place + 1]) for place in range(0, len(pad), 2)]
        pads = (*[(0, 0)] * (len(x.shape) - len(pairs)), *reversed(pairs))
        return self.append(Pad(pads, x.dtype, float(value)), (x,), (), name)

    @final
    def gather(self, x: Tensor, dim: int, index: Tensor, name: str | None = None) -> Tensor:
        """For every element of an index the element of a line of ``x`` that it names, as torch.gather.

        Args:
            x: The tensor.
            dim: The dimension of the lines.
            index: int64, of as many dimensions, nowhere longer than ``x`` but along ``dim``.
            name: The node's name.

        Raises:
            RequestError: The index does not fit.
        """
        axis = _dimension("gather", x, dim)
        fits = len(index.shape) == len(x.shape) and all(
            place == axis or count <= extent
            for place, (extent, count) in enumerate(zip(x.shape, index.shape, strict=True))
        )
        if not fits or index.dtype != "int64":
            raise RequestError(
                f"gather: expected an int64 index that fits {x.shape} beside dimension {axis}, got '{index.name}' "
                f"{index.shape} of {index.dtype}"
            )
        return self.append(gather(x.shape, index.shape, axis, x.dtype), (x, index), (), name or self.fresh("gather"))

    @final
    def tril(self, x: Tensor, diagonal: int = 0, name: str | None = None) -> Tensor:
        """The lower triangle of the last two dimensions, zeros above, as torch.tril.

        Raises:
            RequestError: The tensor has fewer than 2 dimensions.
        """
        return self.append(Triangle(len(x.shape), diagonal), (x,), (), name or self.fresh("tril"))

    @final
    def triu(self, x: Tensor, diagonal: int = 0, name: str | None = None) -> Tensor:
        """The upper triangle, as torch.triu; see ``tril``."""
        return self.append(Triangle(len(x.shape), diagonal, upper=True), (x,), (), name or self.fresh("triu"))

    @final
    def where(self, condition: Tensor, input: Tensor, other: Tensor, name: str | None = None) -> Tensor:  # noqa: A002
        """Elements of one tensor where a condition holds and of another elsewhere, as torch.where.

        Args:
            condition: bool; repeated along dimensions of one element, as are the others.
            input: Where it holds.
            other: Elsewhere; of the same dtype.
            name: The node's name.

        Raises:
            RequestError: The condition is no bool, the dtypes differ, or the shapes do not fit.
        """
        if condition.dtype != "bool" or input.dtype != other.dtype:
            raise RequestError(
                f"where: expected bool and twice one dtype, got {condition.dtype}, {input.dtype} and {other.dtype}"
            )
        given = (condition, input, other)
        shape = _broadcast("where", given)
        patterns, result = broadcast(shape, [tensor.shape for tensor in given])
        operator = Aten("where.self(x0, x1, x2)", text(patterns, [result]), (input.dtype,))
        return self.append(operator, given, (), name or self.fresh("where"))


def _dimension(operator: str, x: Tensor, dim: int) -> int:
    """A dimension counted from the front."""
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise RequestError(f"{operator}.dim: expected a dimension of '{x.name}' {x.shape}, got {dim}")
    return dim % rank


def _broadcast(operator: str, tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape that tensors of these shapes are repeated to."""
    rank = max(len(tensor.shape) for tensor in tensors)
    found = [1] * rank
    for tensor in tensors:
        for place, extent in enumerate(tensor.shape, rank - len(tensor.shape)):
            if extent != 1 and found[place] not in (1, extent):
                shapes = ", ".join(f"'{item.name}' {item.shape}" for item in tensors)
                raise RequestError(f"{operator}: expected shapes that repeat to one, got {shapes}")
            found[place] = max(found[place], extent)
    return tuple(found)
