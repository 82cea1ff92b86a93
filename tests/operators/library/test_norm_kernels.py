"""Compiled norms: law 1 for drawn shapes and layouts in float64, float32 as near as torch's; and which way is taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from maniple.operators.library.norms import norm_kernels
from maniple.operators.library.norms.local_batch_norm import LocalBatchNorm
from maniple.operators.library.norms.normalization import BatchNorm, LayerNorm
from maniple.operators.library.norms.rectified_batch_norm import RectifiedBatchNorm, RectifiedNormal
from maniple.operators.library.norms.split_batch_norm import ChannelMean, ChannelMoments, ChannelNormal
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}  # |a - b| <= TOLERANCE * max(1, max|b|)
Norm = LayerNorm | BatchNorm | LocalBatchNorm | RectifiedBatchNorm


class Calls(TorchDispatchMode):
    """The names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def spread(tensor: Tensor) -> Tensor:
    """The same, between other memory."""
    around = torch.full([extent + 2 for extent in tensor.shape], float("nan"), dtype=tensor.dtype)
    return around[tuple(slice(1, 1 + extent) for extent in tensor.shape)].copy_(tensor)


def trained(
    operator: Norm, operands: list[Tensor | None], slope: Tensor, *, between: bool = False, cores: int = 1
) -> tuple[list[Tensor], list[str]]:
    """The result and all gradients of the kernels; and what they called of torch."""
    shapes = tuple(None if each is None else tuple(each.shape) for each in operands)
    bound = operator.rule(shapes).bind(shapes)
    context = TileContext(bound.tiles({})[0], bound.extents(), operator, cores)
    layout = spread if between else (lambda tensor: tensor)
    known = tuple(None if each is None else layout(each) for each in operands)
    results = tuple(layout(slope.new_full(shape, float("nan"))) for shape in bound.result_shapes)
    saved = tuple(layout(slope.new_full(shape, float("nan"))) for shape in bound.saved_shapes)
    forward = operator.kernels().bind_forward(context, ForwardTensors(known, results, saved))
    places = range(len(operands)) if operator.differentiable is None else operator.differentiable
    found = tuple(
        layout(torch.full_like(each, float("nan"))) if place in places and each is not None else None
        for place, each in enumerate(operands)
    )
    slopes = (layout(slope), *[None] * (len(results) - 1))
    reads = operator.backward_reads
    read = tuple(each if place in reads.results else None for place, each in enumerate(results))
    readable = tuple(each if place in reads.operand_places(len(known)) else None for place, each in enumerate(known))
    forward()
    backward = operator.kernels().bind_backward(context, BackwardTensors(slopes, readable, read, saved, found))
    with Calls() as calls:
        forward()
        backward()
    return [results[0], *(each for each in found if each is not None)], calls.names


def by_torch(operator: Norm, operands: list[Tensor | None], slope: Tensor) -> list[Tensor]:
    """The same by autograd, in float64."""
    leaves = [None if each is None else each.double().requires_grad_() for each in operands]
    if isinstance(operator, LayerNorm):
        found = torch.nn.functional.layer_norm(leaves[0], operator.normalized_shape, *leaves[1:], operator.eps)
    else:
        exact = operator.exact if isinstance(operator, LocalBatchNorm) else operator
        x, _, _, *branch, weight, bias = leaves
        norm = exact.norm if isinstance(exact, RectifiedBatchNorm) else exact
        found = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=norm.eps)
        if isinstance(exact, RectifiedBatchNorm):
            found = (found if branch[0] is None else found + branch[0]).relu()
        leaves[1] = leaves[2] = None
    found.backward(slope.double())
    gradients = [leaf.grad for leaf in leaves if leaf is not None]
    return [found.detach(), *(each for each in gradients if each is not None)]


