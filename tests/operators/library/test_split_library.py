"""Every operator of the library, split in every legal way into up to two parts, against torch on the whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import maniple as mp
from maniple.operators.library.dense.attention import Attention
from maniple.operators.library.dense.embedding import Embedding
from maniple.operators.library.dense.recurrent import Recurrent, RecurrentCell
from maniple.operators.library.losses.pointwise_loss import NegativeLogLikelihood, PointwiseLoss
from maniple.operators.library.norms.feature_norm import GroupNorm, RMSNorm
from maniple.operators.library.randomness.dropout import Dropout
from maniple.operators.library.randomness.dropout_mask import drawn_factors
from maniple.operators.library.windows.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from maniple.operators.library.windows.window_pooling import AdaptivePool, WindowPool
from maniple.operators.operator.operator import AbstractOperator, BackwardTensors, ForwardTensors, TileContext
from maniple.operators.operator.random_stream import RandomStream
from maniple.operators.operator.recorded_pass import Layouts, does_save, float_places, recorded_pass
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import BoundRule, Tile
from maniple.process.error import RequestError, RunError
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.copy_kernels import torch_dtype

TOLERANCE = 1e-11  # of float64: |a - b| <= TOLERANCE * max(1, max|b|)
FUSED = "_scaled_dot_product_flash_attention_for_cpu"
STREAM = RandomStream.of("it", torch.tensor([3, 4]))
Value = tuple[int, ...] | Tensor | None


def labels(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Case:
    """An operator, its operands (a shape: drawn; a tensor: itself; parameters follow), and torch's function of them."""

    operator: AbstractOperator
    given: tuple[Value, ...]
    reference: Callable[..., Tensor | tuple[Tensor, ...]]

    def operands(self) -> list[Tensor | None]:
        chance = torch.Generator().manual_seed(1)
        values: list[Value] = [*self.given, *(spec.shape for spec in self.operator.parameters())]
        found: list[Tensor | None] = []
        for value in values:
            drawn = isinstance(value, tuple)
            found.append(torch.randn(value, generator=chance, dtype=torch.float64) if drawn else value)  # type: ignore[arg-type]
        rule = self.operator.rule(tuple(None if value is None else tuple(value.shape) for value in found))
        return found + [None] * (len(rule.operands) - len(found))

    def bound(self) -> BoundRule:
        shapes = tuple(None if value is None else tuple(value.shape) for value in self.operands())
        return self.operator.rule(shapes).bind(shapes)


def factors(p: float, *shape: int) -> Tensor:
    return drawn_factors(STREAM, p, shape, Rect.of_shape(shape), torch.float64)


def dropped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
    if mask is not None:  # a query that sees nothing has no weights
        scores = scores.masked_fill(~mask, -torch.inf).masked_fill(~mask.any(-1, keepdim=True), 0)
    weights = scores.softmax(-1) if mask is None else scores.softmax(-1) * mask.any(-1, keepdim=True)
    return (weights * factors(0.4, 2, 2, 3, 4)) @ v


BLIND = torch.arange(4) < torch.tensor([0, 2, 4])[:, None]
"""What three queries see of four keys: the first nothing."""
RULED = torch.tensor([[0.0, -torch.inf, 0.5], [-torch.inf, 1.0, -torch.inf], [0.2, -torch.inf, -torch.inf]]).double()
"""Logarithms of chances, of which some are none."""


