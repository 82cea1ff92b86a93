"""Every CUDA kernel in numba's simulator, against float64 or bit for bit; test_cuda_kernels.py runs this file.

Blocks have THREADS threads and the simulator runs each as a thread of Python, so there are few, and sizes are small:
one below, one above a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numba import config
from torch.nn import functional as F

import maniple as mp
from maniple.operators.library.dense import gate_cuda_kernels, gate_kernels
from maniple.operators.library.dense.gates import Gates
from maniple.operators.library.losses import loss_cuda_kernels
from maniple.operators.library.losses.cross_entropy_cuda_kernels import (
    bind_cross_entropy,
    bind_cross_entropy_backward,
    bind_share,
)
from maniple.operators.library.randomness import dropout_cuda_kernels
from maniple.operators.library.randomness.draw_cuda_kernels import bind_uniforms
from maniple.operators.library.randomness.draw_kernels import uniforms
from maniple.operators.library.randomness.dropout_cuda_kernels import bind_dropout
from maniple.operators.library.randomness.dropout_kernels import Mask
from maniple.operators.library.randomness.dropout_kernels import bind_dropout as bind_dropout_on_cpu
from maniple.operators.library.windows import pooling_cuda_kernels as on_cuda
from maniple.operators.library.windows import pooling_kernels
from maniple.operators.operator.operator import AbstractOperator, BackwardTensors, ForwardTensors, Kernels
from maniple.operators.operator.random_stream import RandomStream
from maniple.operators.training import averaging_kernels, block_cuda_kernels
from maniple.operators.training.block import Block
from maniple.operators.training.block_cuda_kernels import CHUNK
from maniple.operators.training.descent import SGD
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.runtime.devices import cuda_kernels
from maniple.runtime.devices.cuda_kernels import THREADS
from maniple.runtime.devices.null_device import NullTensor
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.storage import copy_cuda_kernels
from maniple.runtime.storage.copy_kernels import positions
from maniple.testing import local_worlds

Floats = npt.NDArray[np.float64]


def drawn(*shape: int, seed: int = 0, dtype: str = "float64") -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bound(optimizer: AbstractOptimizer, blocks: Sequence[Block], row: torch.Tensor | None = None) -> Callable[[], None]:
    """The update of blocks by one kernel."""
    assert optimizer.rule is not None
    return block_cuda_kernels.bind_rule(optimizer.rule, optimizer, blocks, row, None)


def block_of(start: Floats, optimizer: AbstractOptimizer) -> Block:
    """A weight without a gradient and with an empty state."""
    value = torch.tensor(start)
    return Block(value, torch.zeros_like(value), tuple(torch.zeros_like(value) for _ in optimizer.states))


def test_this_is_the_simulator() -> None:
    assert config.ENABLE_CUDASIM


@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.1), SGD(0.1, weight_decay=0.02), SGD(0.1, 0.9, 0.02), SGD(0.1, 0.9, 0.02, nesterov=True)],
    ids=str,
)
def test_descent(optimizer: SGD) -> None:
    size = THREADS + 3
    start = drawn(size)
    theirs = torch.tensor(start, requires_grad=True)
    reference = torch.optim.SGD(
        [theirs], optimizer.lr, optimizer.momentum, 0, optimizer.weight_decay, optimizer.nesterov
    )
    block = block_of(start, optimizer)
    update = bound(optimizer, [block])
    for step in range(2):
        slope = drawn(size, seed=step + 1)
        block.gradient.copy_(torch.from_numpy(slope))
        theirs.grad = torch.from_numpy(slope)
        reference.step()
        update()
    assert (block.value - theirs.detach()).abs().max() <= 1e-13


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.1, 0.9, 0.02, dampening=0.3),
        SGD(0.1, 0.9, 0.02, nesterov=True, clip_value=0.5),
        mp.optim.Adam(0.1, weight_decay=0.02, amsgrad=True),
        mp.optim.AdamW(0.1, maximize=True, clip_value=0.5),
        mp.optim.by_torch(torch.optim.Adagrad, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2, weight_decay=0.02),
        mp.optim.by_torch(torch.optim.RMSprop, lr=0.1, clip_value=0.5),
        mp.optim.by_torch(torch.optim.RMSprop, lr=0.1, momentum=0.5, centered=True, weight_decay=0.02),
        mp.optim.by_torch(torch.optim.RMSprop, lr=0.1, centered=True, maximize=True),
        mp.optim.by_torch(torch.optim.Adadelta, rho=0.7, weight_decay=0.1),
        mp.optim.by_torch(torch.optim.Adamax, betas=(0.5, 0.7), weight_decay=0.02),
        mp.optim.by_torch(torch.optim.RAdam, lr=0.1, weight_decay=0.1),
        mp.optim.by_torch(torch.optim.RAdam, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
        mp.optim.by_torch(torch.optim.Rprop, lr=0.1, maximize=True),
    ],
    ids=str,
)
def test_numbers_that_enter(optimizer: AbstractOptimizer) -> None:
    """The body on CUDA equals that by torch's operations, whose equality with torch's optimizers another test shows."""
    size = THREADS + 3
    start = drawn(size)
    theirs = torch.tensor(start)
    own = tuple(torch.zeros(size, dtype=torch.float64) for _ in optimizer.states)
    slope, line = torch.zeros(size, dtype=torch.float64), torch.zeros(1 + len(optimizer.numbers), dtype=torch.float64)
    wanted = optimizer.bind_update(theirs, slope, own, 2, line)
    block = block_of(start, optimizer)
    update = bound(optimizer, [block], line)
    for step in range(1, 8):  # as many as RAdam takes before it looks at squares, and one more
        line.copy_(torch.tensor([step, *optimizer.flat(optimizer.arguments())], dtype=torch.float64))
        slope.copy_(torch.from_numpy(drawn(size, seed=step)))
        block.gradient.copy_(slope)
        wanted()
        update()
    assert (block.value - theirs).abs().max() <= 1e-13


OPTIMIZERS = (
    SGD(0.1),
    SGD(0.1, 0.9, 0.02),
    SGD(0.1, 0.9, 0.02, nesterov=True),
    SGD(0.1, 0.9, 0.02, dampening=0.3, clip_value=0.5),
    mp.optim.Adam(0.1, weight_decay=0.02, amsgrad=True),
    mp.optim.AdamW(0.1),
    mp.optim.by_torch(torch.optim.Adagrad, lr=0.1),
    mp.optim.by_torch(torch.optim.RMSprop, lr=0.1, centered=True),
    mp.optim.by_torch(torch.optim.Adadelta),
    mp.optim.by_torch(torch.optim.Adamax),
    mp.optim.by_torch(torch.optim.RAdam, lr=0.1),
    mp.optim.by_torch(torch.optim.Rprop, lr=0.1),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_blocks_of_several_weights_are_updated_in_one_launch(
    optimizer: AbstractOptimizer, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the bits that it has by itself, and is what float64 gives within the precision of its numbers."""
    launched: list[object] = []
    grid = cuda_kernels.Grid.__init__

    def noted(self: cuda_kernels.Grid, kernel: object, *arguments: int) -> None:
        launched.append(kernel)
        grid(self, kernel, *arguments)

    monkeypatch.setattr(cuda_kernels.Grid, "__init__", noted)
    line = torch.tensor([2.0, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
    row = line if optimizer.enters else None

    together, alone, exact = [], [], []
    for seed, size in enumerate((3, CHUNK + THREADS + 1, THREADS)):
        value, gradient, *states = (torch.from_numpy(drawn(size, seed=9 * seed + n)).to(dtype) for n in range(5))
        # The first is of squares, or a mean: with the square of a mean above the mean of squares there is no root.
        states = [state.abs() + 9 * (place == 0) for place, state in enumerate(states)][: len(optimizer.states)]
        block = Block(value, gradient, tuple(states))
        together.append(block)
        alone.append(Block(value.clone(), gradient, tuple(state.clone() for state in states)))
        exact.append(Block(value.double(), gradient.double(), tuple(state.double() for state in states)))
    update = bound(optimizer, together, row)
    assert len(launched) == 1
    update()
    for mine, own, wanted in zip(together, alone, exact, strict=True):
        bound(optimizer, [own], row)()
        assert all(map(torch.equal, mine.tensors, own.tensors))
        optimizer.bind_update(*wanted, 2, row)()
        for found, expected in zip(mine.tensors, wanted.tensors, strict=True):
            assert torch.allclose(
                found.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps
            )


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_averages_of_several_weights_are_one_launch(dtype: torch.dtype) -> None:
    """The first step gives the values themselves, whatever was there; values are only read, and never clipped."""
    averaged = mp.optim.averaged(mp.optim.AdamW(clip_value=0.01), 0.8)
    values = [torch.from_numpy(drawn(size, seed=size)).to(dtype) for size in (3, THREADS + 1)]
    averages = [torch.full_like(value, 7.0) for value in values]
    blocks = [Block(average, value, ()) for average, value in zip(averages, values, strict=True)]
    row = torch.tensor([1.0, *averaged.flat(averaged.arguments())], dtype=torch.float64)
    average = block_cuda_kernels.bind_rule(averaging_kernels.RULE, averaged, blocks, row, None)
    average()
    assert all(map(torch.equal, averages, values))
    row[0], before = 2.0, [value.to(torch.float64, copy=True) for value in values]
    for value in values:
        value.mul_(-2.0)
    given = [value.clone() for value in values]
    average()
    assert all(map(torch.equal, values, given))
    for found, first, then in zip(averages, before, given, strict=True):
        wanted = first + (1 - 0.8) * (then.double() - first)
        assert torch.allclose(found.double(), wanted, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_has_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    """Of 16 bits those of the CPU's float32, rounded; tiles whose groups of four lie aligned, and others."""
    mask, clock = Mask(0xFEDCBA9876543210, 0.3), np.array([-3, 5])
    wide = torch.promote_types(dtype, torch.float32)
    for shape, bounds in (
        ((4, 7, 9), [((0, 4), (2, 3)), ((0, 7), (2, 5)), ((0, 9), (3, 8))]),
        ((3, 16), [((0, 3), (1, 2)), ((0, 16), (4, 12), (5, 13))]),
    ):
        values = torch.from_numpy(drawn(*shape)).to(dtype)
        for ranges in itertools.product(*bounds):
            rect = Rect(tuple(low for low, _ in ranges), tuple(high for _, high in ranges))
            part = values[rect.slices((0,) * len(shape))].contiguous()
            expected = torch.empty(part.shape, dtype=wide)
            bind_dropout_on_cpu(mask, shape, rect, clock, part.to(wide), expected)()
            target = torch.full_like(part, torch.nan)
            bind_dropout(mask, shape, rect, torch.from_numpy(clock), part, target)()
            assert torch.equal(target, expected.to(dtype))


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Of a sum of a few numbers around 1, against float64."""


@pytest.mark.parametrize(
    ("rows", "classes", "smoothing", "ignore", "dtype"),
    [
        (5, 3, 0.0, 1, torch.float64),
        (5, 3, 0.1, -100, torch.float64),
        (5, 4 * THREADS + 2, 0.0, -100, torch.float64),
        (5, 4 * THREADS + 2, 0.1, 1, torch.float64),
        (THREADS + 2, 9, 0.0, 1, torch.float64),  # two blocks, of rows that two threads share
        (5, THREADS + 2, 0.1, 1, torch.float32),
        (5, THREADS + 2, 0.1, 1, torch.float16),
        (5, THREADS + 2, 0.1, 1, torch.bfloat16),
    ],
)
def test_cross_entropy(rows: int, classes: int, smoothing: float, ignore: int, dtype: torch.dtype) -> None:
    part = slice(0, rows - 2)
    drawn_logits = 3 * drawn(rows, classes)
    drawn_logits[1, 0] = -7.0 if smoothing else -np.inf  # a masked logit; smoothed, it would make the loss infinite
    logits = torch.from_numpy(drawn_logits).to(dtype)
    weights = torch.from_numpy(np.abs(drawn(classes, seed=1)) + 0.5).to(dtype)
    labels = torch.from_numpy(np.resize([2, 1, 1, 0, 2], rows))
    theirs = logits.double().clone().requires_grad_()
    each = F.cross_entropy(
        theirs, labels, weights.double(), ignore_index=ignore, reduction="none", label_smoothing=smoothing
    )
    share = 1 / weights.double()[labels[labels != ignore]].sum()
    expected = each[part].sum() * share
    (2.5 * expected).backward()
    given = logits[part], labels[part], torch.zeros(1, dtype=torch.promote_types(dtype, torch.float32)), weights
    bind_share(labels, weights, ignore, given[2])()
    assert abs(given[2] * share.reciprocal() - 1) <= 1e-6
    z, result, target = torch.zeros(rows - 2, dtype=dtype), torch.zeros(1, dtype=dtype), torch.full_like(given[0], 9)
    threads = 2 * THREADS if dtype == torch.float32 else 0
    loss = bind_cross_entropy(*given, ignore, smoothing, z, result, threads=threads)
    for _ in range(2):  # the count of blocks that ended begins anew
        result.zero_()
        loss()
        assert abs(result.double() - expected) <= TOLERANCE[dtype] * max(1.0, float(expected.detach()))
    exact = torch.logsumexp(logits[part].double(), 1).to(dtype)  # else the rounding of z is what is compared
    slope = torch.tensor([2.5], dtype=dtype)
    bind_cross_entropy_backward(*given, ignore, smoothing, exact, slope, target)()
    assert theirs.grad is not None
    assert (target.double() - theirs.grad[part]).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("op", ["+", "*", "min", "max"])
def test_a_fold_has_the_bits_of_torchs_operations(op: str, dtype: torch.dtype) -> None:
    combine = {"+": torch.add, "*": torch.mul, "min": torch.minimum, "max": torch.maximum}[op]
    parts = [(3 * torch.from_numpy(drawn(THREADS + 3, seed=seed))).to(dtype) for seed in range(4)]
    if dtype.is_floating_point:
        parts[2][5] = torch.nan
    target = torch.zeros_like(parts[0])
    fold = copy_cuda_kernels.bind_fold(op, target, parts, 0)
    assert fold is not None
    fold()
    wanted = parts[0]
    for part in parts[1:]:
        wanted = combine(wanted, part)
    assert torch.equal(torch.nan_to_num(target, 77.0), torch.nan_to_num(wanted, 77.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
def test_a_tile_goes_into_a_row_and_back(dtype: torch.dtype) -> None:
    """A strided box, a box of planes, and boxes of a sparse set: the elements in the order of torch's own index."""
    base = (torch.arange(4 * 5 * 160) % 101).reshape(4, 5, 160).to(dtype)
    box = Rect((1, 1, 8), (3, 5, 152))
    sparse = RectSet((Rect((0, 0, 0), (1, 2, 160)), Rect((2, 3, 8), (4, 5, 152))))
    for points in (box, Rect((1, 0, 0), (3, 4, 160)), sparse):
        bounds = points if isinstance(points, Rect) else points.bounds
        view = base[bounds.slices((0, 0, 0))]
        wanted = view[positions(points)] if isinstance(points, RectSet) else view.reshape(-1)
        mover = copy_cuda_kernels.mover_of(view, points)
        assert mover is not None
        assert torch.equal(mover.pack(stream=0), wanted)
        other = torch.full_like(base, 7)
        place = other[bounds.slices((0, 0, 0))]
        there = copy_cuda_kernels.mover_of(place, points)
        assert there is not None
        there.unpack(wanted.clone(), 0)
        expected = torch.full_like(base, 7)
        if isinstance(points, RectSet):
            expected[bounds.slices((0, 0, 0))][positions(points)] = wanted
        else:
            expected[bounds.slices((0, 0, 0))] = view
        assert torch.equal(other, expected)


def test_rows_that_are_too_short_are_left_to_torch() -> None:
    assert copy_cuda_kernels.mover_of(torch.zeros(8, 65)[:, :40], Rect((0, 0), (8, 40))) is None  # begin anywhere
    assert copy_cuda_kernels.mover_of(torch.zeros(8, 64)[:, :4], Rect((0, 0), (8, 4))) is None
    assert copy_cuda_kernels.mover_of(torch.zeros(64, 8).t()[:, 3:], Rect((0, 3), (8, 64))) is None
    assert copy_cuda_kernels.mover_of(torch.zeros(8, 64), Rect((0, 0), (8, 64))) is None  # lies without gaps


def test_draws_have_the_bits_of_the_cpu() -> None:
    shape, rect = (4, 7, 9), Rect((1, 2, 0), (3, 5, 9))
    stream = RandomStream.of("draw", torch.tensor([-3, 5]))
    wanted = uniforms(stream, shape, rect)
    found = [torch.full(rect.shape, torch.nan, dtype=torch.float64) for _ in range(2)]
    bind_uniforms(stream, shape, rect, *found)()
    assert all(map(torch.equal, found, wanted))


def test_a_label_that_is_no_class_gives_no_number() -> None:
    x, y, s, w = torch.zeros(2, 3), torch.tensor([1, 3]), torch.ones(1), torch.ones(3)
    z, result, target = torch.zeros(2), torch.zeros(1), torch.zeros(2, 3)
    bind_cross_entropy(x, y, s, w, -100, 0.0, z, result)()
    bind_cross_entropy_backward(x, y, s, w, -100, 0.0, z, torch.ones(1), target)()
    assert result.isnan()
    assert target.isnan().all(1).tolist() == [False, True]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "out"),
    [((2, 2), (2, 2), (0, 0), (2, 3)), ((3, 2), (1, 2), (1, 0), (5, 3)), ((3, 3), (2, 2), (1, 1), (3, 3))],
)
def test_pooling_is_the_cpus(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], out: tuple[int, int], dtype: torch.dtype
) -> None:
    """Numbers of 16 bits: the CPU's float32, rounded."""
    wide = torch.promote_types(dtype, torch.float32)
    x = torch.from_numpy(drawn(2, 2, 5, 6)).to(dtype)
    x[0, 1, 2, 3] = torch.nan
    gradient = torch.from_numpy(drawn(2, 2, *out, seed=1)).to(dtype)
    tile = SimpleNamespace(
        padding=tuple((before, before) for before in padding), operand_rects=(Rect.of_shape(x.shape),)
    )
    context = SimpleNamespace(operator=SimpleNamespace(name="pool", kernel_size=kernel, stride=stride), tile=tile)
    for variants, count in (
        ((pooling_kernels.MAX_POOL_KERNELS, on_cuda.MAX_POOL_KERNELS), 1),
        ((pooling_kernels.AVG_POOL_KERNELS, on_cuda.AVG_POOL_KERNELS), 0),
    ):
        found = []
        for variant, kind in zip(variants, (wide, dtype), strict=True):
            given, slope = x.to(kind), gradient.to(kind)
            result, saved = torch.full_like(slope, 9), [torch.zeros(gradient.shape, dtype=torch.int64)] * count
            variant.bind_forward(context, ForwardTensors((given,), (result,), tuple(saved)))()  # type: ignore[arg-type]
            back = torch.full_like(given, 9)
            tensors = BackwardTensors((slope,), (given,), (result,), tuple(saved), (back,))
            variant.bind_backward(context, tensors)()  # type: ignore[arg-type]
            found.append((result, back))
        tolerance = 0 if count else torch.finfo(dtype).eps * 8  # of averages: the CPU divides in double
        for on_cpu, on_gpu in zip(*found, strict=True):
            assert torch.allclose(on_cpu.to(dtype), on_gpu, rtol=0, atol=tolerance, equal_nan=True)