def operands_of(
    operator: Norm, shape: tuple[int, ...], dtype: torch.dtype, *, branch: bool = False
) -> tuple[list[Tensor | None], Tensor]:
    chance = torch.Generator().manual_seed(sum(shape))
    given: list[Tensor | None] = [torch.randn(shape, generator=chance, dtype=dtype) * 2 + 1]
    if not isinstance(operator, LayerNorm):
        given += [torch.zeros(shape[1], dtype=dtype), torch.ones(shape[1], dtype=dtype)]
        if isinstance(operator.exact if isinstance(operator, LocalBatchNorm) else operator, RectifiedBatchNorm):
            given.append(torch.randn(shape, generator=chance, dtype=dtype) if branch else None)
    own = [torch.randn(spec.shape, generator=chance, dtype=dtype) for spec in operator.parameters()]
    count = 3 if isinstance(operator, LayerNorm) else len(given) + 2
    slope = torch.randn(shape, generator=chance, dtype=dtype)
    return [*given, *own, *[None] * (count - len(given) - len(own))], slope


def agree(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return len(found) == len(wanted) and all(
        bool(((a.double() - b).abs() <= TOLERANCE[a.dtype] * max(1.0, float(b.abs().max()))).all())
        for a, b in zip(found, wanted, strict=True)
    )


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4).map(lambda extents: (2, *extents)),
    last=st.integers(1, 2),
    kind=st.sampled_from(["layer", "plain", "without bias", "batch"]),
    traits=st.sets(st.sampled_from(["plain", "local", "rectified", "branch"])),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    between=st.booleans(),
)
def test_norms_train_as_torch_s(
    shape: tuple[int, ...], last: int, kind: str, traits: set[str], dtype: torch.dtype, *, between: bool
) -> None:
    operator: Norm
    if kind == "batch":
        norm = BatchNorm(shape[1], len(shape), 0.1, affine="plain" not in traits)
        operator = exact = RectifiedBatchNorm(norm) if "rectified" in traits else norm
        operator = LocalBatchNorm(exact) if "local" in traits else exact
    else:
        operator = LayerNorm(shape[-last:], len(shape), 0.1, kind != "plain", kind == "layer")
    operands, slope = operands_of(operator, shape, dtype, branch="branch" in traits)
    found, _ = trained(operator, operands, slope, between=between)
    assert agree(found, by_torch(operator, operands, slope))


ALONE = [LayerNorm((6,), 3), BatchNorm(3, 3), RectifiedBatchNorm(BatchNorm(3, 3))]


@pytest.mark.parametrize("operator", [*ALONE, LocalBatchNorm(ALONE[1]), LocalBatchNorm(ALONE[2])])
def test_a_tile_in_rows_makes_no_tensor_and_no_copy(operator: Norm) -> None:
    operands, slope = operands_of(operator, (4, 3, 6), torch.float32)
    assert not trained(operator, operands, slope)[1]
    assert "native_" in " ".join(trained(operator, operands, slope, cores=2)[1])
    assert "copy_" in trained(operator, operands, slope, between=True)[1]


def test_a_row_of_one_value_has_no_slope() -> None:
    operator = LayerNorm((4,), 2)
    operands, slope = operands_of(operator, (3, 4), torch.float64)
    operands[0] = torch.full((3, 4), 7.0, dtype=torch.float64)
    found, _ = trained(operator, operands, slope)
    assert agree(found, by_torch(operator, operands, slope))
    assert operator.kernels() is norm_kernels.LAYER_NORM


