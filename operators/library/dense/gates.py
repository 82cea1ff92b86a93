"""Gates: what a recurrent layer computes of a step beside its matrix products, for one kind of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

Back = Callable[[int, int | None, Tensor, Tensor | None], None]
"""Backward of a step: its number, that of the step before it (None: it is the first), the hidden state's gradient (it
may be written over), and what is added to that."""


@final
@dataclass(frozen=True, slots=True)
class Gates:
    """The kernels of gates for one kind of memory.

    Args:
        lstm: binds a step of an LSTM; see ``gate_kernels.lstm_gates``.
        gru: binds a step of a GRU; see ``gate_kernels.gru_gates``.
        lstm_back: binds backward of all steps of an LSTM; see ``gate_kernels``.
        gru_back: binds backward of all steps of a GRU; see ``gate_kernels``.
        compile: compiles what backward of a mode runs, for numbers like a tensor's, before a step does.
    """

    lstm: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Callable[[], None]]
    gru: Callable[[Tensor, Tensor, Tensor], Callable[[], None]]
    lstm_back: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Back]
    gru_back: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Back]
    compile: Callable[[str, Tensor], None]