def steps_by(gates: Gates, dtype: str) -> list[torch.Tensor]:
    """What a step of each layer writes, of tensors between others, and what two steps backward write."""
    rows, width = 3, THREADS // 2 + 1

    def part(*shape: int, seed: int) -> torch.Tensor:
        return torch.from_numpy(drawn(*shape[:-1], shape[-1] + 1, seed=seed, dtype=dtype))[..., 1:]

    def states(count: int) -> list[torch.Tensor]:
        return [part(rows, width, seed=seed).contiguous() for seed in range(count)]

    def steps(wide: int, seed: int) -> torch.Tensor:
        return part(2, rows, wide * width, seed=seed).tanh().contiguous()

    entered = [part(rows, 4 * width, seed=seed) for seed in (1, 2)]
    lstm, gru = ([part(rows, width, seed=3 + place) for place in range(count)] for count in (4, 2))
    gates.lstm(entered[0], lstm[0], lstm[1], lstm[2], lstm[3])()
    gates.gru(entered[1], gru[0], gru[1])()
    found = [steps(4, 5), steps(4, 6)]
    hidden, start, cell, before = states(4)
    back = gates.lstm_back(steps(4, 7), steps(1, 8), steps(1, 9), start, cell, found[0])
    other = gates.gru_back(steps(4, 10), steps(1, 11), start, before, found[1])
    for at, earlier, more in ((1, 0, part(rows, width, seed=12)), (0, None, None)):
        back(at, earlier, hidden.clone(), more)
        other(at, earlier, hidden.clone(), more)
    return [*entered, *lstm, *gru, *found, cell, before]


