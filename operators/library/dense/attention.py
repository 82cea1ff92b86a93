"""Scaled dot-product attention: masked, causal, and with fewer heads of keys than of queries."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.randomness.dropout import check_probability
from maniple.operators.operator.axes import present_shape
from maniple.operators.operator.operator import BackwardReads, Cost, float_dtype
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Saved, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.library.randomness.dropout_mask import DropFactors
    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import Keeping, TileContext

FUSED_RANK = 4
"""The dimensions of what torch's fused kernels take: samples, heads, queries or keys, features."""


@final
@dataclass(frozen=True, slots=True)
class Attention(TorchOperator):
    """torch.nn.functional.scaled_dot_product_attention: ``"b h q d!, b h t d!, b h t e -> b h q e"``.

    With grouped queries their heads are ``(h r!)``: ``r`` heads of queries share one of keys and values. A mask's
    dimension of extent 1 is for all elements of that dimension. A causal tile knows from its place along ``q`` which
    keys its queries may see. Weights are dropped by the element's place in the whole tensor of weights; keys and
    features of values then stay whole (``t!``, ``e!``). A composite where the keys or the features of values are split:
    the maximum, the sum of exponentials and the sum of weighted values fold, as the blocks of Dao et al.,
    FlashAttention, 2022, section 3.1, do.

    Forward is one of torch's fused kernels, which give the logarithm of each query's sum of exponentials besides;
    backward reads that, and computes no score again but within its own kernel. The gradient of a mask has no such
    kernel: all is computed again for it. Where weights are dropped they are kept, as torch keeps them.

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
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None, results=(0,))

    def __post_init__(self) -> None:
        check_probability(self.name, self.dropout_p)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        patterns, sizes = self._patterns(shapes)
        queries, keys, values, mask, result = patterns
        rows = result.rpartition(" ")[0]
        saved: tuple[Saved, ...] = ()
        if self.dropout_p:
            saved = Saved("weights", f"{rows} t!"), Saved("dropped", f"{rows} t!")
        elif len(present_shape(shapes[0], self.name)) <= FUSED_RANK:
            missing = FUSED_RANK - len(present_shape(shapes[0], self.name))
            saved = (Saved("lse", " ".join([*["1"] * missing, rows])),)
        return Rule.parse(f"{queries}, {keys}, {values}, [{mask}] -> {result}", sizes=sizes, saved=saved)

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``."""
        return (("_softmax", 0), ("mul", 0)) if self.dropout_p else ()

    @property
    def keeps(self) -> bool:
        """See ``TorchOperator.keeps``: the logarithms."""
        return not self.dropout_p

    @property
    def served(self) -> tuple[int, ...] | None:
        """See ``TorchOperator.served``: the gradient of a mask does not follow from sums of exponentials."""
        return None if self.dropout_p else (0, 1, 2)

    def _patterns(self, shapes: tuple[Shape | None, ...]) -> tuple[tuple[str, ...], dict[str, int]]:
        """The dimensions of queries, keys, values, mask and result, and the extents that no dimension gives.

        Raises:
            RequestError: The shapes are no attention's.
        """
        query, key, *_ = shapes
        if query is None or key is None or len(query) < 3 or len(key) != len(query):
            raise RequestError(f"{self.name}: expected (batch, ..., queries, features) twice, got {query} and {key}")
        outer = ["b", "h", *(f"h{axis}" for axis in range(2, len(query) - 2))][: len(query) - 2]
        heads, sizes, along, width = list(outer), {}, *(("t!", "e!") if self.dropout_p else ("t", "e"))
        if self.enable_gqa and query[-3] != key[-3]:
            if query[-3] % key[-3]:
                raise RequestError(
                    f"{self.name}: expected heads of queries in multiples of {key[-3]} heads of keys, got {query[-3]}"
                )
            heads[-1], sizes = f"({outer[-1]} r!)", {"r": query[-3] // key[-3]}
        mask = "" if len(shapes) < 4 or shapes[3] is None else _mask_axes(shapes[3], query, key, [*heads, "q", along])
        queries, keys = " ".join(heads), " ".join(outer)
        patterns = (f"{queries} q d!", f"{keys} {along} d!", f"{keys} {along} {width}", mask, f"{queries} q {width}")
        return patterns, sizes

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        return (float_dtype((*dtypes[:3], *(dtype for dtype in dtypes[3:] if dtype != "bool")), where),)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: two products, and in backward the gradients of both products' operands.

        The fused kernel makes the scores once more within backward, in blocks that it does not keep; where weights are
        dropped they are kept.
        """
        points = tile.result_rects[0].volume // tile.extent("e") * tile.extent("t")
        deep, wide = tile.extent("d"), tile.extent("e")
        scores = 0 if self.dropout_p else deep
        return Cost(2 * points * (deep + wide), 2 * points * (scores + 2 * deep + 2 * wide))

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return () if self.dropout_p else ("t", "e")

    def draws(self, context: TileContext) -> tuple[DropFactors, ...]:
        """See ``TorchOperator.draws``: what dropout multiplies the tile's weights by."""
        from maniple.operators.library.randomness.dropout_mask import DropFactors

        if not (self.dropout_p and context.training):
            return ()
        rect, extents = context.tile.result_rects[0], dict(context.extents)
        names = ("b", "h", *(f"h{axis}" for axis in range(2, len(rect.lo) - 2)))[: len(rect.lo) - 2]
        whole = [*(extents[name] for name in names), extents["q"], extents["t"]]
        whole[-3] *= extents.get("r", 1)
        part = Rect((*rect.lo[:-1], 0), (*rect.hi[:-1], extents["t"]))
        return (DropFactors(self.dropout_p, tuple(whole), part),)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor | Keeping:
        """See ``TorchOperator.forward``."""
        query, key, value, mask, *drawn = operands
        if query is None or key is None or value is None:
            raise TypeError(f"{self.name}: forward needs queries, keys and values")
        if drawn and drawn[0] is not None:
            return self._dropped(context, query, key, value, mask, drawn[0])
        lowest, end = context.tile.range("q")
        along = self.is_causal and lowest == 0 and mask is None
        if self.is_causal:
            if not along:
                seen = self._causal_mask(context, key)
                mask = seen if mask is None or seen is None else _both(mask, seen)
            # No query of the tile sees a later key.
            key, value = key[..., :end, :], value[..., :end, :]
            mask = mask if mask is None else mask[..., :end]
        return self._attend(query, key, value, mask, along=along)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, along: bool
    ) -> Tensor | Keeping:
        """Attention by a fused kernel, or as torch computes it where it has none.

        Args:
            query: The queries.
            key: The keys.
            value: The values.
            mask: What takes part, or what is added.
            along: Whether query ``i`` sees keys ``0..i``.
        """
        from torch.nn import functional as F

        from maniple.operators.library.dense.fused_attention import attend
        from maniple.operators.operator.operator import Keeping

        if query.ndim <= FUSED_RANK and not (mask is not None and mask.requires_grad):
            scale = 1 / sqrt(query.shape[-1]) if self.scale is None else self.scale
            first, second, third = (tensor[(None,) * (FUSED_RANK - query.ndim)] for tensor in (query, key, value))
            rows = None if mask is None else mask[(None,) * (FUSED_RANK - mask.ndim)]
            found = attend(first, second, third, rows, scale, along=along)
            if found is not None:
                result, lse = found
                return Keeping((result if query.ndim == FUSED_RANK else result[0],), (lse,))
        grouped = query.shape[-3] != key.shape[-3]
        return F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=along, scale=self.scale, enable_gqa=grouped
        )

    def _dropped(
        self, context: TileContext, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, factors: Tensor
    ) -> Tensor:
        """Attention whose weights are multiplied by factors; keys are not repeated for the queries of a group.

        A query that a mask leaves no key to has no weights, as torch has it: its scores are as they come, for a softmax
        of nothing is no number, and its factors are zero.
        """
        import torch

        from maniple.operators.library.dense.fused_attention import added

        scale = 1 / sqrt(query.shape[-1]) if self.scale is None else self.scale
        keys, values = key.reshape(-1, *key.shape[-2:]), value.reshape(-1, *value.shape[-2:])
        queries = query.reshape(keys.shape[0], -1, query.shape[-1])
        shape = (*query.shape[:-1], key.shape[-2])
        scores = torch.baddbmm(queries.new_zeros(()), queries, keys.mT, beta=0, alpha=scale).view(shape)
        # Added, for then the gradient of the scores asks for no mask.
        seen = self._causal_mask(context, key)
        bias = None if seen is None else added(seen, query)
        if mask is not None:
            bias = added(mask, query) if bias is None else bias + added(mask, query)
            blind = (bias == -inf).all(-1, keepdim=True)
            bias, factors = bias.masked_fill(blind, 0), factors.masked_fill(blind, 0)
        scores = scores if bias is None else scores + bias
        weights = (scores.softmax(-1) * factors).view(keys.shape[0], -1, key.shape[-2])
        return torch.bmm(weights, values).view(*query.shape[:-1], value.shape[-1])

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
            from maniple.operators.library.dense.fused_attention import repeated

            return exponentials(context, query, key, mask, top) @ repeated(value, query)

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
        from maniple.operators.library.dense.fused_attention import repeated

        scale = 1 / sqrt(query.shape[-1]) if self.scale is None else self.scale
        scores = query @ repeated(key, query).transpose(-2, -1) * scale
        if mask is not None:
            scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -inf)
        seen = self._causal_mask(context, key)
        return scores if seen is None else scores.masked_fill(~seen, -inf)

    def _causal_mask(self, context: TileContext, key: Tensor) -> Tensor | None:
        """Which of the tile's keys each of its queries sees, where the attention is causal."""
        import torch

        if not self.is_causal:
            return None
        (low, high), (first, _) = context.tile.range("q"), context.tile.range("t")
        return key.new_ones((high - low, key.shape[-2]), dtype=torch.bool).tril(low - first)


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


def _both(mask: Tensor, seen: Tensor) -> Tensor:
    """A mask that also leaves out what is not seen."""
    return mask.masked_fill(~seen, -inf) if mask.is_floating_point() else mask & seen
