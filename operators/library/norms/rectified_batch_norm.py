"""Batch norm, what is added to it and the ReLU behind both, as one operator: between the three nothing goes to memory.

    relu(batch_norm(x))             of n elements reads and writes 2 n each as two operators, n as one
    relu(batch_norm(x) + branch)    reads 5 n and writes 3 n as three, and 2 n and n as one

A graph has it where an import found the three one behind the other (`operators/rewriting/rectified_norms.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.norms.local_batch_norm import LocalBatchNorm
from maniple.operators.library.norms.normalization import BatchNorm
from maniple.operators.library.norms.split_batch_norm import ChannelNormal, axes_of
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Kernels
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import ParameterSpec, TileContext
    from maniple.operators.rules.tile import Tile

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class RectifiedBatchNorm(TorchOperator):
    """A batch norm behind which something may be added, and a ReLU: ``"x, c, c, [x], [c], [c] -> x, c, c"``.

    Operands: the activation, running mean, running variance, what is added, weight, bias. Results: as of a batch norm.
    Backward knows by the result where the ReLU lets a gradient through, as that of a ReLU does.

    Args:
        norm: The batch norm.
    """

    norm: BatchNorm

    name: ClassVar[str] = "rectified_batch_norm"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads((0, 1, 2, 4, 5), (0,), (0, 1))
    differentiable: ClassVar[tuple[int, ...] | None] = (0, 3, 4, 5)
    detached: ClassVar[tuple[int, ...]] = (1, 2)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        saved = tuple(item for item, _ in self.norm.rule(shapes).saved)
        axes, channel = axes_of(self.norm.rank)
        statistics = f"{channel}, {channel}"
        return Rule.parse(
            f"{axes}, {statistics}, [{axes}], [{channel}], [{channel}] -> {axes}, {statistics}", saved=saved
        )

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``."""
        return self.norm.saves

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        return self.norm.parameters()

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        return self.norm.result_dtypes(dtypes, where)

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return self.norm.exchanges()

    def under(self, semantics: Mapping[str, str]) -> AbstractOperator:
        """See ``AbstractOperator.under``."""
        return LocalBatchNorm(self) if isinstance(self.norm.under(semantics), LocalBatchNorm) else self

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        x, mean, variance, branch, weight, bias = operands
        found, *following = self.norm.forward(context, (x, mean, variance, weight, bias))
        return ((found if branch is None else found + branch).relu(), *following)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: those of the batch norm, and one for each point of the ReLU."""
        own = self.norm.flops(tile)
        return Cost(own.forward + tile.volume, own.backward + tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.norms.rectified_norm_kernels import RECTIFIED

        return RECTIFIED

    def local_kernels(self) -> Kernels:
        """The kernels by the tile's own statistics."""
        from maniple.operators.library.norms.rectified_norm_kernels import LOCAL

        return LOCAL

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: torch's."""
        return TorchOperator.kernels(self)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``: as a batch norm, whose last primitive is rectified."""
        x, mean, variance, branch, weight, bias = (*operands, None, None, None)[:6]
        normal = RectifiedNormal(ChannelNormal(self.norm.rank, self.norm.eps))
        return self.norm.compose_with(normal, composition, (x, mean, variance, weight, bias), (branch,))


@final
@dataclass(frozen=True, slots=True)
class RectifiedNormal(TorchOperator):
    """What is normalized by given statistics, added to and rectified: ``"x, c, c, [c], [c], [x] -> x"``.

    Args:
        normal: What normalizes.
    """

    normal: ChannelNormal

    name: ClassVar[str] = "rectified_normal"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads((0, 1, 2, 3), (0,))

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        del shapes
        axes, channel = axes_of(self.normal.rank)
        return Rule.parse(f"{axes}, {channel}, {channel}, [{channel}], [{channel}], [{axes}] -> {axes}")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        found, branch = self.normal.forward(context, operands[:5]), operands[5]
        return (found if branch is None else found + branch).relu()

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        own = self.normal.flops(tile)
        return Cost(own.forward + tile.volume, own.backward + tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.norms.rectified_norm_kernels import NORMAL

        return NORMAL

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: torch's."""
        return TorchOperator.kernels(self)
