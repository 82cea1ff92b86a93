"""The loss: cross-entropy of logits and class labels."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import activation_axes, present_shape
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Kernels, float_dtype
from maniple.operators.rules.rule import Rule, Saved, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import TileContext

REDUCTIONS = ("mean", "sum")


@final
@dataclass(frozen=True, slots=True)
class CrossEntropy(AbstractOperator):
    """torch.nn.CrossEntropyLoss of logits (N, C) and int64 labels (N,): ``"b c, b, n!, [c] -> "``.

    Logits may have more dimensions after the classes, labels the same ones. The mean divides by the weights of all
    valid labels of the batch, so a tile reads the labels a second time, whole: every rank is given the whole batch, and
    no sum has to travel before a tile knows its share. Saves, for each sample, the logarithm of the sum of its
    exponentials. A composite where the classes are split.

    Operands: logits, labels, the labels again (absent for a sum), and the classes' weights.

    Args:
        ignore_index: The label of samples that do not count.
        reduction: ``"mean"`` or ``"sum"``.
        label_smoothing: The share of the label's probability that all classes have together.
    """

    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0

    name: ClassVar[str] = "cross_entropy"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None, saved=(0,))
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise RequestError(f"cross_entropy.reduction: {self.reduction!r}{nearest(str(self.reduction), REDUCTIONS)}")
        if not 0 <= self.label_smoothing <= 1:
            raise RequestError(f"cross_entropy.label_smoothing: expected 0 to 1, got {self.label_smoothing!r}")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        rank = len(present_shape(shapes[0], self.name))
        if rank < 2:
            raise RequestError(f"cross_entropy: expected logits (samples, classes, ...), got shape {shapes[0]}")
        axes = _axes(rank)
        places = _without_classes(axes)
        every = " ".join(f"n{axis}!" for axis in range(rank - 1)) if self.reduction == "mean" else ""
        text = f"{' '.join(axes)}, {places}, [{every}], [c] -> "
        return Rule.parse(text, saved=(Saved("logarithms", places),))

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        if dtypes[1] != "int64":
            raise RequestError(
                f"{where}: expected labels of dtype int64 (one class number per sample), got {dtypes[1]}; "
                "declare the input with dtype='int64'"
            )
        return (float_dtype((dtypes[0], *dtypes[3:]), where),)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        elements = tile.operand_rects[0].volume if tile.operand_rects[0] is not None else 0
        return Cost(4 * elements, 3 * elements)

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return ("c",)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """By the logarithm of the sum of exponentials, whose parts over the classes fold.

        With chances ``q`` of the classes (1 for the label's, less what smoothing spreads), a sample's loss is
        ``sum_c q_c * logsumexp - sum_c q_c x_c``. The maximum shifts both terms of logsumexp alike, so it is a constant
        to autograd. The mean divides each sample's part by what all labels of the batch weigh, as the fused kernel
        does: so the parts of micro-batches add up, and none waits for the others.
        """
        x, labels, every, weight = (*operands, None, None)[:4]
        axes = _axes(composition.rank)
        whole, places = " ".join(axes), _without_classes(axes)
        shift = composition.constant("shift", f"{whole} -> {places}", lambda _, x: x.amax(1), x, reduce="c:max")
        total = composition.formula(
            "sum", f"{whole}, {places} -> {places}", lambda _, x, m: (x - m.unsqueeze(1)).exp().sum(1), x, shift
        )
        text = f"{whole}, {places}, [c] -> {places}, {places}"
        chosen = composition.formulas("chances", text, self._chances, x, labels, weight)
        counted = " ".join(f"n{axis}!" for axis in range(composition.rank - 1)) if self.reduction == "mean" else ""
        text = f"{', '.join([places] * 4)}, [{counted}], [w!] -> "
        given = (every, weight) if self.reduction == "mean" else (None, None)
        return (composition.formula("losses", text, self._losses, shift, total, *chosen, *given),)

    def _losses(
        self,
        context: TileContext,
        m: Tensor,
        s: Tensor,
        chosen: Tensor,
        chance: Tensor,
        every: Tensor | None,
        weight: Tensor | None,
    ) -> Tensor:
        """The part of this tile's samples of the loss."""
        del context
        total = (chance * (m + s.log()) - chosen).sum()
        if every is None:
            return total
        valid = every != self.ignore_index
        if weight is None:
            return total / valid.sum()
        shares = weight[every.clamp(0, len(weight) - 1)]
        return total / shares.masked_fill(~valid, 0).sum()

    def _chances(self, context: TileContext, x: Tensor, labels: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """For every sample, this tile's classes' part of ``sum q x``, and of ``sum q``."""
        from maniple.operators.operator.host_memory import in_host_memory

        classes, valid = context.extent("c"), labels != self.ignore_index
        wrong = valid & ((labels < 0) | (labels >= classes))
        here = in_host_memory(labels)
        if here and bool(wrong.any()):
            raise IndexError(f"a label is out of bounds: expected 0 to {classes - 1} or {self.ignore_index}")
        find = self._smoothed if self.label_smoothing else self._labelled
        chosen, shares = find(context, x, labels, weight, valid)
        if not here:
            chosen = chosen.masked_fill(wrong, nan)
        return chosen, shares

    def _labelled(
        self, context: TileContext, x: Tensor, labels: Tensor, weight: Tensor | None, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same where only the label's class has a chance: one logit of each sample is looked at."""
        first, last = context.tile.range("c")
        inside, place = valid & (labels >= first) & (labels < last), (labels - first).clamp(0, last - first - 1)
        share = inside.to(x.dtype)
        if weight is not None:
            share = share * weight[place]
        found = x.gather(1, place.unsqueeze(1)).squeeze(1)
        return share * found.masked_fill(share == 0, 0), share  # a class that is ruled out has a logit of -inf

    def _smoothed(
        self, context: TileContext, x: Tensor, labels: Tensor, weight: Tensor | None, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same where every class has one."""
        import torch

        across = (1, -1, *(1,) * (x.ndim - 2))
        counted = valid.unsqueeze(1)
        hit = torch.arange(*context.tile.range("c")).view(across) == labels.unsqueeze(1)
        share, spread = (hit & counted).to(x.dtype), counted.to(x.dtype) * (self.label_smoothing / context.extent("c"))
        if weight is not None:
            share, spread = share * weight.view(across), spread * weight.view(across)
        chances = (1 - self.label_smoothing) * share + spread
        chosen = (chances * x.masked_fill(chances == 0, 0)).sum(1)
        return chosen, chances.expand_as(x).sum(1)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.losses.loss_kernels import KERNELS

        return KERNELS

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``."""
        from maniple.operators.library.losses.loss_cuda_kernels import KERNELS

        return KERNELS


def _axes(rank: int) -> tuple[str, ...]:
    """The factors of the logits."""
    return activation_axes(rank) if rank == 2 else ("b", "c", *(f"d{axis}" for axis in range(2, rank)))


def _without_classes(axes: tuple[str, ...]) -> str:
    """The dimensions of the labels."""
    return " ".join([axes[0], *axes[2:]])
