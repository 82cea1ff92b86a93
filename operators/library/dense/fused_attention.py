"""Attention by torch's fused kernels, each of which gives the logarithm of every query's sum of exponentials besides.

    tensors                        kernel                            what it needs
    on the host                    flash attention for CPUs          nothing
    halves on a GPU, no mask       flash attention                   what torch asks of a tile
    float32 on a GPU               memory-efficient attention        heads of keys repeated, a mask dense and aligned

Elsewhere torch chooses: of float64 on a GPU it computes the scores. Backward on a GPU is written here: torch's own
reads seeds of a dropout that there is not, which only a second forward gives. cuDNN's attention, which torch prefers on
some GPUs, is left out: torch 2.11 tells it how a result's gradient lies once for all that have the same queries, keys
and values, and gradients of another layout come out wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor
from torch.nn import functional as F

from maniple.operators.operator.aten_overload import fused_attention, overload

__all__: list[str] = []

ALIGNMENT = 16
"""Bytes to whose multiples rows of features begin on a GPU."""
Several = Callable[..., tuple[Tensor, ...]]
Three = Callable[..., tuple[Tensor, Tensor, Tensor]]
efficient_attention = cast("Several", overload("_scaled_dot_product_efficient_attention"))
efficient_attention_backward = cast("Several", overload("_scaled_dot_product_efficient_attention_backward"))
flash_attention = cast("Several", overload("_scaled_dot_product_flash_attention"))
flash_attention_backward = cast("Three", overload("_scaled_dot_product_flash_attention_backward"))

EFFICIENT_OF = torch.float32
"""The numbers of which memory-efficient attention is called."""
LSE_ROWS = 32
"""To whose multiples memory-efficient attention lengthens the logarithms of a head."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, *, along: bool
) -> tuple[Tensor, Tensor] | None:
    """The result, and the logarithms (samples, heads, queries); None where there is no kernel.

    Args:
        query: The queries: samples, heads, rows, features.
        key: The keys.
        value: The values.
        mask: What takes part (bool), or what is added to the scores; of as many dimensions.
        scale: Of the scores.
        along: Whether query ``i`` sees keys ``0..i``; there is no mask then.
    """
    deepest, width = max(query.shape[-1], value.shape[-1]), value.shape[-1]
    bias = None if mask is None else added(mask, query)
    found: tuple[Tensor, Tensor] | None = None
    if not on_gpu(query):
        given = [_deep(tensor, deepest) for tensor in (query, key, value)]
        found = fused_attention(*given, 0.0, along, attn_mask=bias, scale=scale)
    else:
        step = ALIGNMENT // query.element_size()
        first, second, third = (_aligned(_deep(each, -(-deepest // step) * step)) for each in (query, key, value))
        for kernel in KERNELS:
            tensors = kernel.takes(first, second, third, bias, along)
            if tensors is not None:
                found = _Attended.apply(*tensors, along, scale, kernel)  # type: ignore[no-untyped-call]
                break
    if found is None or found[0].shape[-1] == width:
        return found
    return found[0][..., :width], found[1]


def on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor lies where a GPU's kernels read it."""
    return tensor.is_cuda


def added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as what is added to scores."""
    return mask if mask.is_floating_point() else torch.where(mask, like.new_zeros(()), like.new_full((), -inf))


def repeated(keys: Tensor, queries: Tensor) -> Tensor:
    """Keys or values with as many heads as the queries have."""
    repeats = queries.shape[-3] // keys.shape[-3]
    return keys if repeats == 1 else keys.repeat_interleave(repeats, -3)


def _deep(tensor: Tensor, width: int) -> Tensor:
    """A tensor of so many features, which lie dense; zeros beside features change no product."""
    whole = tensor if tensor.shape[-1] == width else F.pad(tensor, (0, width - tensor.shape[-1]))
    return whole if whole.stride(-1) == 1 else whole.contiguous()


def _aligned(tensor: Tensor) -> Tensor:
    """A tensor whose rows begin where a GPU's kernels read them."""
    step = ALIGNMENT // tensor.element_size()
    places = int(tensor.storage_offset()), *tensor.stride()[:-1]
    return tensor if all(place % step == 0 for place in places) else tensor.contiguous().clone()


Four = tuple[Tensor, Tensor, Tensor, Tensor | None]


@final
class _Kernel(NamedTuple):
    """A fused kernel of GPUs.

    Args:
        takes: What it is given, of queries, keys, values, what is added to scores, and ``along``; None: it is none for
            them.
        forward: The result and the logarithms, of the four, ``along`` and the scale.
        backward: The gradients of the first three, of the result's gradient, the four, the result, the logarithms,
            ``along`` and the scale.
    """

    takes: Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Four | None]
    forward: Callable[[Four, bool, float], tuple[Tensor, Tensor]]
    backward: Callable[[Tensor, Four, Tensor, Tensor, bool, float], tuple[Tensor, Tensor, Tensor]]


@final
class _Attended(torch.autograd.Function):
    """A fused kernel whose backward reads the logarithms alone of what forward gives beside its result."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        along: bool,  # noqa: FBT001  (autograd gives all by position)
        scale: float,
        kernel: _Kernel,
    ) -> tuple[Tensor, Tensor]:
        """The result and the logarithms."""
        result, lse = kernel.forward((query, key, value, bias), along, scale)
        ctx.save_for_backward(query, key, value, bias, result, lse)
        ctx.mark_non_differentiable(lse)
        ctx.given = along, scale, kernel
        return result, lse

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of queries, keys and values, of the result's, which comes first."""
        query, key, value, bias, result, lse = ctx.saved_tensors
        along, scale, kernel = ctx.given
        gradient = _aligned(_deep(slopes[0], slopes[0].shape[-1]))
        found = kernel.backward(gradient, (query, key, value, bias), result, lse, along, scale)
        return (*found, None, None, None, None)


def can(name: str, given: Four, along: bool) -> bool:  # noqa: FBT001  (as torch has it)
    """Whether torch would take a kernel of that name for a tile on this device."""
    query, key, value, bias = given
    cuda: Any = torch.backends.cuda
    grouped = query.shape[-3] != key.shape[-3]
    return bool(getattr(cuda, f"can_use_{name}")(cuda.SDPAParams(query, key, value, bias, 0.0, along, grouped)))


def _flash_takes(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, along: bool) -> Four | None:  # noqa: FBT001
    given = query, key, value, None
    return given if bias is None and can("flash_attention", given, along) else None


def _efficient_takes(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, along: bool) -> Four | None:  # noqa: FBT001
    if query.dtype != EFFICIENT_OF:  # of halves its backward takes it that the result lies as forward made it
        return None
    key, value = repeated(key, query), repeated(value, query)
    if bias is not None:
        bias = _dense(bias.to(query.dtype), (*query.shape[:-1], key.shape[-2]))
    given = query, key, value, bias
    return given if can("efficient_attention", given, along) else None


def _dense(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What is added to scores, of a row for each key, in memory of its own; rows are as long as a GPU reads them."""
    keys, step = shape[-1], 8
    rows = bias.expand(*bias.shape[:-1], keys)
    return F.pad(rows, (0, -keys % step or step))[..., :keys].expand(shape)


def _efficient(given: Four, along: bool, scale: float) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    result, lse, _, _ = efficient_attention(*given, True, 0.0, along, scale=scale)
    return result, lse.narrow(-1, 0, result.shape[-2])


def _efficient_backward(
    gradient: Tensor,
    given: Four,
    result: Tensor,
    lse: Tensor,
    along: bool,  # noqa: FBT001
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    lse = F.pad(lse, (0, -lse.shape[-1] % LSE_ROWS), value=inf)
    seed = torch.zeros((), dtype=torch.int64, device="cpu")  # of no dropout
    found = efficient_attention_backward(
        gradient, *given, result, lse, seed, seed, 0.0, [True, True, True, False], along, scale=scale
    )
    return found[0], found[1], found[2]


def _flash(given: Four, along: bool, scale: float) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    result, lse, *_ = flash_attention(*given[:3], 0.0, along, False, scale=scale)
    return result, lse


def _flash_backward(
    gradient: Tensor,
    given: Four,
    result: Tensor,
    lse: Tensor,
    along: bool,  # noqa: FBT001
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, _ = given
    seed = query.new_empty(2, dtype=torch.uint64)
    lengths = None, None, query.shape[-2], key.shape[-2]
    return flash_attention_backward(
        gradient, query, key, value, result, lse, *lengths, 0.0, along, seed, query.new_empty(()), scale=scale
    )


KERNELS = (
    _Kernel(_flash_takes, _flash, _flash_backward),
    _Kernel(_efficient_takes, _efficient, _efficient_backward),
)
"""The first that takes a tile."""
