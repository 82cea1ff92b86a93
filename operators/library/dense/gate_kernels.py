"""Gates of recurrent layers: what is computed of one step beside its matrix products.

Forward leaves the gates' values in one tensor, which backward reads and computes nothing of again:

    lstm    i f g o     sigmoid, sigmoid, tanh, sigmoid      c = f c' + i g          h = o tanh(c)
    gru     n r z m     tanh, sigmoid, sigmoid, none         n = tanh(. + r m)       h = n + z (h' - n)

(m is what the state gives to n before r multiplies it.) Backward is one pass by numba for each: all its functions are
of values that are there, so there is no exponential in it. On GPUs forward is one pass too: ``gate_cuda_kernels``.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maniple.operators.library.dense.gates import Back, Gates
from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.host_memory import as_array

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes


def lstm_gates(gates: Tensor, old: Tensor, new: Tensor, squashed: Tensor, hidden: Tensor) -> Callable[[], None]:
    """One step of an LSTM.

    Args:
        gates: (b, 4 h): the sums that enter the gates; their values come there.
        old: (b, h): the cell state before.
        new: (b, h): the cell state.
        squashed: (b, h): its hyperbolic tangent.
        hidden: (b, h): the hidden state; halves, or as the rest.
    """
    width = new.shape[1]
    both, values, opened = gates[:, : 2 * width], gates[:, 2 * width : 3 * width], gates[:, 3 * width :]
    entered, kept = gates[:, :width], gates[:, width : 2 * width]
    mul, tanh = torch.mul, torch.tanh

    def run() -> None:
        both.sigmoid_()
        values.tanh_()
        opened.sigmoid_()
        mul(kept, old, out=new)
        new.addcmul_(entered, values)
        tanh(new, out=squashed)
        mul(opened, squashed, out=hidden)

    return run


def gru_gates(gates: Tensor, old: Tensor, hidden: Tensor) -> Callable[[], None]:
    """One step of a GRU.

    Args:
        gates: (b, 4 h): the sums that enter the gates; their values come there.
        old: (b, h): the hidden state before; halves, or as the rest.
        hidden: (b, h): the hidden state; of the same dtype.
    """
    width = old.shape[1]
    values, both, given = gates[:, :width], gates[:, width : 3 * width], gates[:, 3 * width :]
    reset, kept = gates[:, width : 2 * width], gates[:, 2 * width : 3 * width]
    lerp, narrow = torch.lerp, hidden.dtype != gates.dtype

    def run() -> None:
        both.sigmoid_()
        values.addcmul_(reset, given).tanh_()
        if narrow:
            hidden.copy_(lerp(values, old.to(values.dtype), kept))
        else:
            lerp(values, old, kept, out=hidden)

    return run


@numba.njit(cache=True, nogil=True)
def lstm_gradients(gates: Floats, old: Floats, squashed: Floats, hidden: Floats, cell: Floats, found: Floats) -> None:
    """The gradients of the sums that enter an LSTM's gates.

    Args:
        gates: (b, 4 h): the gates' values.
        old: (b, h): the cell state before.
        squashed: (b, h): the hyperbolic tangent of the cell state.
        hidden: (b, h): the gradient of the hidden state.
        cell: (b, h): the gradient of the cell state from after; that from before comes there.
        found: (b, 4 h): comes to be the gradients.
    """
    one = gates.dtype.type(1)
    rows, width = old.shape
    for row in range(rows):
        for column in range(width):
            entered, kept = gates[row, column], gates[row, width + column]
            value, opened = gates[row, 2 * width + column], gates[row, 3 * width + column]
            top, flat = hidden[row, column], squashed[row, column]
            inner = cell[row, column] + top * opened * (one - flat * flat)
            found[row, column] = inner * value * entered * (one - entered)
            found[row, width + column] = inner * old[row, column] * kept * (one - kept)
            found[row, 2 * width + column] = inner * entered * (one - value * value)
            found[row, 3 * width + column] = top * flat * opened * (one - opened)
            cell[row, column] = inner * kept


@numba.njit(cache=True, nogil=True)
def gru_gradients(gates: Floats, old: Floats, hidden: Floats, found: Floats, before: Floats) -> None:
    """The gradients of the sums that enter a GRU's gates.

    Args:
        gates: (b, 4 h): the gates' values.
        old: (b, h): the hidden state before.
        hidden: (b, h): the gradient of the hidden state.
        found: (b, 4 h): comes to be the gradients.
        before: (b, h): comes to be the part of the earlier state's gradient that no gate lies before.
    """
    one = gates.dtype.type(1)
    rows, width = old.shape
    for row in range(rows):
        for column in range(width):
            value, reset = gates[row, column], gates[row, width + column]
            kept, given = gates[row, 2 * width + column], gates[row, 3 * width + column]
            top = hidden[row, column]
            inner = top * (one - kept) * (one - value * value)
            found[row, column] = inner
            found[row, width + column] = inner * given * reset * (one - reset)
            found[row, 2 * width + column] = top * (old[row, column] - value) * kept * (one - kept)
            found[row, 3 * width + column] = inner * reset
            before[row, column] = top * kept


def _lstm_back(gates: Tensor, cells: Tensor, squashed: Tensor, start: Tensor, cell: Tensor, found: Tensor) -> Back:
    """Backward of an LSTM's steps.

    Args:
        gates: (s, b, 4 h): the gates' values.
        cells: (s, b, h): the cell states.
        squashed: (s, b, h): their hyperbolic tangents.
        start: (b, h): the cell state before the first step.
        cell: (b, h): the gradient of the cell state behind the step that comes next; it becomes that before it.
        found: (s, b, 4 h): comes to be the gradients of the sums that enter the gates; halves, or as the rest.
    """
    known, first = [as_array(each) for each in (gates, cells, squashed, cell)], as_array(start)
    wide = None if found.dtype == gates.dtype else torch.empty_like(gates[0])  # of halves, which numba does not know

    def run(at: int, before: int | None, hidden: Tensor, more: Tensor | None) -> None:
        old = first if before is None else known[1][before]
        if more is not None:
            hidden += more
        written = found[at] if wide is None else wide
        lstm_gradients(known[0][at], old, known[2][at], as_array(hidden), known[3], as_array(written))
        if wide is not None:
            found[at].copy_(wide)

    return run


def _gru_back(gates: Tensor, out: Tensor, start: Tensor, kept: Tensor, found: Tensor) -> Back:
    """Backward of a GRU's steps.

    Args:
        gates: (s, b, 4 h): the gates' values.
        out: (s, b, h): the hidden states; halves, or as the rest.
        start: (b, h): the one before the first step.
        kept: (b, h): comes to be the part of the earlier state's gradient that no gate lies before; it may be where the
            hidden state's gradient is.
        found: (s, b, 4 h): comes to be the gradients of the sums that enter the gates; of the hidden states' dtype.
    """
    known, first = [as_array(each) for each in (gates, kept)], as_array(start)
    wide = None if found.dtype == gates.dtype else torch.empty_like(gates[0])  # of halves, which numba does not know

    def run(at: int, before: int | None, hidden: Tensor, more: Tensor | None) -> None:
        old = first if before is None else as_array(out[before].to(gates.dtype))
        if more is not None:
            hidden += more
        written = found[at] if wide is None else wide
        gru_gradients(known[0][at], old, as_array(hidden), as_array(written), known[1])
        if wide is not None:
            found[at].copy_(wide)

    return run


def _compile(mode: str, like: Tensor) -> None:
    rows = as_array(like.new_zeros(1, 1))
    if mode == "lstm":
        compile_kernel(lstm_gradients, (rows,) * 6)
    else:
        compile_kernel(gru_gradients, (rows,) * 5)


HOST_GATES = Gates(lstm_gates, gru_gates, _lstm_back, _gru_back, _compile)
