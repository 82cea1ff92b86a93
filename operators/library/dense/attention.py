"""Scaled dot-product attention: masked, causal, and with fewer heads of keys than of queries."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.randomness.dropout import check_probability
from maniple.operators.operator.operator import Cost, float_dtype
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import TileContext


@final
@dataclass(frozen=True, slots=True)
class Attention(TorchOperator):
    """torch.nn.functional.scaled_dot_product_attention: ``"b h q d!, b h t d!, b h t e -> b h q e"``.

    With grouped queries their heads are ``(h r!)``: ``r`` heads of queries share one of keys and values. A mask's
    dimension of extent 1 is for all elements of that dimension. A causal tile knows from its place along ``q`` which
    keys its queries may see. Weights are dropped by the element's place in the whole tensor of weights; keys then stay
    whole (``t!``). A composite where the keys are split: the maximum, the sum of exponentials and the sum of weighted
    values fold, as the blocks of Dao et al., FlashAttention, 2022, section 3.1, do.

    Operands: queries, keys, values, and a mask (bool: what takes part; float: added to the scores).

    Args:
        dropout_p: The probability that a weight is zero in training.
        is_causal: Whether query ``i`` sees keys ``0..i`` only.
        scale: Of the scores; None: 1/sqrt(d).
        enable_gqa: Whether there may be fewer heads of keys than of queries.
    """

    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    name: ClassVar[str] = "scaled_dot_product_attention"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability(self.name, self.dropout_p)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        patterns, sizes = self._patterns(shapes)
        queries, keys, values, mask, result = patterns
        return Rule.parse(f"{queries}, {keys}, {values}, [{mask}] -> {result}", sizes=sizes)

    def _patterns(self, shapes: tuple[Shape | None, ...]) -> tuple[tuple[str, ...], dict[str, int]]:
        """The dimensions of queries, keys, values, mask and result, and the extents that no dimension gives.

        Raises:
            RequestError: The shapes are no attention's.
        """
        query, key, *_ = shapes
        if query is None or key is None or len(query) < 3 or len(key) != len(query):
            raise RequestError(f"{self.name}: expected (batch, ..., queries, features) twice, got {query} and {key}")
        outer = ["b", "h", *(f"h{axis}" for axis in range(2, len(query) - 2))][: len(query) - 2]
        heads, sizes, along = list(outer), {}, "t!" if self.dropout_p else "t"
        if self.enable_gqa and query[-3] != key[-3]:
            if query[-3] % key[-3]:
                raise RequestError(
                    f"{self.name}: expected heads of queries in multiples of {key[-3]} heads of keys, got {query[-3]}"
                )
            heads[-1], sizes = f"({outer[-1]} r!)", {"r": query[-3] // key[-3]}
        mask = "" if len(shapes) < 4 or shapes[3] is None else _mask_axes(shapes[3], query, key, [*heads, "q", along])
        queries, keys = " ".join(heads), " ".join(outer)
        patterns = (f"{queries} q d!", f"{keys} {along} d!", f"{keys} {along} e", mask, f"{queries} q e")
        return patterns, sizes

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        return (float_dtype((*dtypes[:3], *(dtype for dtype in dtypes[3:] if dtype != "bool")), where),)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: two products, computed again in backward, with five more."""
        points = tile.result_rects[0].volume // tile.extent("e") * tile.extent("t")
        forward = 2 * points * (tile.extent("d") + tile.extent("e"))
        # The scores, once more, and the gradients of both products' operands.
        backward = 2 * points * (3 * tile.extent("d") + 2 * tile.extent("e"))
        return Cost(forward, forward + backward)

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return ("t",)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from torch.nn import functional as F

        query, key, value, mask = operands
        if query is None or key is None or value is None:
            raise TypeError(f"{self.name}: forward needs queries, keys and values")
        if self.dropout_p and context.training:
            weights = self._scores(context, query, key, mask).softmax(-1) * self._dropout_mask(context, key)
            return weights @ _repeat(value, query)
        grouped = query.shape[-3] != key.shape[-3]
        seen = self._causal_mask(context, key.shape[-2])
        if seen is not None:
            mask = seen if mask is None else _both(mask, seen)
        return F.scaled_dot_product_attention(query, key, value, mask, scale=self.scale, enable_gqa=grouped)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``."""
        query, key, value, mask = (*operands, None)[:4]
        (queries, keys, values, masked, result), sizes = self._patterns(composition.bound.operand_shapes)
        rows = f"{result.removesuffix(' e')} 1"
        given = f"{queries}, {keys}, [{masked}]"

        def greatest(context: TileContext, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            top = self._scores(context, query, key, mask).amax(-1, keepdim=True)
            return top.masked_fill(top == -inf, 0.0)  # a query that sees nothing here

        def exponentials(context: TileContext, query: Tensor, key: Tensor, mask: Tensor | None, top: Tensor) -> Tensor:
            return (self._scores(context, query, key, mask) - top).exp()

        def sums(context: TileContext, query: Tensor, key: Tensor, mask: Tensor | None, top: Tensor) -> Tensor:
            return exponentials(context, query, key, mask, top).sum(-1, keepdim=True)

        def weigh(
            context: TileContext, query: Tensor, key: Tensor, mask: Tensor | None, top: Tensor, value: Tensor
        ) -> Tensor:
            return exponentials(context, query, key, mask, top) @ _repeat(value, query)

        def mean(context: TileContext, total: Tensor, weighted: Tensor) -> Tensor:
            del context
            return weighted / total.masked_fill(total == 0, 1.0)

        read = (query, key, mask)
        top = composition.constant("shift", f"{given} -> {rows}", greatest, *read, reduce="t:max", sizes=sizes)
        total = composition.formula("sum", f"{given}, {rows} -> {rows}", sums, *read, top, sizes=sizes)
        text = f"{given}, {rows}, {values} -> {result}"
        weighted = composition.formula("weighted", text, weigh, *read, top, value, sizes=sizes)
        return (composition.formula("result", f"{rows}, {result} -> {result}", mean, total, weighted, sizes=sizes),)

    def _scores(self, context: TileContext, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """The scaled products of queries and keys, -inf where a query does not see a key."""
        scale = 1 / sqrt(query.shape[-1]) if self.scale is None else self.scale
        scores = query @ _repeat(key, query).transpose(-2, -1) * scale
        if mask is not None:
            scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -inf)
        seen = self._causal_mask(context, key.shape[-2])
        return scores if seen is None else scores.masked_fill(~seen, -inf)

    def _causal_mask(self, context: TileContext, keys: int) -> Tensor | None:
        """Which of the tile's keys each of its queries sees, where the attention is causal."""
        import torch

        if not self.is_causal:
            return None
        places = torch.arange(*context.tile.range("q")).unsqueeze(1)
        first = context.tile.range("t")[0]
        return places >= torch.arange(first, first + keys)

    def _dropout_mask(self, context: TileContext, key: Tensor) -> Tensor:
        """What dropout multiplies the tile's weights by."""
        from maniple.operators.library.randomness.dropout_mask import drawn_factors

        if context.stream is None:
            raise TypeError(f"{self.name}: needs a random stream")
        rect, extents, keys = context.tile.result_rects[0], dict(context.extents), key.shape[-2]
        names = ("b", "h", *(f"h{axis}" for axis in range(2, len(rect.lo) - 2)))[: len(rect.lo) - 2]
        whole = [*(extents[name] for name in names), extents["q"], keys]
        whole[-3] *= extents.get("r", 1)
        part = Rect((*rect.lo[:-1], 0), (*rect.hi[:-1], keys))
        return drawn_factors(context.stream, self.dropout_p, tuple(whole), part, key.dtype)


def _mask_axes(mask: Shape, query: Shape, key: Shape, full: list[str]) -> str:
    """A mask's dimensions as the rule writes them: those of the scores, from the last, or 1.

    Raises:
        RequestError: It does not broadcast to the scores.
    """
    scores = (*query[:-1], key[-2])
    offset = len(scores) - len(mask)
    if offset < 0 or any(extent not in {1, scores[offset + axis]} for axis, extent in enumerate(mask)):
        raise RequestError(f"scaled_dot_product_attention: expected a mask for scores of shape {scores}, got {mask}")
    return " ".join(full[offset + axis] if extent == scores[offset + axis] else "1" for axis, extent in enumerate(mask))


def _repeat(keys: Tensor, queries: Tensor) -> Tensor:
    """Keys or values with as many heads as the queries have."""
    repeats = queries.shape[-3] // keys.shape[-3]
    return keys if repeats == 1 else keys.repeat_interleave(repeats, -3)


def _both(mask: Tensor, seen: Tensor) -> Tensor:
    """A mask that also leaves out what is not seen."""
    return mask.masked_fill(~seen, -inf) if mask.is_floating_point() else mask & seen
