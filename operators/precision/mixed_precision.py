"""Mixed precision: an operator that reads halves or gives halves, and computes in float32 in between.

    linear under bf16       x bf16                 \
                            w bf16, cast at home    > x w^T + b, added up in float32 --> rounded to bf16
                            b bf16, cast at home   /
    its backward            y.grad float32 -> rounded to bf16, and from it w.grad and x.grad in float32

Where a value is rounded is part of the graph, not of a plan: an operand as a product reads it, a result once it is
complete, a gradient as a product's backward reads it. All that is added up, in a task or between tasks, is float32:
a split whose parts would fold into halves is composed of a sum in float32 and of a cast (see ``compose``). In what
kernels compute between two roundings is theirs: ``arithmetic``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from maniple.operators.operator.formula import Formula
from maniple.operators.operator.operator import HALF_DTYPES, AbstractOperator, BackwardReads, Kernels

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import Cost, ParameterSpec, TileContext
    from maniple.operators.rules.rule import Rule, Shape
    from maniple.operators.rules.tile import Tile
    from maniple.operators.rules.view import Rearrangement

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class MixedPrecision(AbstractOperator):
    """An operator in mixed precision.

    Args:
        inner: what computes, in float32.
        rounds: by operand, the half that its values are rounded to as they are read; "": they are read as they come.
        gives: the dtype of each result.
        folds: the factors whose parts would fold into a half: split, it is composed.
        back: the half that gradients of results are rounded to as backward reads them; "": they are read as they come.
        tf32: whether a GPU may round what it multiplies to the 10 bits of TF32; nothing else changes.
    """

    inner: AbstractOperator
    rounds: tuple[str, ...]
    gives: tuple[str, ...]
    folds: tuple[str, ...] = ()
    back: str = ""
    tf32: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """The inner operator's."""
        return self.inner.name

    @property
    def backward_reads(self) -> BackwardReads:  # type: ignore[override]
        """The inner operator's."""
        return self.inner.backward_reads

    @property
    def differentiable(self) -> tuple[int, ...] | None:  # type: ignore[override]
        """The inner operator's."""
        return self.inner.differentiable

    @property
    def detached(self) -> tuple[int, ...]:  # type: ignore[override]
        """The inner operator's."""
        return self.inner.detached

    @property
    def passes(self) -> tuple[int, ...]:  # type: ignore[override]
        """The inner operator's: gradients are float32, whatever results are."""
        return self.inner.passes

    @property
    def random(self) -> bool:  # type: ignore[override]
        """The inner operator's."""
        return self.inner.random

    @property
    def gradients_together(self) -> bool:  # type: ignore[override]
        """The inner operator's."""
        return self.inner.gradients_together

    @property
    def opaque_source(self) -> str:
        """The inner operator's."""
        return self.inner.opaque_source

    @property
    def multiplies_in(self) -> str:
        """See ``AbstractOperator.multiplies_in``."""
        return "tf32" if self.tf32 else ""

    def rows_named(self, place: int) -> int:
        """See ``AbstractOperator.rows_named``."""
        return self.inner.rows_named(place)

    def reads_as(self, place: int) -> str:
        """See ``AbstractOperator.reads_as``."""
        return self.rounds[place] if place < len(self.rounds) else ""

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The inner operator's; what it saves is float32, whatever its results are."""
        rule = self.inner.rule(shapes)
        saved = tuple((item if item.dtype else replace(item, dtype="float32"), pattern) for item, pattern in rule.saved)
        return replace(rule, saved=saved) if saved != rule.saved else rule

    def rearrangement(self, operand: Shape, result: Shape) -> Rearrangement | None:
        """The inner operator's; ``lowering.precision`` has it give what it reads, unrounded."""
        return self.inner.rearrangement(operand, result)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """The inner operator's."""
        return self.inner.parameters()

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """What it gives, if the inner operator takes such operands."""
        self.inner.result_dtypes(tuple("float32" if dtype in HALF_DTYPES else dtype for dtype in dtypes), where)
        return self.gives

    def flops(self, tile: Tile) -> Cost:
        """The inner operator's."""
        return self.inner.flops(tile)

    def kernels(self) -> Kernels:
        """The inner operator's kernels, between what is rounded."""
        return self._around(self.inner.kernels())

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``."""
        return self._around(self.inner.gpu_kernels())

    def _around(self, inner: Kernels) -> Kernels:
        """The same for all: they find those of the inner operator when they know its tensors."""
        from maniple.operators.precision import mixed_kernels

        return replace(mixed_kernels.KERNELS, accumulates=inner.accumulates)

    def under(self, semantics: Mapping[str, str]) -> AbstractOperator:
        """See ``AbstractOperator.under``."""
        inner = self.inner.under(semantics)
        return self if inner is self.inner else replace(self, inner=inner)

    def with_batch(self, before: int, after: int) -> Self:
        """See ``AbstractOperator.with_batch``."""
        return replace(self, inner=self.inner.with_batch(before, after))

    def exchanges(self) -> tuple[str, ...]:
        """The factors that the inner operator exchanges, and those whose parts would fold into a half."""
        own = self.inner.exchanges()
        return (*own, *(factor for factor in self.folds if factor not in own))

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """Write it as a sum in float32, or the primitives of the inner operator in float32, and casts of the results.

        A linear under bf16, split in two along what it adds up:

            linear             b k, n k, [n]@k -> b n      bf16 from bf16
        becomes
            linear.sum         b k, n k, [n]@k -> b n      float32 from bf16; its parts fold
            linear.half        b n -> b n                  bf16 from float32
        """
        rounding = {
            operand.id: self.reads_as(place)
            for place, operand in enumerate(operands)
            if operand is not None and self.reads_as(place)
        }
        if self.tf32:
            return self.inner.compose(composition.within(_in_tf32), operands)
        singly = tuple("float32" if dtype in HALF_DTYPES else dtype for dtype in self.gives)
        if self.inner.exchanges():
            results = self.inner.compose(composition.within(lambda own, given: _singly(own, given, rounding)), operands)
        else:
            results = composition.primitive("sum", replace(self, gives=singly, folds=(), back=""), operands)
        found = []
        for place, (result, dtype) in enumerate(zip(results, self.gives, strict=True)):
            if dtype in HALF_DTYPES:
                pattern = composition.bound.rule.results[place]
                cast = MixedPrecision(Formula(f"{pattern} -> {pattern}", pass_on), ("",), (dtype,), (), self.back)
                (result,) = composition.primitive(f"half{place or ''}", cast, (result,))  # noqa: PLW2901
            found.append(result)
        return tuple(found)


def pass_on(context: TileContext, value: Tensor) -> Tensor:
    """The function of a cast: what it is given, which is rounded on the way out."""
    del context
    return value.clone()


def in_tf32(operator: AbstractOperator, dtypes: tuple[str | None, ...], where: str) -> MixedPrecision:
    """An operator of which a GPU may round what it multiplies to TF32.

    Args:
        operator: a product.
        dtypes: of its operands.
        where: what messages call it.
    """
    return MixedPrecision(operator, (), operator.result_dtypes(dtypes, where), tf32=True)


def _in_tf32(own: AbstractOperator, operands: tuple[Handle | None, ...]) -> AbstractOperator:
    dtypes = tuple(None if operand is None else operand.dtype for operand in operands)
    return in_tf32(own, dtypes, own.name)


def _singly(
    own: AbstractOperator, operands: tuple[Handle | None, ...], rounding: Mapping[int, str]
) -> AbstractOperator:
    """A primitive that gives float32, whatever it reads."""
    rounds = tuple("" if operand is None else rounding.get(operand.id, "") for operand in operands)
    dtypes = tuple(None if operand is None else operand.dtype for operand in operands)
    if not any(rounds) and not any(dtype in HALF_DTYPES for dtype in dtypes):
        return own
    singly = tuple("float32" if dtype in HALF_DTYPES else dtype for dtype in dtypes)
    gives = own.result_dtypes(singly, own.name)
    return MixedPrecision(own, rounds, gives)