def lstm(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return torch.lstm(x, (h, c), weights, True, 2, 0.0, True, True, False)  # type: ignore[arg-type]


def pool(kind: str, dims: int, kernel: int, stride: int, pad: int, dilation: int = 1, **options: object) -> WindowPool:
    return WindowPool(kind, *((value,) * dims for value in (kernel, stride, pad, dilation)), **options)  # type: ignore[arg-type]


def avg(**options: object) -> Callable[[Tensor], Tensor]:
    return lambda x: F.avg_pool2d(x, 3, 2, 1, **options)  # type: ignore[arg-type]


ONES = (1, 1)
PROBABILITIES = torch.rand(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

CASES = {
    "dropout": Case(Dropout(0.4), ((3, 4, 5),), lambda x: x * factors(0.4, 3, 4, 5)),
    "embedding": Case(Embedding(5, 4), (labels(5, 3, 2),), F.embedding),
    "embedding_padding": Case(Embedding(5, 2, 1), (labels(5, 4),), lambda x, w: F.embedding(x, w, 1)),
    "conv1d": Case(Conv1d(2, 3, (3,), (2,), (1,), (1,)), ((2, 2, 7),), lambda *a: F.conv1d(*a, 2, 1)),
    "conv2d_groups": Case(Conv2d(4, 6, (2, 3), groups=2), ((2, 4, 3, 4),), lambda *a: F.conv2d(*a, groups=2)),
    "conv2d_depthwise": Case(
        Conv2d(3, 6, (3, 3), padding=ONES, bias=False, groups=3),
        ((2, 3, 4, 3),),
        lambda *a: F.conv2d(*a, padding=1, groups=3),
    ),
    "conv3d": Case(
        Conv3d(2, 2, (2, 1, 2), (1, 1, 2), (0, 0, 1), (1, 1, 1)),
        ((1, 2, 3, 2, 4),),
        lambda *a: F.conv3d(*a, (1, 1, 2), (0, 0, 1)),
    ),
    "conv_transpose1d": Case(
        ConvTranspose1d(2, 3, (3,), (2,), (1,), (1,), (2,)),
        ((2, 2, 4),),
        lambda *a: F.conv_transpose1d(*a, 2, 1, 1, dilation=2),
    ),
    "conv_transpose2d": Case(
        ConvTranspose2d(2, 2, (3, 2), (2, 3), (1, 0), (0, 0), ONES),
        ((1, 2, 3, 2),),
        lambda *a: F.conv_transpose2d(*a, (2, 3), (1, 0)),
    ),
    "conv_transpose2d_groups": Case(
        ConvTranspose2d(4, 4, (2, 2), (2, 2), (0, 0), (0, 0), ONES, groups=2),
        ((1, 4, 2, 3),),
        lambda *a: F.conv_transpose2d(*a, 2, groups=2),
    ),
    "conv_transpose3d": Case(
        ConvTranspose3d(1, 2, (1, 2, 2), (1, 2, 1), (0, 1, 0), (0, 0, 0), (1, 1, 1), bias=False),
        ((1, 1, 2, 2, 3),),
        lambda *a: F.conv_transpose3d(*a, (1, 2, 1), (0, 1, 0)),
    ),
    "max_pool1d": Case(pool("max", 1, 3, 2, 1), ((2, 2, 7),), lambda x: F.max_pool1d(x, 3, 2, 1)),
    "max_pool2d_dilated": Case(
        pool("max", 2, 2, 2, 1, 2, ceil_mode=True),
        ((2, 1, 6, 5),),
        lambda x: F.max_pool2d(x, 2, 2, 1, 2, ceil_mode=True),
    ),
    "max_pool3d": Case(pool("max", 3, 2, 1, 0), ((1, 1, 3, 3, 3),), lambda x: F.max_pool3d(x, 2, 1)),
    "avg_pool2d_ceil": Case(pool("avg", 2, 3, 2, 1, ceil_mode=True), ((2, 1, 6, 5),), avg(ceil_mode=True)),
    "avg_pool2d_inside": Case(
        pool("avg", 2, 3, 2, 1, count_include_pad=False), ((2, 1, 6, 5),), avg(count_include_pad=False)
    ),
    "avg_pool2d_both": Case(
        pool("avg", 2, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        ((2, 1, 6, 8),),
        avg(ceil_mode=True, count_include_pad=False),
    ),
    "avg_pool2d_divisor": Case(pool("avg", 2, 3, 2, 1, divisor_override=5), ((1, 2, 6, 5),), avg(divisor_override=5)),
    "avg_pool1d": Case(pool("avg", 1, 2, 3, 1), ((2, 2, 7),), lambda x: F.avg_pool1d(x, 2, 3, 1)),
    "avg_pool3d": Case(pool("avg", 3, 2, 2, 0), ((1, 2, 4, 3, 2),), lambda x: F.avg_pool3d(x, 2, 2)),
    "adaptive_max": Case(AdaptivePool("max", (3, 2)), ((2, 2, 7, 5),), lambda x: F.adaptive_max_pool2d(x, (3, 2))),
    "adaptive_avg": Case(AdaptivePool("avg", (3,)), ((2, 2, 7),), lambda x: F.adaptive_avg_pool1d(x, 3)),
    "rms_norm": Case(RMSNorm((4,), 3), ((2, 3, 4),), lambda x, w: F.rms_norm(x, (4,), w)),
    "group_norm": Case(GroupNorm(2, 4, 4), ((2, 4, 3, 2),), lambda x, w, b: F.group_norm(x, 2, w, b)),
    "instance_norm": Case(GroupNorm(4, 4, 3, affine=False), ((2, 4, 5),), lambda x, w, b: F.instance_norm(x)),
    "attention": Case(
        Attention(scale=0.3),
        ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3), labels(2, 3, 5) == 0),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
    ),
    "attention_causal": Case(
        Attention(is_causal=True),
        ((2, 4, 2), (2, 4, 2), (2, 4, 3), (1, 4)),
        lambda q, k, v, m: F.scaled_dot_product_attention(
            q, k, v, m + torch.zeros(4, 4).masked_fill(torch.ones(4, 4).tril() == 0, float("-inf"))
        ),
    ),
    "attention_grouped": Case(
        Attention(enable_gqa=True, is_causal=True),
        ((2, 4, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2), None),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    ),
    "attention_dropped": Case(
        Attention(dropout_p=0.4), ((2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 2), None), dropped_attention
    ),
    "attention_dropped_blind": Case(
        Attention(dropout_p=0.4), ((2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 2), BLIND), dropped_attention
    ),
    "lstm": Case(Recurrent("lstm", 3, 2, 2, bidirectional=True), ((3, 4, 3), (4, 4, 2), (4, 4, 2)), lstm),
    "gru": Case(
        Recurrent("gru", 3, 2, bias=False, batch_first=True),
        ((4, 3, 3), (1, 4, 2)),
        lambda x, h, *w: torch.gru(x, h, w, False, 1, 0.0, True, False, True),
    ),
    "lstm_cell": Case(
        RecurrentCell("lstm", 3, 2), ((4, 3), (4, 2), (4, 2)), lambda x, h, c, *w: torch.lstm_cell(x, (h, c), *w)
    ),
    "gru_cell": Case(RecurrentCell("gru", 3, 2), ((4, 3), (4, 2)), torch.gru_cell),
    "mse": Case(PointwiseLoss("mse"), ((3, 4), (3, 4)), F.mse_loss),
    "mse_none": Case(PointwiseLoss("mse", "none"), ((3, 4), (3, 4)), lambda x, y: F.mse_loss(x, y, reduction="none")),
    "l1_sum": Case(PointwiseLoss("l1", "sum"), ((5,), (5,)), lambda x, y: F.l1_loss(x, y, reduction="sum")),
    "smooth_l1": Case(
        PointwiseLoss("smooth_l1", threshold=0.5), ((3, 4), (3, 4)), lambda x, y: F.smooth_l1_loss(x, y, beta=0.5)
    ),
    "huber": Case(
        PointwiseLoss("huber", threshold=0.5), ((3, 2, 2), (3, 2, 2)), lambda x, y: F.huber_loss(x, y, delta=0.5)
    ),
    "bce": Case(
        PointwiseLoss("bce"),
        (PROBABILITIES, PROBABILITIES.flip(0), (4,)),
        lambda x, y, w, _: F.binary_cross_entropy(x, y, w.detach()),
    ),
    "bce_with_logits": Case(
        PointwiseLoss("bce_with_logits"),
        ((3, 4), PROBABILITIES, (4,), (4,)),
        lambda x, y, w, p: F.binary_cross_entropy_with_logits(x, y, w.detach(), pos_weight=p.detach()),
    ),
    "kl": Case(
        PointwiseLoss("kl", "batchmean", log_target=True),
        ((3, 4), (3, 4)),
        lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True),
    ),
    "nll": Case(
        NegativeLogLikelihood(ignore_index=1),
        ((4, 3, 2), labels(3, 4, 2), labels(3, 4, 2), PROBABILITIES[0, :3]),
        lambda x, y, _, w: F.nll_loss(x, y, w.detach(), ignore_index=1),
    ),
    "nll_sum": Case(
        NegativeLogLikelihood(reduction="sum"),
        ((4, 3), labels(3, 4), None, None),
        lambda x, y, *_: F.nll_loss(x, y, reduction="sum"),
    ),
    "nll_ruled_out": Case(
        NegativeLogLikelihood(reduction="sum"),
        (RULED, torch.tensor([2, 1, 0]), None, None),
        lambda x, y, *_: F.nll_loss(x, y, reduction="sum"),
    ),
}


