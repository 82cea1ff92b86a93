"""Batch normalization by each tile's own statistics: what a plan of the semantics ``batch_norm=local_stats`` runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.operator import BackwardReads
from maniple.operators.operator.torch_operator import TorchOperator

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.library.norms.normalization import BatchNorm
    from maniple.operators.library.norms.rectified_batch_norm import RectifiedBatchNorm
    from maniple.operators.operator.operator import Kernels, ParameterSpec, TileContext
    from maniple.operators.rules.rule import Rule, Shape


@final
@dataclass(frozen=True, slots=True)
class LocalBatchNorm(TorchOperator):
    """A batch norm whose tiles do not exchange statistics, as torch's data parallelism has it.

    Its results depend on how the plan cuts the batch. The next running statistics are the mean of the tiles', each by
    its share of the batch.

    Args:
        exact: The operator that it stands for.
    """

    exact: BatchNorm | RectifiedBatchNorm

    name: ClassVar[str] = "local_batch_norm"
    gradients_together: ClassVar[bool] = True
    detached: ClassVar[tuple[int, ...]] = (1, 2)

    @property
    def backward_reads(self) -> BackwardReads:  # type: ignore[override]  # what it stands for decides it
        """See ``AbstractOperator``: what forward computes of, as it is computed again."""
        return BackwardReads(self.exact.differentiable)

    @property
    def differentiable(self) -> tuple[int, ...] | None:  # type: ignore[override]  # what it stands for decides it
        """See ``AbstractOperator``."""
        return self.exact.differentiable

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """See ``AbstractOperator.rule``: without what is saved, of which each part of the batch has its own."""
        return replace(self.exact.rule(shapes), saved=())

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        return self.exact.parameters()

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        return self.exact.result_dtypes(dtypes, where)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        found, mean, variance = self.exact.forward(context, operands)
        share = self.share(context)
        return found, share * mean, share * variance

    def share(self, context: TileContext) -> float:
        """The tile's part of a channel."""
        return prod(context.tile.extent(name) / context.extent(name) for name in self.exact.exchanges())

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        return self.exact.local_kernels()

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: torch's."""
        return TorchOperator.kernels(self)
