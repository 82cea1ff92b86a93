"""Gates of recurrent layers on CUDA: a thread for each element of a state, one launch for what a step computes.

The arithmetic and what is kept are those of ``gate_kernels``. Backward's kernels are given whole sequences and the
number of a step, so that a step costs the host no view. What a product reads may be halves: hidden states, and the
gradients of the sums that enter the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, tanh
from typing import Any

import torch
from torch import Tensor

from maniple.operators.library.dense.gates import Back, Gates
from maniple.runtime.devices import cuda_kernels
from maniple.runtime.devices.cuda_kernels import FORMS, bind_launch, cuda


@lru_cache(maxsize=8)
def lstm_kernel(hidden_dtype: torch.dtype) -> Any:
    """The kernel of a step of an LSTM.

    Args:
        hidden_dtype: of its hidden states.
    """
    store = FORMS[hidden_dtype].store

    def lstm(gates: Any, old: Any, new: Any, squashed: Any, hidden: Any) -> None:
        rows, width = new.shape
        one = gates.dtype.type(1)  # a Python float would make the exponentials double
        for n in range(cuda.grid(1), rows * width, cuda.gridsize(1)):
            row, column = n // width, n % width
            entered = one / (one + exp(-gates[row, column]))
            kept = one / (one + exp(-gates[row, width + column]))
            value = tanh(gates[row, 2 * width + column])
            opened = one / (one + exp(-gates[row, 3 * width + column]))
            cell = kept * old[row, column] + entered * value
            flat = tanh(cell)
            gates[row, column], gates[row, width + column] = entered, kept
            gates[row, 2 * width + column], gates[row, 3 * width + column] = value, opened
            new[row, column], squashed[row, column], hidden[row, column] = cell, flat, store(opened * flat)

    return cuda.jit(lstm)


@lru_cache(maxsize=8)
def gru_kernel(hidden_dtype: torch.dtype) -> Any:
    """The kernel of a step of a GRU.

    Args:
        hidden_dtype: of its hidden states, the one before among them.
    """
    load, store = FORMS[hidden_dtype].load, FORMS[hidden_dtype].store

    def gru(gates: Any, old: Any, hidden: Any) -> None:
        rows, width = old.shape
        one = gates.dtype.type(1)
        for n in range(cuda.grid(1), rows * width, cuda.gridsize(1)):
            row, column = n // width, n % width
            reset = one / (one + exp(-gates[row, width + column]))
            kept = one / (one + exp(-gates[row, 2 * width + column]))
            value = tanh(gates[row, column] + reset * gates[row, 3 * width + column])
            gates[row, column], gates[row, width + column], gates[row, 2 * width + column] = value, reset, kept
            hidden[row, column] = store(value + kept * (load(old[row, column]) - value))

    return cuda.jit(gru)


@lru_cache(maxsize=16)
def lstm_gradients_kernel(found_dtype: torch.dtype, more_dtype: torch.dtype) -> Any:
    """The kernel of a step backward of an LSTM: of step ``at``, behind step ``before``, or behind ``start`` if below 0.

    Args:
        found_dtype: of the gradients of the sums.
        more_dtype: of ``more``, which is added to the gradient of the hidden state if it is said so.
    """
    store, load = FORMS[found_dtype].store, FORMS[more_dtype].load

    def lstm_gradients(
        gates: Any,
        cells: Any,
        squashed: Any,
        start: Any,
        hidden: Any,
        more: Any,
        cell: Any,
        found: Any,
        at: int,
        before: int,
        adds: bool,  # noqa: FBT001  (numba takes arguments by position)
    ) -> None:
        rows, width = start.shape
        one = start.dtype.type(1)
        for n in range(cuda.grid(1), rows * width, cuda.gridsize(1)):
            row, column = n // width, n % width
            entered, kept = gates[at, row, column], gates[at, row, width + column]
            value, opened = gates[at, row, 2 * width + column], gates[at, row, 3 * width + column]
            old = start[row, column] if before < 0 else cells[before, row, column]
            top, flat = hidden[row, column], squashed[at, row, column]
            if adds:
                top += load(more[row, column])
            inner = cell[row, column] + top * opened * (one - flat * flat)
            found[at, row, column] = store(inner * value * entered * (one - entered))
            found[at, row, width + column] = store(inner * old * kept * (one - kept))
            found[at, row, 2 * width + column] = store(inner * entered * (one - value * value))
            found[at, row, 3 * width + column] = store(top * flat * opened * (one - opened))
            cell[row, column] = inner * kept

    return cuda.jit(lstm_gradients)


@lru_cache(maxsize=16)
def gru_gradients_kernel(found_dtype: torch.dtype, more_dtype: torch.dtype) -> Any:
    """The kernel of a step backward of a GRU, as ``lstm_gradients_kernel`` has it of an LSTM.

    Args:
        found_dtype: of the gradients of the sums, and of the hidden states.
        more_dtype: of ``more``.
    """
    form, more_of = FORMS[found_dtype], FORMS[more_dtype].load
    load, store = form.load, form.store

    def gru_gradients(
        gates: Any,
        out: Any,
        start: Any,
        hidden: Any,
        more: Any,
        carried: Any,
        found: Any,
        at: int,
        before: int,
        adds: bool,  # noqa: FBT001
    ) -> None:
        rows, width = start.shape
        one = start.dtype.type(1)
        for n in range(cuda.grid(1), rows * width, cuda.gridsize(1)):
            row, column = n // width, n % width
            value, reset = gates[at, row, column], gates[at, row, width + column]
            kept, given = gates[at, row, 2 * width + column], gates[at, row, 3 * width + column]
            old = start[row, column] if before < 0 else load(out[before, row, column])
            top = hidden[row, column]
            if adds:
                top += more_of(more[row, column])
            inner = top * (one - kept) * (one - value * value)
            found[at, row, column] = store(inner)
            found[at, row, width + column] = store(inner * given * reset * (one - reset))
            found[at, row, 2 * width + column] = store(top * (old - value) * kept * (one - kept))
            found[at, row, 3 * width + column] = store(inner * reset)
            carried[row, column] = top * kept

    return cuda.jit(gru_gradients)


def _step(kernel: Callable[[torch.dtype], Any]) -> Callable[..., Callable[[], None]]:
    """Binds what a step of forward computes, by the kernel for what it writes last: hidden states."""

    def bind(*tensors: Tensor) -> Callable[[], None]:
        arrays = tuple(cuda_kernels.as_numba(tensor) for tensor in tensors)
        return bind_launch(kernel(tensors[-1].dtype), tensors[-1].numel(), arrays, cuda_kernels.current_stream())

    return bind


def _lstm_back(gates: Tensor, cells: Tensor, squashed: Tensor, start: Tensor, cell: Tensor, found: Tensor) -> Back:
    return _back(lstm_gradients_kernel, (gates, cells, squashed, start), (cell, found))


def _gru_back(gates: Tensor, out: Tensor, start: Tensor, before: Tensor, found: Tensor) -> Back:
    return _back(gru_gradients_kernel, (gates, out, start), (before, found))


def _back(
    kernel: Callable[[torch.dtype, torch.dtype], Any], read: tuple[Tensor, ...], written: tuple[Tensor, ...]
) -> Back:
    """What a step of backward computes, of sequences, the first state, and what is carried from step to step."""
    first, last = (tuple(cuda_kernels.as_numba(each) for each in tensors) for tensors in (read, written))
    stream, work = cuda_kernels.current_stream(), read[-1].numel()

    def run(at: int, before: int | None, hidden: Tensor, more: Tensor | None) -> None:
        states = tuple(cuda_kernels.as_numba(each) for each in (hidden, hidden if more is None else more))
        numbers = at, -1 if before is None else before, more is not None
        made = kernel(written[-1].dtype, (hidden if more is None else more).dtype)
        bind_launch(made, work, (*first, *states, *last, *numbers), stream)()

    return run


def _compiles_when_launched(mode: str, like: Tensor) -> None:
    """Nothing to do beforehand."""


GATES = Gates(_step(lstm_kernel), _step(gru_kernel), _lstm_back, _gru_back, _compiles_when_launched)