def cut(whole: Tensor | None, rect: Rect | None) -> Tensor | None:
    """What a body is given of a rect: a strided view of memory that holds no numbers around it."""
    if whole is None or rect is None or rect.is_empty:
        return None
    fill = float("nan") if whole.is_floating_point() else 1
    around = torch.full([extent + 2 for extent in rect.shape], fill, dtype=whole.dtype)
    view = around[tuple(slice(1, 1 + extent) for extent in rect.shape)]
    return view.copy_(whole[rect.slices((0,) * whole.ndim)])


def junk(rect: Rect, dtype: torch.dtype) -> Tensor:
    return torch.full(rect.shape, float("nan") if dtype.is_floating_point else 1, dtype=dtype)


class Split:
    """An operator run by tiles, its results and gradients folded into whole tensors."""

    def __init__(self, case: Case, degrees: dict[str, int]) -> None:
        self.case, self.degrees, self.bound = case, degrees, case.bound()
        self.operands = case.operands()
        self.results = [torch.zeros(shape, dtype=torch.float64) for shape in self.bound.result_shapes]
        self.saved: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
        places = case.operator.differentiable
        self.gradients = [
            torch.zeros_like(value)
            if value is not None and value.is_floating_point() and (places is None or place in places)
            else None
            for place, value in enumerate(self.operands)
        ]

    def run(self, slopes: list[Tensor]) -> None:
        written = [torch.zeros(shape) for shape in self.bound.result_shapes]
        tiles = [tile for tile in self.bound.tiles(self.degrees) if not tile.is_empty]
        for tile in tiles:
            context = TileContext(tile, self.bound.extents(), self.case.operator, stream=STREAM)
            self._forward(context, written)
        for tile in tiles:
            self._backward(TileContext(tile, self.bound.extents(), self.case.operator, stream=STREAM), slopes)
        for place, count in enumerate(written):
            folds = self.bound.folds(place, self.degrees) is not None
            assert folds or bool((count == 1).all()), "an element that nobody writes, or two tiles do"

    def _forward(self, context: TileContext, written: list[Tensor]) -> None:
        tile = context.tile
        parts = tuple(cut(value, rect) for value, rect in zip(self.operands, tile.operand_rects, strict=True))
        found = tuple(junk(rect, torch.float64) for rect in tile.result_rects)
        kinds = [torch_dtype(item.dtype or "float64") for item, _ in self.bound.rule.saved]
        saved = tuple(junk(rect, kind) for kind, rect in zip(kinds, tile.saved_rects, strict=True))
        context.operator.kernels().bind_forward(context, ForwardTensors(parts, found, saved))()
        self.saved[tile.index] = saved
        for whole, count, part, rect in zip(self.results, written, found, tile.result_rects, strict=True):
            whole[rect.slices((0,) * whole.ndim)] += part
            count[rect.slices((0,) * whole.ndim)] += 1

    def _backward(self, context: TileContext, slopes: list[Tensor]) -> None:
        tile, operator = context.tile, context.operator
        read = operator.backward_reads.operand_places(len(self.operands))
        parts = tuple(
            cut(value, rect) if place in read else None
            for place, (value, rect) in enumerate(zip(self.operands, tile.operand_rects, strict=True))
        )
        targets = tuple(
            None if whole is None or rect is None or rect.is_empty else junk(rect, whole.dtype)
            for whole, rect in zip(self.gradients, tile.gradient_rects, strict=True)
        )
        if not any(target is not None for target in targets):
            return
        given = tuple(cut(slope, rect) for slope, rect in zip(slopes, tile.result_rects, strict=True))
        results = tuple(
            cut(value, rect) if place in operator.backward_reads.results else None
            for place, (value, rect) in enumerate(zip(self.results, tile.result_rects, strict=True))
        )
        tensors = BackwardTensors(given, parts, results, self.saved[tile.index], targets)
        operator.kernels().bind_backward(context, tensors)()
        self._add(tile, targets)

    def _add(self, tile: Tile, targets: tuple[Tensor | None, ...]) -> None:
        for whole, rect, target in zip(self.gradients, tile.gradient_rects, targets, strict=True):
            if whole is not None and rect is not None and target is not None:
                whole[rect.slices((0,) * whole.ndim)] += target