def halves_by(gates: Gates, halves: torch.dtype, slope: torch.dtype) -> list[torch.Tensor]:
    """What two steps of an LSTM and of a GRU write whose hidden states and gradients of sums are halves.

    All else is float32.
    """
    rows, width = 3, THREADS // 2 + 1

    def part(*shape: int, seed: int) -> torch.Tensor:
        return torch.from_numpy(drawn(*shape, seed=seed, dtype="float32"))

    entered, old = part(rows, 4 * width, seed=1), part(rows, width, seed=2)
    cell, squashed = torch.zeros_like(old), torch.zeros_like(old)
    hidden = torch.full((rows, width), 7.0, dtype=halves)
    gates.lstm(entered, old, cell, squashed, hidden)()
    known = [part(2, rows, wide * width, seed=3 + wide).tanh() for wide in (4, 1, 1)]
    start, carried = part(rows, width, seed=8), part(rows, width, seed=9)
    found = torch.full((2, rows, 4 * width), 7.0, dtype=halves)
    back = gates.lstm_back(*known, start, carried, found)
    for at, earlier in ((1, 0), (0, None)):
        back(at, earlier, part(rows, width, seed=10), part(rows, width, seed=11).to(slope))
    summed, behind, rest = part(rows, 4 * width, seed=12), torch.empty_like(hidden), torch.zeros_like(old)
    gates.gru(summed, hidden, behind)()
    other = torch.full_like(found, 7.0)
    back = gates.gru_back(known[0], known[1].to(halves), start, rest, other)
    for at, earlier in ((1, 0), (0, None)):
        back(at, earlier, part(rows, width, seed=13), part(rows, width, seed=14).to(slope))
    return [entered, cell, squashed, hidden, carried, found, summed, behind, rest, other]


