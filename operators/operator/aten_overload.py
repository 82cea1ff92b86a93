"""Operators of torch.ops.aten: out= variants, backward kernels, and what torch says of each.

Everything here exists in torch 2.11 and later; a torch that renames an overload fails at import, naming it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch

from maniple.process import torch_internals
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

_aten = torch.ops.aten

threshold_backward: Callable[..., Tensor] = _aten.threshold_backward.grad_input
"""(gradient, result, threshold, *, grad_input): the gradient where the result is above the threshold, else zero."""

convolution_backward: Callable[..., tuple[Tensor, Tensor, Tensor]] = _aten.convolution_backward.default
"""(gradient, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask).

The three gradients; torch gives None for those that the mask leaves out.
"""

convolution_into: Callable[..., Tensor] = _aten.cudnn_convolution.out
"""(input, weight, padding, stride, dilation, groups, benchmark, deterministic, allow_tf32, *, out): on CUDA alone."""

wide_product: Callable[..., Tensor] = _aten.mm.dtype_out
"""(a, b, dtype, *, out): the product of two matrices of halves as the sums in float32 that it is; on CUDA alone."""

wide_product_added: Callable[..., Tensor] = _aten.addmm.dtype_out
"""(c, a, b, dtype, *, out): c and that product."""


@cache
def overload(name: str) -> Callable[..., object]:
    """The operator called ``"gelu"`` or ``"sum.dim_IntList"``.

    Raises:
        RequestError: torch has none of that name.
    """
    packet, _, chosen = name.partition(".")
    found: object = getattr(getattr(_aten, packet, None), chosen or "default", None)
    if not isinstance(found, torch_internals.Overload):  # also what Python has of the names: __class__, __setattr__
        raise RequestError(f"torch {torch.__version__} has no operator aten.{name}")
    return cast("Callable[..., object]", found)


@cache
def calculation(name: str) -> Callable[..., object]:
    """The operator of that name, if it makes tensors and does nothing else: whoever writes a graph's file names it.

    Raises:
        RequestError: torch has none of that name, or it writes to an argument, opens a file (``from_file``, ``save``),
            or gives what is no tensor.
    """
    found = overload(name)
    declared = torch_internals.schema_of(cast("Overload", found))
    takes, gives = ([str(each.type) for each in part] for part in (declared.arguments, declared.returns))
    reads = "str" not in takes or any("Tensor" in kind for kind in takes)
    if declared.is_mutable or not reads or not gives or any("Tensor" not in kind for kind in gives):
        raise RequestError(f"aten.{name}: expected an operator that makes tensors, writes to none and opens no file")
    return found


fused_attention = cast("Callable[..., tuple[Tensor, Tensor]]", overload("_scaled_dot_product_flash_attention_for_cpu"))
"""(query, key, value, dropout, is_causal, *, attn_mask, scale): attention, and each query's logarithm of the sum of
exponentials; of 4 dimensions, the last of one extent and dense. What torch.nn.functional calls on a CPU.
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an operator.

    Args:
        name: As torch calls it.
        default: None where there is none.
        keyword_only: Whether it must be named.
        written: Whether the operator writes to it.
        alias: The storage that it shares with results, as torch names it; empty: none.
    """

    name: str
    default: object
    keyword_only: bool
    written: bool
    alias: str


@dataclass(frozen=True, slots=True)
class Schema:
    """What torch says about an operator.

    Args:
        name: E.g. ``"aten::sum.dim_IntList"``.
        arguments: In order.
        mutable: Whether it writes to an argument.
        aliases: For every result the storage that it shares with an argument; empty: none.
    """

    name: str
    arguments: tuple[Argument, ...]
    mutable: bool
    aliases: tuple[str, ...]


Overload = torch_internals.Overload


_UNTAGGED = frozenset(("leaky_relu", "leaky_relu_", "celu_", "elu_", "hardsigmoid_", "hardtanh_", "selu_"))
"""Operators of single elements that torch 2.11 does not tag as such."""


def is_pointwise(target: Overload) -> bool:
    """Whether torch tags an operator as one of single elements, or should."""
    return torch.Tag.pointwise in target.tags or target.overloadpacket.__name__ in _UNTAGGED


def is_random(target: Overload) -> bool:
    """Whether torch tags an operator as one that draws random numbers."""
    return torch.Tag.nondeterministic_seeded in target.tags


@cache
def schema(target: Overload) -> Schema:
    """What torch says about an operator."""
    found = torch_internals.schema_of(target)
    arguments = tuple(
        Argument(
            argument.name,
            argument.default_value if argument.has_default_value() else None,
            argument.kwarg_only,
            argument.alias_info is not None and argument.alias_info.is_write,
            _alias(argument.alias_info),
        )
        for argument in found.arguments
    )
    name = f"{found.name}.{found.overload_name}" if found.overload_name else found.name
    return Schema(name, arguments, found.is_mutable, tuple(_alias(result.alias_info) for result in found.returns))


def _alias(info: Any) -> str:
    """The name of a storage in torch's schemas."""
    return "" if info is None else ",".join(sorted(info.before_set))