def near(found: Tensor, wanted: Tensor) -> bool:
    bound = TOLERANCE * max(1.0, float(wanted.abs().max()) if wanted.numel() else 1.0)
    return found.shape == wanted.shape and bool(((found - wanted).abs() <= bound).all())


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_split_gives_what_torch_gives(name: str) -> None:
    case = CASES[name]
    leaves = [
        value.clone().requires_grad_() if value is not None and value.is_floating_point() else value
        for value in case.operands()
    ]
    found = case.reference(*leaves)
    wanted = [found] if isinstance(found, Tensor) else [*found]
    chance = torch.Generator().manual_seed(3)
    slopes = [torch.randn(value.shape, generator=chance, dtype=torch.float64) for value in wanted]
    torch.autograd.backward(wanted, slopes)
    exchanged = case.operator.exchanges()
    choices = [
        (1, 2) if factor.highest_degree > 1 and factor.name not in exchanged else (1,)
        for factor in case.bound().factors
    ]
    for degrees in itertools.product(*choices):
        split = Split(case, dict(zip((factor.name for factor in case.bound().factors), degrees, strict=True)))
        split.run(slopes)
        for mine, its in zip(split.results, wanted, strict=True):
            assert near(mine, its.detach()), split.degrees
        for gradient, leaf in zip(split.gradients, leaves, strict=True):
            if gradient is not None and leaf is not None:
                assert leaf.grad is not None
                assert near(gradient, leaf.grad), split.degrees


