"""The loss: cross-entropy of logits and class labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.library.axes import activation_axes, present_shape
from maniple.operators.operator import AbstractOperator, BackwardReads, Cost, Kernels, float_dtype
from maniple.operators.rule import Rule, Saved, Shape
from maniple.operators.tile import Tile
from maniple.regions.error import RequestError, nearest

REDUCTIONS = ("mean", "sum")


@final
@dataclass(frozen=True, slots=True)
class CrossEntropy(AbstractOperator):
    """torch.nn.CrossEntropyLoss of logits (N, C) and int64 labels (N,): ``"b c!, b, n!, [c!] -> "``.

    Logits may have more dimensions after the classes, labels the same ones. The mean divides by the weights of all
    valid labels of the batch, so a tile reads the labels a second time, whole: every rank is given the whole batch, and
    no sum has to travel before a tile knows its share. Saves, for each sample, the logarithm of the sum of its
    exponentials.

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
        batch, _, *rest = activation_axes(rank) if rank == 2 else ("b", "c", *(f"d{axis}" for axis in range(2, rank)))
        places = " ".join([batch, *rest])
        every = " ".join(f"n{axis}!" for axis in range(rank - 1)) if self.reduction == "mean" else ""
        text = f"{' '.join([batch, 'c!', *rest])}, {places}, [{every}], [c!] -> "
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

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.kernels.loss import KERNELS

        return KERNELS