@pytest.mark.parametrize("slope", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("halves", [torch.float16, torch.bfloat16], ids=str)
def test_gates_of_halves_are_the_cpus_rounded_once(halves: torch.dtype, slope: torch.dtype) -> None:
    wanted, found = (halves_by(gates, halves, slope) for gates in (gate_kernels.HOST_GATES, gate_cuda_kernels.GATES))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        near = torch.finfo(ours.dtype).eps if ours.dtype == halves else 2e-6
        assert torch.allclose(ours.float(), theirs.float(), rtol=near, atol=1e-6)
    assert (found[3] != 7).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_gates_are_the_cpus(dtype: str, tolerance: float) -> None:
    wanted, found = (steps_by(gates, dtype) for gates in (gate_kernels.HOST_GATES, gate_cuda_kernels.GATES))
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=tolerance)


def small() -> mp.Graph:
    """Every operator that has kernels for GPUs of its own."""
    g = mp.Graph("small")
    x, y = g.input("x", (4, 1, 6, 6), "float64"), g.input("y", (4,), dtype="int64")
    h = g.avg_pool2d(g.max_pool2d(x, kernel_size=2), kernel_size=2, stride=1)
    h = g.linear(g.dropout(g.flatten(h), 0.3), 3)
    g.loss(g.cross_entropy(h, y))
    return g