AGAIN = {
    "adaptive_max": {"adaptive_max_pool2d"},  # its places are those of whole planes
    "attention": {"constant_pad_nd", "where", FUSED},  # fewer features of values than of keys
    # The gradient of a mask has no kernel.
    "attention_causal": {"masked_fill", "mul", "bmm", "add", "_safe_softmax"},
    "attention_dropped_blind": {"where", "eq", "all", "masked_fill"},  # of the mask: which queries see nothing
    **{name: {"constant_pad_nd"} for name in ("avg_pool1d", "avg_pool2d_both", "avg_pool2d_ceil")},
    **{name: {"constant_pad_nd"} for name in ("avg_pool2d_divisor", "avg_pool2d_inside")},
    **{name: {"constant_pad_nd"} for name in ("max_pool1d", "max_pool2d_dilated")},
    "kl": {"sub", "exp"},  # of the targets, for both gradients
    "l1_sum": {"sub"},  # of which torch reads the sign
    "rms_norm": {"mul"},  # the normalized operand, as layer norm's own kernel makes it again
    "nll": {"it looks at values"},
    "nll_ruled_out": {"it looks at values"},
    "nll_sum": {"it looks at values"},
}
"""What bodies by torch's functions compute again of forward; of all others nothing."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_backward_computes_again_what_is_written_down_and_no_more(name: str) -> None:
    case, bound = CASES[name], CASES[name].bound()
    if not isinstance(case.operator, TorchOperator):
        return  # a body of its own, that reads what its forward left
    context = TileContext(bound.tiles({})[0], bound.extents(), case.operator, stream=STREAM)
    operands, results = case.operands(), [torch.zeros(shape).double() for shape in bound.result_shapes]
    saving = bool(bound.rule.saved) and does_save(context, operands, results)
    assert saving == bool(bound.rule.saved)
    layouts = Layouts.of(operands, results, float_places(context, operands))
    found = recorded_pass(context, layouts, saving=saving)
    tape = found if isinstance(found, str) else found.backward(case.operator.backward_reads.results)
    assert tape is not None
    again = {tape} if isinstance(tape, str) else {call.split(".")[1] for call in tape.again}
    assert again == AGAIN.get(name, set())


def test_an_evaluation_drops_nothing() -> None:
    case = CASES["dropout"]
    (tile,) = case.bound().tiles({})
    x = case.operands()[0]
    assert x is not None
    found = torch.empty_like(x)
    context = TileContext(tile, case.bound().extents(), case.operator, training=False, stream=STREAM)
    case.operator.kernels().bind_forward(context, ForwardTensors((x,), (found,)))()
    assert torch.equal(found, x)


@pytest.mark.parametrize("number", [5, -1])
@pytest.mark.parametrize("degree", [1, 2])
def test_a_number_that_is_no_row_is_refused_by_every_tile(number: int, degree: int) -> None:
    case = Case(Embedding(5, 4), (torch.tensor([0, number]),), F.embedding)
    with pytest.raises(RunError, match=f"expected row numbers from 0 to 4, got {number}"):
        Split(case, {"v": degree}).run([torch.ones(2, 4, dtype=torch.float64)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dropout(1.5), "dropout.p: expected a probability"),
        (lambda: Embedding(4, 2, 4), "padding_idx: expected a row from 0 to 3, got 4"),
        (lambda: Conv2d(4, 6, (3, 3), groups=4), "conv2d.groups: expected a divisor"),
        (lambda: Conv1d(4, 6, (3, 3), (1,), (0,), (1,)), "conv1d.kernel_size: expected 1 integers"),
        (lambda: ConvTranspose1d(2, 2, (3,), (1,), (0,), (1,), (1,)), "output_padding: expected less than stride"),
        (lambda: pool("avg", 2, 2, 2, 2), "avg_pool.padding: expected at most half"),
        (lambda: Attention(enable_gqa=True).rule(((1, 3, 2, 2), (1, 2, 2, 2), (1, 2, 2, 2))), "multiples of 2 heads"),
        (lambda: Attention().rule(((1, 3, 2), (1, 4, 2), (1, 4, 2), (3, 3))), "expected a mask for scores"),
        (lambda: GroupNorm(3, 4, 3), "group_norm.num_groups: expected a divisor of 4"),
        (lambda: RMSNorm((4,), 2).rule(((2, 3), None)), "rms_norm: expected 2 dimensions that end in"),
        (lambda: Recurrent("rnn", 2, 2), "recurrent.mode: expected lstm or gru"),
        (lambda: Recurrent("gru", 2, 2).rule(((2, 3, 3), None)), "gru: expected a sequence of 3 dimensions, 2 last"),
        (lambda: PointwiseLoss("mse", "batchmean"), "mse.reduction: 'batchmean'"),
        (lambda: NegativeLogLikelihood().rule(((2, 3), (2,), (2,), (2,))), "expected weights of shape"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()


def test_statistics_of_tiles_that_lie_between_others_are_read_as_they_are() -> None:
    """Tiles of one memory share a region's instance, and torch reads a norm's statistics without asking how they lie.

    statistics of 4 x 6, in memory 0     tiles by columns
    aabbcc                               a, c    of memory 0: rows of 2, 6 apart
    aabbcc                               b       of memory 1
    """
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(8)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), norm, torch.nn.Flatten(), torch.nn.Linear(48, 3)).double()
    batch, found = (torch.randn(4, 6, 8, dtype=torch.float64), torch.arange(4) % 3), []
    graph = mp.from_torch(module, batch[:1], loss=F.cross_entropy, targets=batch[1:])
    whole = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    tiles = replace(whole.operator("1"), degrees=(("b", 1), ("s", 3), ("c", 1)), processors=(0, 1, 0), replicas=1)
    plans = [whole, replace(whole, operators=tuple({**dict(whole.operators), "1": tiles}.items()))]
    for plan in plans:
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.5)) as trainer:
            found.append([trainer.step(*batch) for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-12)
