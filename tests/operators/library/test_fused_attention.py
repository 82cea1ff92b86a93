"""Attention on GPUs: a kernel forward, a kernel backward; by stand-ins on the host for those that torch has there."""

from __future__ import annotations

import itertools
from math import inf, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from maniple.operators.library.dense import fused_attention
from maniple.operators.library.dense.attention import Attention
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.operators.rules.tile import Tile

TOLERANCE = 1e-10  # of float64: |a - b| <= TOLERANCE * max(1, max|b|)


def scores(q: Tensor, k: Tensor, bias: Tensor | None, along: bool, scale: float) -> Tensor:
    found = q @ k.mT * scale
    found = found if bias is None else found + bias
    return found.masked_fill(~torch.ones_like(found, dtype=torch.bool).tril(), -inf) if along else found


@torch.library.custom_op("maniple_test::efficient", mutates_args=())
def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: bool, p: float, along: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As torch's memory-efficient attention: logarithms of 32 queries at a time, with infinity behind the last."""
    assert keep
    assert not p
    assert bias is None or bias.stride(-2) % 4 == 0
    found = scores(q, k, bias, along, scale)
    lse = F.pad(found.logsumexp(-1), (0, -q.shape[-2] % 32), value=inf)
    result = (found.softmax(-1) @ v).transpose(1, 2).contiguous().transpose(1, 2)
    return result, lse, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


@torch.library.custom_op("maniple_test::efficient_backward", mutates_args=())
def efficient_backward(
    slope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    along: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the logarithms that forward gave: the weights are made of them, and of nothing else."""
    assert lse.shape[-1] % 32 == 0
    assert bool(lse[..., q.shape[-2] :].isposinf().all())
    weights = (scores(q, k, bias, along, scale) - lse[..., : q.shape[-2], None]).exp()
    inner = weights * (slope @ v.mT - (slope * out).sum(-1, keepdim=True)) * scale
    return inner @ k, inner.mT @ q, weights.mT @ slope


class Calls(TorchDispatchMode):
    """The names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tile lay on a GPU that has the memory-efficient kernel alone."""

    def forward(*given: Any, scale: float) -> object:
        return torch.ops.maniple_test.efficient(*given, scale)

    def backward(
        slope: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any, scale: float
    ) -> object:
        out, lse, *_, along = rest
        return torch.ops.maniple_test.efficient_backward(slope, q, k, v, bias, out, lse, along, scale)

    monkeypatch.setattr(fused_attention, "efficient_attention", forward)
    monkeypatch.setattr(fused_attention, "efficient_attention_backward", backward)
    monkeypatch.setattr(fused_attention, "on_gpu", lambda _: True)
    monkeypatch.setattr(fused_attention, "can", lambda name, *_: name == "efficient_attention")
    monkeypatch.setattr(fused_attention, "EFFICIENT_OF", torch.float64)


def part(tensor: Tensor | None, rect: Any) -> Tensor | None:
    return None if tensor is None else tensor[rect.slices((0,) * tensor.ndim)]


def ran(operator: Attention, operands: tuple[Tensor | None, ...], slope: Tensor, splits: dict[str, int]) -> Any:
    """The result, the gradients, and what forward and backward of a part called."""
    shapes = tuple(None if each is None else tuple(each.shape) for each in operands)
    bound = operator.rule(shapes).bind(shapes)
    result = torch.full_like(slope, torch.nan)
    lse = torch.full(bound.saved_shapes[0], torch.nan, dtype=torch.float64)
    gradients = [torch.zeros_like(each) for each in operands[:3] if each is not None]
    ahead, back = Calls(), Calls()

    def given(tile: Tile) -> tuple[Any, ...]:
        pairs = zip(operands, tile.operand_rects, strict=True)
        return (
            tuple(part(each, rect) for each, rect in pairs),
            part(result, tile.result_rects[0]),
            part(lse, tile.saved_rects[0]),
        )

    tiles = [tile for tile in bound.tiles(splits) if not tile.is_empty]
    for tile in tiles:
        read, made, kept = given(tile)
        context = TileContext(tile, bound.extents(), operator)
        run = operator.kernels().bind_forward(context, ForwardTensors(read, (made,), (kept,)))
        with ahead:
            run()
    for tile in tiles:
        read, made, kept = given(tile)
        found = tuple(None if each is None else torch.full_like(each, torch.nan) for each in read[:3])
        tensors = BackwardTensors(
            (part(slope, tile.result_rects[0]),), read, (made,), (kept,), (*found, None)[: len(read)]
        )
        run = operator.kernels().bind_backward(TileContext(tile, bound.extents(), operator), tensors)
        with back:
            run()
        for whole, each, rect in zip(gradients, found, tile.gradient_rects, strict=False):
            if each is not None and rect is not None:
                whole[rect.slices((0,) * whole.ndim)] += each
    return result, gradients, ahead.names, back.names


@pytest.mark.parametrize(("queries", "splits"), [(64, {}), (40, {}), (40, {"b": 2, "h": 2, "q": 3})])
@pytest.mark.parametrize("masked", ["", "causal", "bool", "float"])
def test_backward_is_one_kernel_of_what_forward_kept(queries: int, splits: dict[str, int], masked: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, queries, 8, dtype=torch.float64) for _ in range(3))
    slope = torch.randn(2, 4, queries, 8, dtype=torch.float64)
    mask = None
    if masked == "bool":
        mask = torch.rand(2, 1, queries, queries) > 0.3
        mask[..., 0] = True
    elif masked == "float":
        mask = torch.randn(4, 1, queries, dtype=torch.float64)
    operator = Attention(is_causal=masked == "causal", scale=None if masked else 0.3)
    result, gradients, ahead, back = ran(operator, (q, k, v, mask), slope, splits)
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    wanted = F.scaled_dot_product_attention(*leaves, mask, is_causal=operator.is_causal, scale=operator.scale)
    for found, expected in zip(
        (result, *gradients), (wanted, *torch.autograd.grad(wanted, leaves, slope)), strict=True
    ):
        assert (found - expected).abs().max() <= TOLERANCE * max(1.0, expected.abs().max().item())
    parts = len(list(itertools.product(*(range(count) for count in splits.values()))))
    assert ahead.count("efficient") == back.count("efficient_backward") == parts
    assert "efficient" not in back


def test_groups_of_queries_and_odd_features_are_brought_into_the_kernels_form() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 40, 3, dtype=torch.float64) for heads in (4, 2, 2))
    slope = torch.randn(2, 4, 40, 3, dtype=torch.float64)
    result, gradients, ahead, _ = ran(Attention(enable_gqa=True), (q, k, v, None), slope, {})
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    wanted = F.scaled_dot_product_attention(*leaves, enable_gqa=True)
    for found, expected in zip(
        (result, *gradients), (wanted, *torch.autograd.grad(wanted, leaves, slope)), strict=True
    ):
        assert (found - expected).abs().max() <= TOLERANCE * max(1.0, expected.abs().max().item())
    assert ahead.count("efficient") == 1


def test_backward_without_what_was_kept_is_wrong() -> None:
    """So the test above would see whether backward reads the logarithms."""
    q, k, v = (torch.randn(1, 1, 32, 8, dtype=torch.float64) for _ in range(3))
    result, lse, _, _ = efficient(q, k, v, None, True, 0.0, False, 1 / sqrt(8))
    first, second = (efficient_backward(q, q, k, v, None, result, lse + more, False, 0.3)[0] for more in (0.0, 1.0))
    assert not torch.allclose(first, second)
