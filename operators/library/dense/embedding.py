"""The embedding: rows of a table, picked by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.operator.axes import activation_axes, check_at_least, present_shape
from maniple.operators.operator.operator import (
    AbstractOperator,
    BackwardReads,
    Cost,
    Initial,
    Kernels,
    ParameterSpec,
    float_dtype,
)
from maniple.operators.rules.rule import Rule, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError


@final
@dataclass(frozen=True, slots=True)
class Embedding(AbstractOperator):
    """torch.nn.Embedding: ``"b s, v? d -> b s d"``.

    A split of ``v`` cuts the table by vocabulary: a tile gives zeros for the numbers of other tiles, and the tiles'
    results add up (Shoeybi et al., Megatron-LM, 2019, section 3). A split of ``d`` cuts it by columns.

    Args:
        num_embeddings: Rows of the table.
        embedding_dim: Columns of the table.
        padding_idx: The row that has no gradient, or None.
    """

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None = None

    name: ClassVar[str] = "embedding"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0,))
    differentiable: ClassVar[tuple[int, ...] | None] = (1,)

    def __post_init__(self) -> None:
        check_at_least("embedding.num_embeddings", self.num_embeddings, 1)
        check_at_least("embedding.embedding_dim", self.embedding_dim, 1)
        if self.padding_idx is not None and not 0 <= self.padding_idx < self.num_embeddings:
            raise RequestError(
                f"embedding.padding_idx: expected a row from 0 to {self.num_embeddings - 1}, got {self.padding_idx}"
            )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        rank = len(present_shape(shapes[0], self.name))
        axes = " ".join(activation_axes(rank + 1)[:-1]) if rank else ""
        return Rule.parse(f"{axes}, v? d -> {axes} d", parameters=(1,))

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        return (ParameterSpec("weight", (self.num_embeddings, self.embedding_dim), Initial("normal", 1.0)),)

    def rows_named(self, place: int) -> int:
        """See ``AbstractOperator.rows_named``."""
        return 1 if place else self.num_embeddings

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        if dtypes[0] not in {"int64", "int32"}:
            raise RequestError(f"{where}: expected row numbers of dtype int64 or int32, got {dtypes[0]}")
        return (float_dtype(dtypes[1:], where),)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        return Cost(tile.volume, tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.dense.embedding_kernels import KERNELS

        return KERNELS
