"""What the arguments of convolutions and pools say: one integer per dimension that the window moves along."""

from __future__ import annotations

from collections.abc import Sequence

from maniple.operators.operator.builder import Tensor
from maniple.process.error import RequestError

Extents = int | Sequence[int]


def extents(name: str, value: Extents, count: int) -> tuple[int, ...]:
    """One integer per dimension from one or as many."""
    if isinstance(value, int):
        return (value,) * count
    found = tuple(value)
    if len(found) != count:
        raise RequestError(f"{name}: expected an integer or {count}, got {value!r}")
    return found


def padding_of(
    where: str, value: Extents | str, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """The padding of a convolution from numbers or one of torch's words.

    Raises:
        RequestError: An unknown word, or ``"same"`` where it is not the same on both sides.
    """
    if not isinstance(value, str):
        return extents(f"{where}.padding", value, len(kernel))
    if value == "valid":
        return (0,) * len(kernel)
    around = [gap * (extent - 1) for gap, extent in zip(dilation, kernel, strict=True)]
    if value != "same" or set(stride) != {1} or any(rows % 2 for rows in around):
        raise RequestError(
            f"{where}.padding: expected numbers, 'valid', or 'same' with stride 1 and windows of an odd reach, "
            f"got {value!r} with kernel_size {kernel}, stride {stride}"
        )
    return tuple(rows // 2 for rows in around)


def check_rank(operator: str, x: Tensor, count: int) -> None:
    """Refuse an operand that has not a batch, channels and as many dimensions as windows move along."""
    if len(x.shape) != 2 + count:
        raise RequestError(
            f"{operator}: expected {2 + count} dimensions (batch, channels, ...), got '{x.name}' {x.shape}"
        )