@pytest.mark.parametrize("dtype", sorted(TOLERANCE, key=str))
def test_running_statistics_follow_as_torch_s_do(dtype: torch.dtype) -> None:
    operator = BatchNorm(3, 4, 1e-5, 0.2)
    (x, *_, weight, bias), _ = operands_of(operator, (5, 3, 4, 2), dtype)
    before = torch.tensor([0.5, -1.0, 2.0], dtype=dtype), torch.tensor([1.0, 3.0, 0.25], dtype=dtype)
    bound = operator.rule((x.shape, (3,), (3,), (3,), (3,))).bind((x.shape, (3,), (3,), (3,), (3,)))
    context = TileContext(bound.tiles({})[0], bound.extents(), operator, 1)
    results = tuple(torch.full(shape, float("nan"), dtype=dtype) for shape in bound.result_shapes)
    saved = tuple(torch.full(shape, float("nan"), dtype=dtype) for shape in bound.saved_shapes)
    operator.kernels().bind_forward(context, ForwardTensors((x, *before, weight, bias), results, saved))()
    wanted = [each.double() for each in before]
    normal = torch.nn.functional.batch_norm(x.double(), *wanted, weight.double(), bias.double(), True, 0.2, 1e-5)
    deviation = x.double().var((0, 2, 3), unbiased=False).add(1e-5).rsqrt()
    assert agree([*results, *saved], [normal, *wanted, x.double().mean((0, 2, 3)), deviation])


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple),
    part=st.sampled_from(["mean", "moments", "normal", "normal, plain", "rectified", "rectified, plain, alone"]),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    adds=st.booleans(),
)
def test_parts_of_a_batch_norm_are_what_their_torch_forms_are(
    shape: tuple[int, ...], part: str, dtype: torch.dtype, *, adds: bool
) -> None:
    """Compiled on one core, beside torch's calls on two, on the same tile: the second are recorded from ``forward``."""
    chance = torch.Generator().manual_seed(sum(shape))
    channels = shape[1]

    def draw(size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=chance, dtype=dtype)

    x, mean, variance = draw(shape) * 2 + 1, draw((channels,)), draw((channels,)).square()
    ends = [None, None] if "plain" in part else [draw((channels,)), draw((channels,))]
    normal, given = ChannelNormal(len(shape), 0.1), (x, mean, variance, *ends)
    branch = None if "alone" in part else draw(shape)
    operator, operands = {
        "mean": (ChannelMean(len(shape), 40), (x,)),
        "moments": (ChannelMoments(len(shape), 40), (x, mean)),
    }.get(part, (RectifiedNormal(normal), (*given, branch)) if "rectified" in part else (normal, given))
    shapes = tuple(None if each is None else tuple(each.shape) for each in operands)
    bound = operator.rule(shapes).bind(shapes)
    slopes, there = [draw(size) for size in bound.result_shapes], draw(shape)
    found = []
    for cores in (1, 2):
        context = TileContext(bound.tiles({})[0], bound.extents(), operator, cores)
        results = tuple(torch.full(size, float("nan"), dtype=dtype) for size in bound.result_shapes)
        operator.kernels().bind_forward(context, ForwardTensors(operands, results, ()))()
        gradients = [
            torch.full_like(each, float("nan"))
            if each is not None and (operator.differentiable is None or place in operator.differentiable)
            else None
            for place, each in enumerate(operands)
        ]
        found.append(list(results))
        if part == "mean":
            continue
        added = frozenset({0} if adds and part == "moments" else ())
        if added:
            gradients[0] = there.clone()
        read = tuple(each if operator.backward_reads.results else None for each in results)
        tensors = BackwardTensors(tuple(slopes), operands, read, (), tuple(gradients), added)
        operator.kernels().bind_backward(context, tensors)()
        found[-1] += [each for each in gradients if each is not None]
    assert agree(found[0], [each.double() for each in found[1]])


@pytest.mark.parametrize("branch", [False, True])
def test_what_is_no_number_is_let_through_a_rectified_batch_norm(*, branch: bool) -> None:
    """As by torch's ReLU, forward and backward; all of the channel's statistics are none then."""
    operator = RectifiedBatchNorm(BatchNorm(3, 3))
    operands, slope = operands_of(operator, (2, 3, 4), torch.float64, branch=branch)
    (operands[3] if branch else operands[0])[1, 2, 3] = float("nan")  # type: ignore[index]
    found, wanted = trained(operator, operands, slope)[0], by_torch(operator, operands, slope)
    assert all(torch.equal(one.isnan(), other.isnan()) for one, other in zip(found, wanted, strict=True))
    assert found[0].isnan().any()


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    """Statistics of one pass: a row at a time, by distances from its own mean."""
    operator = BatchNorm(3, 3)
    operands, slope = operands_of(operator, (64, 3, 50), torch.float32)
    operands[0] = operands[0] + 1000 + torch.arange(64).view(-1, 1, 1)  # type: ignore[operator]
    found, wanted = trained(operator, operands, slope)[0], by_torch(operator, operands, slope)
    assert float((found[0].double() - wanted[0]).abs().max()) < 2e-4