def test_what_lies_on_a_gpu_is_trained_by_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A null device whose tensors say that they are on CUDA, in numba's simulator of CUDA."""
    chosen: set[Kernels] = set()
    variant = AbstractOperator.variant

    def noted(operator: AbstractOperator, tensors: Iterable[torch.Tensor | None]) -> Kernels:
        found = variant(operator, tensors)
        chosen.add(found)
        return found

    together: list[int] = []
    bind = block_cuda_kernels.bind_rule

    def counted(rule: object, optimizer: SGD, blocks: Sequence[Block], *arguments: object) -> object:
        together.append(len(blocks))
        return bind(rule, optimizer, blocks, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(block_cuda_kernels, "bind_rule", counted)
    graph, optimizer = small(), SGD(0.1, 0.9, 0.02)
    batch = {"x": torch.from_numpy(drawn(4, 1, 6, 6)), "y": torch.tensor([2, 0, 1, 2])}
    trained = []
    for device in ("cpu", "null"):
        if device == "null":
            monkeypatch.setattr(AbstractOperator, "variant", noted)
            monkeypatch.setattr(NullTensor, "is_cuda", True)
        (world,) = local_worlds(1, device=device)
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=optimizer, world=world) as trainer:
            losses = [trainer.step(**batch) for _ in range(2)]
            trained.append((losses, trainer.parameters()))
        RankRuntime.of(world).close()
    (expected, weights), (losses, found) = trained
    assert losses == pytest.approx(expected, rel=0, abs=1e-12)
    for name, value in weights.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-12), name
    assert {on_cuda.MAX_POOL_KERNELS, on_cuda.AVG_POOL_KERNELS, loss_cuda_kernels.KERNELS} <= chosen
    assert dropout_cuda_kernels.KERNELS in chosen
    assert together == [2]  # the weight and the bias of the one layer, in one launch


