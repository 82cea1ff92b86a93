"""Scaled dot-product attention: masked, causal, and with fewer heads of keys than of queries."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.dropout import check_probability
from maniple.operators.operator import Cost, float_dtype
from maniple.operators.rule import Rule, Shape
from maniple.operators.tile import Tile
from maniple.operators.torch_operator import TorchOperator
from maniple.regions.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator import TileContext


@final
@dataclass(frozen=True, slots=True)
class Attention(TorchOperator):
    """torch.nn.functional.scaled_dot_product_attention: ``"b h q d!, b h t! d!, b h t! e -> b h q e"``.

    With grouped queries their heads are ``(h r!)``: ``r`` heads of queries share one of keys and values. A mask's
    dimension of extent 1 is for all elements of that dimension. A causal tile knows from its place along ``q`` which
    keys its queries may see. Weights are dropped by the element's place in the whole tensor of weights.

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
        query, key, *_ = shapes
        if query is None or key is None or len(query) < 3 or len(key) != len(query):
            raise RequestError(f"{self.name}: expected (batch, ..., queries, features) twice, got {query} and {key}")
        outer = ["b", "h", *(f"h{axis}" for axis in range(2, len(query) - 2))][: len(query) - 2]
        shared, sizes = self._heads(query, key, outer)
        heads = [*outer[:-1], shared]
        mask = "[]"
        if len(shapes) > 3 and shapes[3] is not None:
            mask = f"[{' '.join(_mask_axes(shapes[3], query, key, [*heads, 'q', 't!']))}]"
        keys = " ".join(outer)
        queries = " ".join(heads)
        text = f"{queries} q d!, {keys} t! d!, {keys} t! e, {mask} -> {queries} q e"
        return Rule.parse(text, sizes=sizes)

    def _heads(self, query: Shape, key: Shape, outer: list[str]) -> tuple[str, dict[str, int]]:
        """The queries' heads as the rule writes them, and the extents that nothing else gives."""
        if not self.enable_gqa or query[-3] == key[-3]:
            return outer[-1], {}
        if query[-3] % key[-3]:
            raise RequestError(
                f"{self.name}: expected heads of queries in multiples of the {key[-3]} heads of keys, got {query[-3]}"
            )
        return f"({outer[-1]} r!)", {"r": query[-3] // key[-3]}

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        mask = dtypes[3:]
        return (float_dtype((*dtypes[:3], *(dtype for dtype in mask if dtype != "bool")), where),)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: two products, computed again in backward, with four more."""
        points = tile.result_rects[0].volume // tile.extent("e") * tile.extent("t")
        forward = 2 * points * (tile.extent("d") + tile.extent("e"))
        return Cost(forward, 3 * forward)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        import torch
        from torch.nn import functional as F

        query, key, value, mask = operands
        if query is None or key is None or value is None:
            raise TypeError(f"{self.name}: forward needs queries, keys and values")
        if self.is_causal:
            first, last = context.tile.range("q")
            places = torch.arange(first, last).unsqueeze(1)
            seen = places >= torch.arange(key.shape[-2])
            mask = seen if mask is None else _both(mask, seen)
        if not self.dropout_p or not context.training:
            grouped = self.enable_gqa and query.shape[-3] != key.shape[-3]
            return F.scaled_dot_product_attention(query, key, value, mask, scale=self.scale, enable_gqa=grouped)
        repeats = query.shape[-3] // key.shape[-3]
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
        scores = query @ key.transpose(-2, -1) * (1 / sqrt(query.shape[-1]) if self.scale is None else self.scale)
        if mask is not None:
            scores = scores.masked_fill(~mask, -inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1)
        return weights * self._kept(context, weights) @ value

    def _kept(self, context: TileContext, weights: Tensor) -> Tensor:
        """What dropout multiplies the tile's weights by."""
        from maniple.operators.kernels.dropout import drawn_factors
        from maniple.regions.rectangle import Rect

        if context.stream is None:
            raise TypeError(f"{self.name}: needs a random stream")
        rect, whole = context.tile.result_rects[0], context.whole_result(0)
        keys = weights.shape[-1]
        part = Rect((*rect.lo[:-1], 0), (*rect.hi[:-1], keys))
        return drawn_factors(context.stream, self.dropout_p, (*whole[:-1], keys), part, weights.dtype)


def _mask_axes(mask: Shape, query: Shape, key: Shape, full: list[str]) -> list[str]:
    """A mask's dimensions as the rule writes them: those of the scores, from the last, or 1.

    Raises:
        RequestError: It does not broadcast to the scores.
    """
    scores = (*query[:-1], key[-2])
    if len(mask) > len(scores) or any(
        extent not in {1, wanted} for extent, wanted in zip(reversed(mask), reversed(scores), strict=False)
    ):
        raise RequestError(f"scaled_dot_product_attention: expected a mask for scores of shape {scores}, got {mask}")
    offset = len(scores) - len(mask)
    return [full[offset + axis] if extent == scores[offset + axis] else "1" for axis, extent in enumerate(mask)]


def _both(mask: Tensor, seen: Tensor) -> Tensor:
    """A mask that also leaves out what is not seen."""
    import torch

    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -inf)
