"""The loss: cross-entropy of logits and class labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.operator import AbstractOperator, BackwardReads, Cost, Kernels, float_dtype
from maniple.operators.rule import Rule, Saved, Shape
from maniple.operators.tile import Tile
from maniple.regions.error import RequestError


@final
@dataclass(frozen=True, slots=True)
class CrossEntropy(AbstractOperator):
    """torch.nn.CrossEntropyLoss of logits (N, C) and int64 labels (N,): ``"b c!, b -> "``.

    The mean over the whole batch: a tile contributes the sum over its samples, divided by the batch's extent. Saves the
    logarithms of the probabilities.
    """

    name: ClassVar[str] = "cross_entropy"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(1,), saved=(0,))
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        return Rule.parse("b c!, b -> ", saved=(Saved("log_probabilities", "b c!"),))

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        if dtypes[1] != "int64":
            raise RequestError(
                f"{where}: expected labels of dtype int64 (one class number per sample), got {dtypes[1]}; "
                "declare the input with dtype='int64'"
            )
        return (float_dtype(dtypes[:1], where),)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        return Cost(4 * tile.volume, 3 * tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.kernels.loss import KERNELS

        return KERNELS
