"""Long samples: what is wrong only beyond some extent is caught, and what is right at any extent passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maniple.operators.operator.operator import TileContext
from maniple.operators.proving.prover import Verdict, prove
from maniple.operators.proving.sample import LENGTHS, long_samples, samples
from maniple.operators.proving.user_operator import OperatorFunction, operator
from maniple.operators.rules.window import Halo, TransposedHalo
from maniple.process.error import RunError

KERNEL, DILATION = 4, 8
NUMBERS = count()
"""For names: every operator here is one of its own."""


def made(text: str, body: Callable[..., object], **options: object) -> OperatorFunction:
    return operator(text, name=f"long_{next(NUMBERS)}", **options)(body)  # type: ignore[arg-type]


def verdict(function: OperatorFunction, short: int = 1) -> Verdict:
    definition = function.kind.definition
    return prove(function.operator(), samples(definition, short), 0, long_samples(definition))


def above(x: Tensor, tile: TileContext) -> Tensor:
    """The rows that a tile is given, with its zero rows around them."""
    ((below, after),) = tile.tile.padding
    return F.pad(x, (below, after))


def dilated(x: Tensor, tile: TileContext) -> Tensor:
    """The sum of rows r, r-8, r-16, r-24, whatever the window says."""
    rows = tile.tile.extent("s")
    wanted = rows + (KERNEL - 1) * DILATION
    padded = F.pad(x, (max(0, wanted - x.shape[1]), 0))[:, -wanted:]
    return sum((j + 1) * padded[:, j * DILATION : j * DILATION + rows] for j in range(KERNEL))  # type: ignore[return-value]


def back(rows: int) -> Callable[[Tensor, TileContext], Tensor]:
    """The difference of each row and one further back, as far as it is given."""

    def body(x: Tensor, tile: TileContext) -> Tensor:
        own = tile.tile.extent("s")
        padded = F.pad(x, (max(0, own + rows - x.shape[1]), 0))
        return padded[:, padded.shape[1] - own :] - padded[:, padded.shape[1] - own - rows :][:, :own]

    return body


def summed(window: int, after: int = 0) -> Callable[[Tensor, TileContext], Tensor]:
    """The sum of so many rows, where they are given."""

    def body(x: Tensor, tile: TileContext) -> Tensor:
        rows = tile.tile.extent("s")
        short = rows + window - 1 - x.shape[1]
        padded = F.pad(x, (max(0, short - after), after)) if short > 0 else x
        return padded.unfold(1, window, 1).sum(-1)[:, -rows:]

    return body


def masked(x: Tensor, tile: TileContext) -> Tensor:
    rows, columns = torch.arange(*tile.tile.range("q")), torch.arange(*tile.tile.range("k"))
    return x * (rows.unsqueeze(1) >= columns)


def labelled(extents: Mapping[str, int], chance: torch.Generator) -> tuple[Tensor, Tensor]:
    table = torch.randn(extents["v"], extents["d"], generator=chance, dtype=torch.float64)
    return torch.randint(extents["v"], (extents["b"],), generator=chance), table


def lookup(indices: Tensor, table: Tensor, tile: TileContext) -> Tensor:
    first, last = tile.tile.range("v")
    inside = (indices >= first) & (indices < last)
    return torch.where(inside.unsqueeze(-1), table[(indices - first).clamp(0, last - first - 1)], 0)


def causal(kernel: int, dilation: int = 1, padding: int | None = None) -> dict[str, object]:
    rows = dilation * (kernel - 1) if padding is None else padding
    return {"halos": {"s": Halo(kernel, padding=rows, dilation=dilation, after=0)}}


def heads(x: Tensor, tile: TileContext) -> Tensor:
    return x.unflatten(1, (tile.tile.extent("h"), -1)).sum(2)


def positions(x: Tensor, tile: TileContext) -> Tensor:
    return x * torch.arange(*tile.tile.range("c"))


def padded(x: Tensor | None, tile: TileContext) -> Tensor:
    """The rows with zero rows around them; a tile may have only these."""
    if x is None:
        return torch.zeros(tile.tile.result_rects[0].shape, dtype=torch.float64)
    return above(x, tile)


def stretched(x: Tensor, tile: TileContext) -> Tensor:
    whole = F.conv_transpose1d(x, torch.tensor([[[1.0, 3.0]]], dtype=x.dtype), stride=2)
    ((below, after),) = tile.tile.padding
    return F.pad(whole, (-below, -after))


RIGHT = {
    "dilated": made("b s~ -> b s", dilated, **causal(KERNEL, DILATION)),
    "far back": made("b s~ -> b s", back(40), **causal(2, 40)),
    "strided": made(
        "b s~ -> b s",
        lambda x, tile: F.avg_pool1d(above(x, tile), 3, 2),
        halos={"s": Halo(3, stride=2, padding=1)},
    ),
    "window without padding": made("b s~ -> b s", lambda x: F.avg_pool1d(x, 5, 1), halos={"s": Halo(5)}),
    "slice": made("b s~ -> b s", lambda x: x * 2, halos={"s": Halo(1, padding=-2, after=-3)}),
    "pad": made("b s~ -> b s", padded, halos={"s": Halo(1, padding=2)}),
    "two windows": made(
        "b s~, b s~ -> b s",
        lambda x, y: x[:, 2:] + x[:, :-2] * y,
        halos={"s": (Halo(3), Halo(1))},
    ),
    "transposed": made(
        "b 1 s~ -> b 1 s",
        stretched,
        halos={"s": TransposedHalo(2, stride=2)},
    ),
    "linear": made("b k, n k -> b n", lambda x, w: x @ w.T),
    "sum": made("b k -> b", lambda x: x.sum(1)),
    "maximum": made("b k -> b", lambda x: x.amax(1), reduce="k:max", detached=(0,)),
    "mean": made("b k -> b", lambda x, tile: x.sum(1) / tile.extent("k")),
    "two formulas": made("b c -> b c", lambda x: torch.sin(x) if x.shape[1] > 6 else x.sin()),
    "positions": made("b c -> b c", positions),
    "mask": made("b q k -> b q k", masked),
    "gather": made("b, v? d -> b d", lookup, examples=labelled),
    "optional": made("b k, [k] -> b k", lambda x, y: x if y is None else x * y),
    "two results": made("b k -> b k, b", lambda x: (x.exp(), x.sum(1))),
    "flatten": made("b c y -> b (c y)", lambda x: x.flatten(1)),
    "heads": made("b (h d) -> b h", heads, sizes={"h": 2}),
    "rightly whole": made("b k! -> b k!", lambda x: x.softmax(1)),
    "dots": made("... -> ...", lambda x: x.tanh()),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_at_any_extent_passes(name: str) -> None:
    found = verdict(RIGHT[name])
    assert found.counterexample is None, str(found.counterexample)
    free = [set(extents) for factor, extents in found.extents if factor not in RIGHT[name].kind.definition.sizes]
    assert all(max(extents) >= LENGTHS[-1] for extents in free), found.extents


def beyond(extent: int, then: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A body that is another one beyond some extent of dimension 1."""
    return lambda x: then(x) if x.shape[1] > extent else x * 1.0


