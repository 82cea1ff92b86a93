"""Matrix products written to, or added to, memory that there is; of halves also as the float32 sums that they are.

operands   memory     a GPU                                       elsewhere
float32    float32    mm, addmm
halves     halves     mm: added up in float32, rounded once
halves     float32    mm that writes float32: on tensor cores,    of float32 copies: torch has no such product
                      nothing rounded
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.operators.operator.aten_overload import wide_product, wide_product_added

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.kernel_scratch import Call

__all__: list[str] = []


def bind_product(a: Tensor, b: Tensor, out: Tensor, *, adds: bool = False) -> Call:
    """Bind the product of two matrices of one dtype.

    Args:
        a: the first.
        b: the second.
        out: what is written: of their dtype, or of float32.
        adds: whether the product is added to what is there.
    """
    dtype = out.dtype
    if a.dtype == dtype:
        return (lambda: out.addmm_(a, b)) if adds else (lambda: torch.mm(a, b, out=out))
    if a.is_cuda:
        if adds:
            return lambda: wide_product_added(out, a, b, dtype, out=out)
        return lambda: wide_product(a, b, dtype, out=out)
    if adds:
        return lambda: out.addmm_(a.to(dtype), b.to(dtype))
    return lambda: torch.mm(a.to(dtype), b.to(dtype), out=out)


def bind_column_sums(matrix: Tensor, out: Tensor, *, adds: bool = False) -> Call:
    """Bind the sums of a matrix over its rows; of halves in float32.

    Args:
        matrix: the matrix.
        out: a vector that is written.
        adds: whether the sums are added to what is there.
    """
    if matrix.dtype == out.dtype:  # as a product with ones
        ones, turned = torch.ones(matrix.shape[0], dtype=matrix.dtype), matrix.t()
        return (lambda: out.addmv_(turned, ones)) if adds else (lambda: torch.mv(turned, ones, out=out))
    if matrix.is_cuda:  # likewise: a sum of halves over rows takes twice as long there
        return bind_product(matrix.new_ones((1, matrix.shape[0])), matrix, out.unsqueeze(0), adds=adds)
    if adds:
        return lambda: out.add_(matrix.sum(0, dtype=out.dtype))
    return lambda: torch.sum(matrix, 0, dtype=out.dtype, out=out)
