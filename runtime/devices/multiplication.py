"""Multiplication on CUDA: in which arithmetic torch may compute products, which is the process's to say."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import torch

from maniple.process.torch_internals import allow_tf32_in_convolutions

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__: list[str] = []


@final
class Multiplication:
    """TF32 is off while a device is open, but for bodies of a plan that asks for it.

    Numbers of 10 bits would make results depend on how an operator is cut. So would sums of halves in halves, of the
    parts into which torch cuts a product. torch has all but one of these on. The switches are the process's; they are
    as before once the last device is closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before = False, False
        self._halves = True, True
        self._in_tf32 = 0
        self._outside = False, False

    @contextmanager
    def tf32(self) -> Iterator[None]:
        """Let products on CUDA round what they read to TF32, inside; other threads may be inside too."""
        with self._lock:
            self._in_tf32 += 1
            if self._in_tf32 == 1:
                self._outside = _allowed()
                _allow_tf32(convolutions=True, products=True)
        try:
            yield
        finally:
            with self._lock:
                self._in_tf32 -= 1
                if self._in_tf32 == 0:
                    convolutions, products = self._outside
                    _allow_tf32(convolutions=convolutions, products=products)

    def open(self) -> None:
        """Switch it off, if this is the first device."""
        with self._lock:
            self._open += 1
            if self._open == 1:
                products = torch.backends.cuda.matmul
                self._before = _allowed()
                self._halves = (
                    bool(products.allow_bf16_reduced_precision_reduction),
                    bool(products.allow_fp16_reduced_precision_reduction),
                )
                _allow_tf32(convolutions=False, products=False)
                _allow_sums_in_halves(bfloat16=False, float16=False)

    def close(self) -> None:
        """Put it back, if this was the last one."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                convolutions, products = self._before
                _allow_tf32(convolutions=convolutions, products=products)
                bfloat16, float16 = self._halves
                _allow_sums_in_halves(bfloat16=bfloat16, float16=float16)


def _allowed() -> tuple[bool, bool]:
    return bool(torch.backends.cudnn.allow_tf32), bool(torch.backends.cuda.matmul.allow_tf32)


def _allow_tf32(*, convolutions: bool, products: bool) -> None:
    allow_tf32_in_convolutions(convolutions)
    torch.backends.cuda.matmul.allow_tf32 = products


def _allow_sums_in_halves(*, bfloat16: bool, float16: bool) -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = bfloat16
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = float16


MULTIPLICATION = Multiplication()
"""Of this process."""