def rarely(x: Tensor, tile: TileContext) -> Tensor:
    """Reads twelve rows back, which matters only where they are large."""
    rows = tile.tile.extent("s")
    far = F.pad(x, (max(0, rows + 12 - x.shape[1]), 0))[:, : -12 or None][:, -rows:]
    return x[:, -rows:] + (far - 8).relu()


class Counting:
    """Gives something else each time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


WRONG: dict[str, OperatorFunction] = {
    "forgot the dilation": made("b s~ -> b s", dilated, **causal(KERNEL, 1)),
    "half the dilation": made("b s~ -> b s", dilated, **causal(KERNEL, DILATION // 2)),
    "one tap short": made("b s~ -> b s", dilated, **causal(KERNEL - 1, DILATION)),
    "one row short": made("b s~ -> b s", summed(4), **causal(3)),
    "three rows short": made("b s~ -> b s", summed(12), **causal(9)),
    "no halo, forty back": made("b s -> b s", back(40)),
    "no halo, a hundred back": made("b s -> b s", back(100)),
    "matters where it is large": made("b s -> b s", rarely),
    "looks ahead": made("b s~ -> b s", summed(3, after=2), **causal(3)),
    "rolled beyond 7": made("b s -> b s", beyond(7, lambda x: x.roll(7, 1))),
    "cumulative beyond 6": made("b c -> b c", beyond(6, lambda x: x.cumsum(1))),
    "reversed beyond 20": made("b c -> b c", beyond(20, lambda x: x.flip(1))),
    "centred beyond 50": made("b c -> b c", beyond(50, lambda x: x - x.mean(1, keepdim=True))),
    "sorted beyond 100": made("b c -> b c", beyond(100, lambda x: x.sort(1).values)),
    "twice beyond 30": made("b c -> b c", beyond(30, lambda x: x * 2)),
    "softmax below 30": made("b c -> b c", lambda x: x.softmax(1) if 5 < x.shape[1] < 30 else x.exp()),
    "local positions beyond 16": made("b c -> b c", beyond(16, lambda x: x * torch.arange(x.shape[1]))),
    "samples mixed where channels are many": made("b c -> b c", beyond(10, lambda x: x.cumsum(0))),
    "samples mixed where there are many": made("b c -> b c", lambda x: x - x.mean(0) if x.shape[0] > 8 else x * 1.0),
    "one too many in each part": made("b k -> b", lambda x: x.sum(1) + (1.0 if x.shape[1] > 10 else 0.0)),
    "mean of long parts": made("b k -> b", lambda x: x.mean(1) * min(x.shape[1], 6)),
    "maximum folded by sum": made("b k -> b", lambda x: x.amax(1), detached=(0,)),
    "weights reversed beyond 5": made("b s, s -> b s", lambda x, w: x * (w.flip(0) if len(w) > 5 else w)),
    "backward of another": made("b c -> b c", beyond(6, lambda x: x.detach() * 2 - x)),
    "random": made("b c -> b c", lambda x: x + torch.rand_like(x)),
    "keeps something": made("b c -> b c", Counting()),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_beyond_some_extent_is_caught(name: str) -> None:
    found = verdict(WRONG[name]).counterexample
    assert found is not None
    assert "wrong  " in str(found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("forgot the dilation", "operand 0 is given at 2:10 of dimension 1, and read at 0, 1 too"),
        ("no halo, forty back", "of dimension 1, and read at "),
        ("matters where it is large", "of dimension 1, and read at "),
        ("random", "two runs on the same operands differ"),
    ],
)
def test_a_counterexample_says_what_the_body_reads(name: str, said: str) -> None:
    found = verdict(WRONG[name]).counterexample
    assert found is not None
    assert said in found.stray
    assert f"reads  {found.stray}" in str(found)


def test_rows_that_matter_only_where_they_are_large_are_found_by_changing_them() -> None:
    found = verdict(WRONG["matters where it is large"]).counterexample
    assert found is not None
    assert "changed by what the tile is not given" in found.what


def test_a_body_of_another_shape_beyond_some_extent_is_caught() -> None:
    with pytest.raises(RunError, match="the rule and the body do not agree"):
        verdict(made("b c -> b c", lambda x: x[:, :6]))
