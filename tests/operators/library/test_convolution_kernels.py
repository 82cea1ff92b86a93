"""Convolutions as CUDA has them, over a stand-in for cuDNN: the same tiles as torch's own kernels, written in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d, conv3d

from maniple.operators.library.windows import convolution_cuda_kernels, convolution_kernels
from maniple.operators.library.windows.convolution import Conv1d, Conv2d, Conv3d, Convolution
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.process.torch_internals import allow_tf32_in_convolutions

TOLERANCE = 1e-12  # of float64, relative to the largest
into: list[Tensor] = []


@pytest.fixture(autouse=True)
def cudnn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """cuDNN's convolution into given memory, which takes dense memory alone, by torch's of the host."""

    def convolve(
        x: Tensor,
        weight: Tensor,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        *switches: bool,
        out: Tensor,
    ) -> Tensor:
        assert out.is_contiguous()
        assert len(switches) == 3
        forward = conv2d if x.ndim == 4 else conv3d
        found = forward(x, weight, None, tuple(stride), tuple(padding), tuple(dilation), groups)
        assert found.shape == out.shape
        into.append(out)
        return out.copy_(found)

    into.clear()
    monkeypatch.setattr(convolution_cuda_kernels, "convolution_into", convolve)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    before = torch.backends.cudnn.allow_tf32
    allow_tf32_in_convolutions(False)
    yield
    allow_tf32_in_convolutions(before)


class Case(NamedTuple):
    """A convolution, its input's shape, and how its result's rows and samples are cut."""

    operator: Convolution
    shape: tuple[int, ...]
    cut: dict[str, int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dimensions = draw(st.integers(1, 3))
    few = st.integers(1, 3)
    windows = [tuple(draw(few) for _ in range(dimensions)) for _ in range(2)]
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(dimensions))
    padding = tuple(draw(st.integers(0, 2)) for _ in range(dimensions))
    groups = draw(st.sampled_from((1, 1, 2)))
    stride = (1,) * dimensions if draw(st.booleans()) else windows[1]
    kind: type[Convolution] = (Conv1d, Conv2d, Conv3d)[dimensions - 1]
    operator = kind(2 * draw(few), 2 * draw(few), windows[0], stride, padding, dilation, draw(st.booleans()), groups)
    least = [operator.reach(axis) for axis in range(dimensions)]
    shape = (draw(st.integers(1, 3)), operator.in_channels, *(low + draw(st.integers(0, 4)) for low in least))
    return Case(operator, shape, {"b": draw(st.integers(1, shape[0])), "y": draw(st.integers(1, 2))})


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def computed(kernels: Kernels, case: Case, *, adds: bool = False) -> list[Tensor]:
    """The results and gradients of all tiles."""
    operator = case.operator
    weights = [tuple(spec.shape) for spec in operator.parameters()]
    shapes = (case.shape, *weights, *([] if operator.bias else [None]))
    bound = operator.rule(shapes).bind(shapes)
    cut = {name: parts for name, parts in case.cut.items() if name in bound.extents()}
    cut = {name: min(parts, bound.extents()[name]) for name, parts in cut.items()}
    x, others = drawn(*case.shape), [drawn(*shape) for shape in weights]
    found: list[Tensor] = []
    for tile in bound.tiles(cut):
        context = TileContext(tile, bound.extents(), operator, 1)
        read, grown = tile.operand_rects[0], tile.gradient_rects[0]
        assert read is not None
        assert grown is not None
        there = None if read.is_empty else x[read.slices((0,) * x.ndim)].contiguous()
        operands = (there, *others, *([] if operator.bias else [None]))
        result, slope = (torch.full(tile.result_rects[0].shape, torch.nan, dtype=x.dtype) for _ in range(2))
        slope.copy_(drawn(*slope.shape))
        kernels.bind_forward(context, ForwardTensors(operands, (result,), ()))()
        targets = [torch.ones(grown.shape, dtype=x.dtype), *(torch.ones_like(other) for other in others)]
        every = (*targets, *([] if operator.bias else [None]))
        places = frozenset(range(len(targets))) if adds else frozenset[int]()
        kernels.bind_backward(context, BackwardTensors((slope,), operands, (None,), (), every, places & {1, 2}))()
        alone = torch.full_like(targets[0], torch.nan)
        wanted = (alone, None, None)
        kernels.bind_backward(context, BackwardTensors((slope,), operands, (None,), (), wanted))()
        found += [result, *targets, alone]
    return found


def compare(case: Case, *, adds: bool = False) -> None:
    """Hold the kernels to torch's own."""
    kernels = convolution_cuda_kernels.KERNELS, convolution_kernels.KERNELS
    for ours, theirs in zip(*(computed(each, case, adds=adds) for each in kernels), strict=True):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) <= TOLERANCE * max(1.0, float(theirs.abs().max()))


@settings(deadline=None, max_examples=60)
@given(cases(), st.booleans())
def test_tiles_are_those_of_torchs_kernels(case: Case, adds: bool) -> None:
    compare(case, adds=adds)


def ways(operator: Convolution, *, tf32: bool = False) -> int:
    """How many convolutions of a step of one tile cuDNN writes where they belong."""
    into.clear()
    if tf32:
        allow_tf32_in_convolutions(True)
    compare(Case(operator, (2, operator.in_channels, 7, 7), {}))
    return len(into)


def test_what_cudnn_writes_where_it_belongs() -> None:
    narrow = Conv2d(2, 4, (1, 1))
    assert ways(narrow) == 3  # forward, and the input's gradient with others and alone
    assert ways(narrow, tf32=True) == 1
    assert ways(Conv2d(2, 4, (1, 1), padding=(1, 1))) == 1
    assert ways(Conv2d(2, 4, (1, 1), stride=(2, 1))) == 1
    assert ways(Conv2d(2, 4, (3, 1))) == 1
    assert ways(Conv2d(2, 4, (3, 3), groups=2)) == 0
