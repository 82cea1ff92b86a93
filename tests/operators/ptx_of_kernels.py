"""Every CUDA kernel compiled to PTX, which needs NVVM and no device; test_cuda_kernels.py runs this file.

python tests/operators/ptx_of_kernels.py      prints a line for each kernel, and ends with 1 where one does not compile
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numba.cuda.api
import numba.cuda.dispatcher
import torch
from numba import cuda as _cuda
from numba import types as t

from maniple.operators.library.dense import gate_cuda_kernels as gates
from maniple.operators.library.losses import cross_entropy_cuda_kernels as cross_entropy
from maniple.operators.library.randomness import draw_cuda_kernels as draw
from maniple.operators.library.randomness import dropout_cuda_kernels as dropout
from maniple.operators.library.windows import pooling_cuda_kernels as pooling
from maniple.operators.training import adam_cuda_kernels as adam
from maniple.operators.training import descent_cuda_kernels as descent
from maniple.runtime.devices.cuda_kernels import FORMS
from maniple.runtime.storage import copy_cuda_kernels as copies

cuda: Any = _cuda
CAPABILITIES = ((8, 0), (9, 0))
KINDS: dict[torch.dtype, Any] = {
    torch.float64: t.float64,
    torch.float32: t.float32,
    torch.float16: t.float16,
    torch.bfloat16: t.int16,
    torch.int64: t.int64,
    torch.int32: t.int32,
}


def array(kind: Any, ndim: int = 1, layout: str = "C") -> Any:
    """The type of an array."""
    return t.Array(kind, ndim, layout)


def of_numbers() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The kernels of operators and updates, with the types of what they are given."""
    i8, f8 = t.int64, t.float64
    for f in (t.float32, t.float64):
        row, rows, picture = array(f), array(f, 2), array(f, 4, "A")
        read = (rows, array(i8), row, i8, f)
        yield f"{f} cross-entropy", cross_entropy._rows, (*read, row, array(f8))
        yield f"{f} its sum", cross_entropy._total, (array(f8), row, row)
        yield f"{f} its gradient", cross_entropy._gradient, (*read, row, row, row, rows)
        yield f"{f} its share", cross_entropy._share, (array(i8), row, i8, row)
        yield f"{f} sgd", descent._plain, (row, row, f, f)
        yield f"{f} sgd with momentum", descent._heavy, (row, row, row, f, f, f)
        yield f"{f} sgd by nesterov", descent._nesterov, (row, row, row, f, f, f)
        yield f"{f} sgd of numbers", descent._descend, (row, row, row, row, i8)
        yield f"{f} its numbers", descent._prepare, (array(f8), array(f8), array(f8), row)
        yield f"{f} adam", adam._adam, (row, row, row, row, row, row)
        yield f"{f} its numbers", adam._prepare, (array(f8), array(f8), array(f8), row, i8)
        clock = array(i8)
        yield f"{f} dropout", dropout._dropout, (row, row, array(t.uint64), i8, clock, t.uint64, t.uint64, f)
        part, parts, steps = array(f, 2, "A"), array(f, 3), (i8, i8, t.boolean)
        yield f"{f} lstm", gates._lstm, (part,) * 5
        yield f"{f} gru", gates._gru, (part,) * 3
        yield f"{f} lstm's gradients", gates._lstm_gradients, (*(parts,) * 3, rows, rows, part, rows, parts, *steps)
        yield f"{f} gru's gradients", gates._gru_gradients, (*(parts,) * 2, rows, rows, part, rows, parts, *steps)
        yield f"{f} max pool", pooling._max_forward, (picture, picture, array(i8, 4, "A"), *(i8,) * 6)
        yield f"{f} its gradient", pooling._max_backward, (picture, array(i8, 4, "A"), picture, *(i8,) * 6)
        yield f"{f} avg pool", pooling._avg_forward, (picture, picture, *(i8,) * 6)
        yield f"{f} its gradient", pooling._avg_backward, (picture, picture, *(i8,) * 6)
    yield "draw", draw._uniforms, (array(f8), array(f8), array(t.uint64), i8, array(i8), t.uint64)


def of_copies() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The runtime's own kernels."""
    for dtype in FORMS:
        parts = t.UniTuple(array(KINDS[dtype]), 4)
        yield f"{dtype} fold", copies.fold_kernel("+", dtype), (array(KINDS[dtype]), parts)
    for op in ("*", "min", "max"):
        parts = t.UniTuple(array(t.int16), 3)
        yield f"fold by {op}", copies.fold_kernel(op, torch.bfloat16), (array(t.int16), parts)
    for kind in (t.int8, t.int16, t.int32, t.int64):
        yield f"move {kind}", copies.move_kernel, (array(t.int64, 2), array(kind), array(kind))


def main() -> int:
    """Compile all of them; gives the exit status."""
    failed = 0
    # numba asks which device a device function is for; what is compiled here is for the capability that it is told.
    for module in (numba.cuda.api, numba.cuda.dispatcher):
        if hasattr(module, "get_current_device"):
            module.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITIES[-1])
    for name, kernel, given in (*of_numbers(), *of_copies()):
        for capability in CAPABILITIES:
            told = f"sm_{capability[0]}{capability[1]} {name}"
            try:
                ptx, _ = cuda.compile_ptx(kernel.py_func, given, cc=capability)
            except Exception:  # noqa: BLE001  (any of them is what is looked for)
                failed += 1
                sys.stdout.write(f"FAILED {told}\n{traceback.format_exc(limit=-3)}\n")
            else:
                sys.stdout.write(f"{len(ptx):7d} {told}\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