def drawing() -> mp.Graph:
    """Every operator that draws a mask inside of its body, and those whose gates have kernels for GPUs."""
    g = mp.Graph("drawing")
    x, y = g.input("x", (3, 4, 4), "float64"), g.input("y", (3, 4, 2), "float64")
    (h, *_) = g.lstm(x, 4, num_layers=2, dropout=0.4, batch_first=True)
    h, last = g.gru(h, 4, batch_first=True)
    (state,) = g.call(lambda t: t[0].clone(), last)
    state = g.gru_cell(g.lstm_cell(state, (state, state))[0], state)
    (h,) = g.call(lambda t, s: t + s[:, None], h, state)
    h = g.dropout1d(h, 0.3)
    h = g.scaled_dot_product_attention(h, h, h, dropout_p=0.3, is_causal=True)
    g.loss(g.mse_loss(g.linear(h, 2), y))
    return g


def test_masks_inside_of_bodies_are_drawn_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, no tensor of the device becomes an array of the host; kernels in the simulator see them all the same.

    The masks are the CPU's bit for bit; what torch computes of them differs by nothing, for it is the CPU's torch.
    """
    graph = drawing()
    batch = {"x": torch.from_numpy(drawn(3, 4, 4)), "y": torch.from_numpy(drawn(3, 4, 2, seed=1))}
    launches: list[object] = []
    bind, as_numba = dropout_cuda_kernels.bind_dropout, cuda_kernels.as_numba

    def seen(array: object) -> object:
        return as_numba(array.as_subclass(torch.Tensor)) if isinstance(array, torch.Tensor) else array

    def refused(tensor: torch.Tensor) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host first.")

    def noted(mask: Mask, *arguments: object) -> object:
        launches.append(mask)
        return bind(mask, *arguments)

    def trained(device: str) -> tuple[list[float], dict[str, torch.Tensor]]:
        (world,) = local_worlds(1, device=device)
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=SGD(0.1, 0.9), world=world) as trainer:
            found = [trainer.step(**batch) for _ in range(2)], trainer.parameters()
        RankRuntime.of(world).close()
        return found

    expected, weights = trained("cpu")
    monkeypatch.setattr(NullTensor, "is_cuda", True)
    monkeypatch.setattr(NullTensor, "numpy", refused)
    monkeypatch.setattr(cuda_kernels, "as_numba", seen)
    monkeypatch.setattr(dropout_cuda_kernels, "bind_dropout", noted)
    losses, found = trained("null")
    assert {mask.p for mask in launches if isinstance(mask, Mask)} == {0.3, 0.4}
    assert losses == pytest.approx(expected, rel=0, abs=1e-12)
    for name, value in weights.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-12), name
