"""Losses: pointwise ones are computed element by element and then reduced, so that both can be split."""

from __future__ import annotations

from typing import Any

from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.library.losses.loss import CrossEntropy
from maniple.operators.library.losses.pointwise_loss import PointwiseLoss
from maniple.operators.library.norms.softmax import Softmax
from maniple.operators.operator.axes import activation_axes
from maniple.operators.operator.pattern_text import broadcast, text
from maniple.operators.torch_import.exported_call import Call, spell
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.handlers.arithmetic import total
from maniple.operators.torch_import.handlers.layout import axes
from maniple.operators.torch_import.translation import Translation

NONE, MEAN = 0, 1
"""torch's numbers for a loss's reduction; 2 is the sum."""


@handles("cross_entropy_loss")
def _cross_entropy(into: Translation, call: Call) -> Any:
    scores, labels = into.tensor(call["self"]), into.tensor(call["target"])
    if len(scores.shape) < 2 or call["reduction"] == NONE:
        return by_sample(into, call)
    mean = call["reduction"] == MEAN
    if labels.dtype != "int64":
        likely = into.apply(Softmax(1, len(scores.shape), log=True), (scores,))[0]
        soft = PointwiseLoss("soft_cross_entropy", "mean" if mean else "sum", float(call["label_smoothing"]))
        weight = None if call["weight"] is None else into.tensor(call["weight"])
        return into.apply(soft, (likely, labels, weight))[0]
    operator = CrossEntropy(call["ignore_index"], "mean" if mean else "sum", float(call["label_smoothing"]))
    weight = None if call["weight"] is None else into.tensor(call["weight"])
    return into.apply(operator, (scores, labels, labels if mean else None, weight))[0]


@handles("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll(into: Translation, call: Call) -> Any:
    return by_sample(into, call)


def by_sample(into: Translation, call: Call) -> Any:
    """The loss of every sample, then its sum over the number of samples whose label counts."""
    scores, labels = into.tensor(call["self"]), into.tensor(call["target"])
    if not labels.shape:
        return None
    names = axes(scores)
    classes = 1 if len(names) > 1 else 0
    kept = [name for axis, name in enumerate(names) if axis != classes]
    lines = [f"{name}!" if axis == classes else name for axis, name in enumerate(names)]
    numbers = labels.dtype == "int64"
    written, operands = spell(call, reduction=str(NONE))
    weighed = [] if call["weight"] is None else [["w!"]]
    if weighed and not numbers:
        return None
    found = Aten(written, text([lines, kept if numbers else lines, *weighed], [kept]), call.dtypes)
    (loss,) = into.apply(found, [into.tensor(operand) for operand in operands])
    dims = [*range(len(kept))]
    if call["reduction"] == NONE:
        return loss
    if call["reduction"] != MEAN or not numbers:
        return total(into, loss, dims, loss.dtype, mean=call["reduction"] == MEAN)
    counts = f"ne.Scalar(x0, {call['ignore_index']})"
    if weighed:
        counts = f"mul.Tensor(take(x1, clamp_min(x0, 0)), {counts})"
    counted = Aten(f"sum({counts}, dtype={loss.dtype})", text([kept, *weighed], [[]]), (loss.dtype,))
    (count,) = into.apply(counted, [labels, *([into.tensor(call["weight"])] if weighed else [])])
    summed = total(into, loss, dims, loss.dtype)
    return into.apply(Aten("div.Tensor(x0, x1)", ", ->", (loss.dtype,)), (summed, count))[0]


@handles(
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss", "kl_div"),
    *("binary_cross_entropy_with_logits", "margin_ranking_loss", "hinge_embedding_loss", "poisson_nll_loss"),
)
def _pointwise_loss(into: Translation, call: Call) -> Any:
    written, operands = spell(call, reduction=str(NONE))
    given = [into.broadcastable(operand) for operand in operands]
    if given[0].shape != given[1].shape or not given[0].shape:
        return None
    patterns, result = broadcast(given[0].shape, [tensor.shape for tensor in given])
    (element,) = into.apply(Aten(written, text(patterns, [result]), call.dtypes), given)
    if call["reduction"] == NONE:
        return element
    return total(into, element, [*range(len(result))], call.dtypes[0], mean=call["reduction"] == MEAN)


@handles(
    *("triplet_margin_loss", "cosine_embedding_loss", "multi_margin_loss", "multilabel_margin_loss"),
)
def _row_loss(into: Translation, call: Call) -> Any:
    """A loss of whole rows: samples are split, features and classes are not."""
    written, operands = spell(call, reduction=str(NONE))
    given = [into.tensor(operand) for operand in operands]
    rows = given[0].shape
    if len(rows) != 2 or any(tensor.shape not in {rows, rows[:1]} for tensor in given):
        return None  # torch takes other shapes, and weights of classes
    sample, feature = activation_axes(2)
    patterns = [[sample, f"{feature}!"][: len(tensor.shape)] for tensor in given]
    (loss,) = into.apply(Aten(written, text(patterns, [[sample]]), call.dtypes), given)
    return loss if call["reduction"] == NONE else total(into, loss, [0], loss.dtype, mean=call["reduction"] == MEAN)
