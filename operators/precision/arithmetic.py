"""In what the kernels of an operator in mixed precision compute, between what is rounded.

arithmetic   given to the inner operator's kernels             which
singles      float32 copies of halves; what is written is      all on CPUs, whose kernels of halves are slow; on
             rounded as it is copied out                        devices what follows is not of
halves       halves, of gradients that arrive too; it writes   products, which tensor cores add up in float32
             halves, and gradients in float32                   (of recurrent layers the products alone: gates and
                                                                cells are float32)
promoted     everything as it comes                            one call of torch's of which that is so: it computes
                                                               in float32, and rounds what it writes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from maniple.operators.operator.host_memory import in_host_memory
from maniple.operators.operator.operator import HALF_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.precision.mixed_precision import MixedPrecision

__all__: list[str] = []

Arithmetic = Literal["singles", "halves", "promoted"]

_SUMS_OF_HALVES = frozenset(("linear",))
"""Products whose kernels can give the sum itself."""
_HALVES_OF_HALVES = frozenset(("conv1d", "conv2d", "conv3d", "aten_contraction", "scaled_dot_product_attention"))
"""Products whose kernels round what they give."""
_PRODUCTS_OF_HALVES = frozenset(("recurrent",))
"""Operators whose products read halves, and which are float32 between them."""
_ON_CUDA = frozenset(("batch_norm", "local_batch_norm", "rectified_batch_norm"))
"""Torch's kernels of halves with statistics in float32, on CUDA."""
_PROMOTED = frozenset(("relu", "add", "flatten", "reshape"))
"""Kernels of the library that are one call each."""
_BY_TORCH = frozenset(("aten", "aten_linear", "aten_detached"))
"""Operators that may be one call of torch's, as their tape says."""
_BILINEAR = frozenset(("linear", "conv1d", "conv2d", "conv3d"))


def arithmetic_of(mixed: MixedPrecision, tensors: Iterable[Tensor | None]) -> Arithmetic:
    """In what an operator computes where some tensors lie; ``promoted`` by a tape if that allows it."""
    given = [tensor for tensor in tensors if tensor is not None]
    if all(in_host_memory(tensor) for tensor in given):
        return "singles"
    name = mixed.inner.name
    if name in _ON_CUDA:
        return "halves" if mixed.back and any(tensor.is_cuda for tensor in given) else "singles"
    # Where weights of an attention are dropped it is several calls.
    one = mixed.gives[0] in HALF_DTYPES and not getattr(mixed.inner, "dropout_p", 0.0)
    if name in _PRODUCTS_OF_HALVES:
        return "halves" if one and multiplies_halves(mixed.inner) else "singles"
    if name in _SUMS_OF_HALVES or (name in _HALVES_OF_HALVES and one):
        return "halves"
    return "promoted" if name in _PROMOTED | _BY_TORCH else "singles"


def multiplies_halves(operator: AbstractOperator) -> bool:
    """Whether a recurrent operator has kernels whose products read halves: layers that do not project."""
    return not getattr(operator, "proj_size", 0)


def is_tape(mixed: MixedPrecision) -> bool:
    """Whether an operator is what torch calls for it, which may be several calls."""
    return mixed.inner.name in _BY_TORCH


def unread(mixed: MixedPrecision, wanted: Iterable[int]) -> frozenset[int]:
    """The operands, by place, whose values do not enter the wanted gradients: of a product one reads the other."""
    if mixed.inner.name not in _BILINEAR:
        return frozenset()
    places = set(wanted)
    return frozenset(place for place, other in ((0, 1), (1, 0)) if other not in places)
