"""The policy of mixed precision: what torch.autocast's lists say of each operator.

    half        products: operands are rounded to halves as they are read, and the result to one as it is complete
    float32     sums, powers, norms, softmax and losses: operands become float32, and so is the result
    widest      all others: the result is as wide as the widest float operand
    first       batch norm: its first result is what its first operand is, its statistics are float32

The lists are those of CUDA (`aten/src/ATen/autocast_mode.h`), on every device: those of torch's CPU leave softmax and
layer norm in halves. What torch does not know (a function of a user's, an operator that runs whole) stays float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from maniple.operators.operator.operator import AbstractOperator

__all__: list[str] = []

Policy = Literal["half", "float32", "widest", "first"]

_OPERATORS: dict[str, Policy] = {
    **dict.fromkeys(("linear", "recurrent", "recurrent_cell", "scaled_dot_product_attention"), "half"),
    **dict.fromkeys((f"conv{rank}d" for rank in (1, 2, 3)), "half"),
    **dict.fromkeys((f"conv_transpose{rank}d" for rank in (1, 2, 3)), "half"),
    "aten_contraction": "half",
    **dict.fromkeys(("softmax", "layer_norm", "rms_norm", "group_norm"), "float32"),
    **dict.fromkeys(("cross_entropy", "pointwise_loss", "nll_loss"), "float32"),
    **dict.fromkeys(("batch_norm", "local_batch_norm", "rectified_batch_norm"), "first"),
    **dict.fromkeys(("relu", "add", "dropout", "dropout_variant", "flatten", "reshape", "pad", "triangle"), "widest"),
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "window_pool", "adaptive_pool", "extremum"), "widest"),
    **dict.fromkeys(("embedding", "formula", "aten", "aten_linear", "aten_detached"), "widest"),
}

# What torch's list of float32 has among the operators of torch.ops.aten; the losses are operators of the library.
_FLOAT32_CALLS = frozenset(
    (
        "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
        "sinh", "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "norm",
        "linalg_vector_norm", "linalg_matrix_norm", "nuclear_norm", "cosine_similarity", "dist", "cdist", "pdist",
        "renorm", "logsumexp", "prod", "softmax", "_softmax", "log_softmax", "_log_softmax", "cumprod", "cumsum", "sum",
    )
)  # fmt: skip


def policy_of(operator: AbstractOperator) -> Policy:
    """How an operator runs in mixed precision."""
    found = _OPERATORS.get(operator.name, "float32")
    call = getattr(operator, "call", "")
    if operator.opaque_source:
        return "float32"
    if operator.name.startswith("aten") and call and call.partition("(")[0].partition(".")[0] in _FLOAT32_CALLS:
        return "float32"
    return found


def names_dtype(operator: AbstractOperator) -> bool:
    """Whether the result's dtype is a part of what is called, such as ``x.float()``."""
    return "dtype=" in getattr(operator, "call", "")
