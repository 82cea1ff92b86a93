"""Losses that compare element by element, and the likelihood of class labels."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, prod
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import activation_axes, present_shape
from maniple.operators.operator.operator import float_dtype
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

KINDS = ("mse", "l1", "smooth_l1", "huber", "bce", "bce_with_logits", "kl", "soft_cross_entropy")
REDUCTIONS = ("mean", "sum", "none", "batchmean")


@final
@dataclass(frozen=True, slots=True)
class PointwiseLoss(TorchOperator):
    """torch.nn.MSELoss and its kin: ``"b c, b c, [c], [c] -> "``, or ``-> b c`` without a reduction.

    A tile contributes the sum over its elements, divided by the elements (or the samples) of the whole.

    Operands: the input, the target, a weight (of binary cross-entropy) and, with logits, the weight of positive
    targets; these two are for the last dimension. Cross-entropy with probabilities takes log-probabilities, and a
    weight for the classes, dimension 1; its mean is over places that have a distribution.

    Args:
        kind: One of mse, l1, smooth_l1, huber, bce, bce_with_logits, kl and soft_cross_entropy.
        reduction: ``"mean"``, ``"sum"``, ``"none"``, or ``"batchmean"`` (of kl): the sum divided by the samples.
        threshold: Of smooth_l1 (torch calls it beta), huber (delta) and soft_cross_entropy (label_smoothing).
        log_target: Whether the targets of kl are logarithms.
    """

    kind: str
    reduction: str = "mean"
    threshold: float = 1.0
    log_target: bool = False

    name: ClassVar[str] = "pointwise_loss"
    differentiable: ClassVar[tuple[int, ...] | None] = (0, 1)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RequestError(f"pointwise_loss.kind: {self.kind!r}{nearest(self.kind, KINDS)}")
        if self.reduction not in REDUCTIONS[: 4 if self.kind == "kl" else 3]:
            raise RequestError(f"{self.kind}.reduction: {self.reduction!r}{nearest(self.reduction, REDUCTIONS)}")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        axes = activation_axes(len(present_shape(shapes[0], self.name)))
        whole = " ".join(axes)
        last = f", [{axes[-1]}], [{axes[-1]}]" if self.kind.startswith("bce") else ""
        if self.kind == "soft_cross_entropy":
            last = f", [{axes[1]}]"
        return Rule.parse(f"{whole}, {whole}{last} -> {whole if self.reduction == 'none' else ''}")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        x, target, *weights = operands
        if x is None or target is None:
            raise TypeError(f"{self.kind}: forward needs its input and its target")
        extents = [extent for _, extent in context.extents]
        counts = {"mean": prod(extents), "sum": 1, "batchmean": extents[0]}
        if self.kind == "soft_cross_entropy":
            each = self._cross_entropy(x, target, extents[1], *weights)
            counts["mean"] //= extents[1]
        else:
            each = self._each(x, target, *weights)
        if self.reduction == "none":
            return each
        return each.sum() / counts[self.reduction]

    def _cross_entropy(self, x: Tensor, target: Tensor, classes: int, weight: Tensor | None = None) -> Tensor:
        """The cross-entropy of every class of every place."""
        smooth = target * (1 - self.threshold) + self.threshold / classes
        found = -x * smooth
        return found if weight is None else found * weight.view(-1, *[1] * (x.ndim - 2))

    def _each(
        self, x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None
    ) -> Tensor:
        """The loss of every element."""
        from torch.nn import functional as F

        match self.kind:
            case "mse":
                return F.mse_loss(x, target, reduction="none")
            case "l1":
                return F.l1_loss(x, target, reduction="none")
            case "smooth_l1":
                return F.smooth_l1_loss(x, target, reduction="none", beta=self.threshold)
            case "huber":
                return F.huber_loss(x, target, reduction="none", delta=self.threshold)
            case "bce":
                return F.binary_cross_entropy(x, target, weight, reduction="none")
            case "bce_with_logits":
                return F.binary_cross_entropy_with_logits(x, target, weight, reduction="none", pos_weight=pos_weight)
            case _:
                return F.kl_div(x, target, reduction="none", log_target=self.log_target)


@final
@dataclass(frozen=True, slots=True)
class NegativeLogLikelihood(TorchOperator):
    """torch.nn.NLLLoss: ``"b c d, b d, n! m!, [c] -> "``; a split of the classes adds up.

    The mean divides by the weights of all valid labels of the batch, which a tile reads whole a second time, as
    cross-entropy does.

    Operands: the logarithms of probabilities, labels, the labels again (absent for a sum), and the classes' weights.

    Args:
        ignore_index: The label of samples that do not count.
        reduction: ``"mean"`` or ``"sum"``.
    """

    ignore_index: int = -100
    reduction: str = "mean"

    name: ClassVar[str] = "nll_loss"
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS[:2]:
            raise RequestError(f"nll_loss.reduction: {self.reduction!r}{nearest(self.reduction, REDUCTIONS[:2])}")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        rank = len(present_shape(shapes[0], self.name))
        if rank < 2:
            raise RequestError(f"nll_loss: expected an input (samples, classes, ...), got shape {shapes[0]}")
        classes = present_shape(shapes[0], self.name)[1]
        if len(shapes) > 3 and shapes[3] not in {None, (classes,)}:
            raise RequestError(f"nll_loss: expected weights of shape ({classes},), got {shapes[3]}")
        rest = [f"d{axis}" for axis in range(2, rank)]
        every = " ".join(f"n{axis}!" for axis in range(rank - 1)) if self.reduction == "mean" else ""
        # The weights are whole: the mean needs those of all labels.
        return Rule.parse(f"{' '.join(['b', 'c', *rest])}, {' '.join(['b', *rest])}, [{every}], [w!] -> ")

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        if dtypes[1] != "int64":
            raise RequestError(
                f"{where}: expected labels of dtype int64 (one class number per sample), got {dtypes[1]}"
            )
        return (float_dtype((dtypes[0], *dtypes[3:]), where),)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from maniple.operators.operator.host_memory import in_host_memory

        x, labels, every, weight = operands
        if x is None or labels is None:
            raise TypeError("nll_loss: forward needs its input and its labels")
        low, high = context.tile.range("c")
        classes = context.extent("c")
        valid = labels != self.ignore_index
        wrong = valid & ((labels < 0) | (labels >= classes))
        near = in_host_memory(labels)
        if near and bool(wrong.any()):
            raise IndexError(f"nll_loss: a label is out of bounds: expected 0 to {classes - 1} or {self.ignore_index}")
        here = valid & (labels >= low) & (labels < high)
        place = (labels - low).clamp(0, high - low - 1)
        factors = here.to(x.dtype)
        if weight is not None:
            factors = factors * weight[labels.clamp(0, classes - 1)]
        chosen = x.gather(1, place.unsqueeze(1)).squeeze(1)
        total = -(chosen.masked_fill(~here, 0) * factors).sum()  # another class may have no chance: minus infinity
        if not near:
            total = total.masked_fill(wrong.any(), nan)
        if every is None:
            return total
        if near:
            counted = every[every != self.ignore_index]
            return total / (counted.numel() if weight is None else weight[counted].sum())
        counts = (every != self.ignore_index).to(x.dtype)
        return total / (counts if weight is None else counts * weight[every.clamp(0, classes - 1)]).sum()
