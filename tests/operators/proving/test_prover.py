"""The prover: right rules pass, deliberately wrong ones are caught, and splits that are kept from being are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maniple.operators.operator.operator import TileContext
from maniple.operators.proving.prover import Verdict, prove
from maniple.operators.proving.sample import samples
from maniple.operators.proving.user_operator import OperatorFunction, operator
from maniple.operators.rules.window import Halo
from maniple.process.error import RunError


def verdict(function: OperatorFunction, count: int = 4) -> Verdict:
    return prove(function.operator(), samples(function.kind.definition, count))


def labelled(extents: Mapping[str, int], chance: torch.Generator) -> tuple[Tensor, Tensor]:
    table = torch.randn(extents["v"], extents["d"], generator=chance, dtype=torch.float64)
    return torch.randint(extents["v"], (extents["b"], extents["s"]), generator=chance), table


def lookup(indices: Tensor, table: Tensor, tile: TileContext) -> Tensor:
    first, last = tile.tile.range("v")
    inside = (indices >= first) & (indices < last)
    found = table[(indices - first).clamp(0, last - first - 1)]
    return torch.where(inside.unsqueeze(-1), found, 0)


def mean_of(x: Tensor, tile: TileContext) -> Tensor:
    return x.sum(1) / tile.extent("k")


def causal(x: Tensor, tile: TileContext) -> Tensor:
    rows, columns = torch.arange(*tile.tile.range("q")), torch.arange(*tile.tile.range("k"))
    return x * (rows.unsqueeze(1) >= columns)


RIGHT: dict[str, tuple[OperatorFunction, str]] = {
    "project": (operator("b s k, n k -> b s n", name="r1")(lambda x, w: x @ w.T), ""),
    "maximum": (operator("b k -> b", reduce="k:max", detached=(0,), name="r2")(lambda x: x.amax(1)), ""),
    "two results": (operator("b k, k -> b k, b", name="r3")(lambda x, w: (x * w, (x * w).sum(1))), ""),
    "broadcast": (operator("b n, 1 n -> b n", name="r4")(lambda x, row: x * row), ""),
    "gather": (operator("b s, v? d -> b s d", name="r5", examples=labelled)(lookup), ""),
    "mean": (operator("b k -> b", name="r6")(mean_of), ""),
    "causal": (operator("b q k -> b q k", name="r7")(causal), ""),
    "dots": (operator("... -> ...", name="r8")(lambda x: x.sin()), ""),
    "optional": (operator("b k, [k] -> b k", name="r9")(lambda x, y: x if y is None else x + y), ""),
    "window": (
        operator("b c y~ -> b c y", halos={"y": Halo(3, stride=2)}, name="r10")(lambda x: F.avg_pool1d(x, 3, 2)),
        "",
    ),
    "compound": (operator("b c y -> b (c y)", name="r11")(lambda x: x.flatten(1)), ""),
    "kept whole": (operator("b k! -> b k!", name="r12")(lambda x: x.exp()), "k"),
    "kept from folding": (operator("b k! -> b", name="r13")(lambda x: x.sum(1)), "k:sum"),
    "rightly whole": (operator("b k! -> b k!", name="r14")(lambda x: x.softmax(1)), ""),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_rules_pass_and_what_they_keep_whole_is_named(name: str) -> None:
    function, allowed = RIGHT[name]
    found = verdict(function)
    assert found.counterexample is None, str(found.counterexample)
    assert found.splits > 4
    assert " ".join(found.allowed) == allowed


def in_place(x: Tensor) -> Tensor:
    return x.mul_(2)


WRONG: dict[str, tuple[str, Callable[..., object], dict[str, object], str]] = {
    "softmax over a split factor": ("b k -> b k", lambda x: x.softmax(1), {}, "result 0"),
    "mean of parts": ("b k -> b", lambda x: x.mean(1), {}, "result 0"),
    "sum of a nonlinear function": ("b k, n k -> b n", lambda x, w: (x @ w.T).relu(), {}, "result 0"),
    "maximum folded by sum": ("b k -> b", lambda x: x.amax(1), {"detached": (0,)}, "result 0"),
    "sum folded by maximum": ("b k -> b", lambda x: x.sum(1), {"detached": (0,), "reduce": "k:max"}, "result 0"),
    "bias added by every part": ("b k, n k, n -> b n", F.linear, {}, "result 0"),
    "transposed result": ("b k -> k b", lambda x: x, {}, "the rule and the body do not agree"),
    "window too small": (
        "b c y~ -> b c y",
        lambda x: F.avg_pool1d(x, 3, 1, 1),
        {"halos": {"y": Halo(1)}},
        "result 0",
    ),
    "local positions": ("b k -> b k", lambda x: x * torch.arange(x.shape[1]), {}, "result 0"),
    "cumulative sum": ("b k -> b k", lambda x: x.cumsum(1), {}, "result 0"),
    "reversed": ("b k -> b k", lambda x: x.flip(1), {}, "result 0"),
    "rows and columns": ("b k, k n -> b n", lambda x, w: (x @ w) / x.shape[1] ** 0.5, {}, "result 0"),
    "changes its operand": ("b k -> b k", in_place, {}, "changed its operand"),
    "a second result left out": ("b k -> b k, b", lambda x: x, {}, "expected 2 results"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_caught(name: str) -> None:
    text, body, options, message = WRONG[name]
    function = operator(text, name=f"wrong_{list(WRONG).index(name)}", **options)(body)  # type: ignore[arg-type]
    if message != "result 0":
        with pytest.raises(RunError, match=message):
            verdict(function)
        return
    found = verdict(function, 8).counterexample
    assert found is not None
    assert found.what.startswith(message) or found.expected is None
    assert found.degrees
    shown = str(found)
    assert f"rule   {text}" in shown
    assert "operand 0\ntensor(" in shown
