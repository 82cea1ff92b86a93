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
import numba.cuda.compiler
import numba.cuda.dispatcher
import torch
from numba import cuda as _cuda
from numba import types as t

from maniple.operators.library.dense import gate_cuda_kernels as gates
from maniple.operators.library.losses import cross_entropy_cuda_kernels as cross_entropy
from maniple.operators.library.randomness import draw_cuda_kernels as draw
from maniple.operators.library.randomness import dropout_cuda_kernels as dropout
from maniple.operators.library.windows import pooling_cuda_kernels as pooling
from maniple.operators.training import adam_kernels, averaging_kernels, descent_kernels
from maniple.operators.training.block_cuda_kernels import rule_kernel
from maniple.operators.training.torch_rule_kernels import RULES
from maniple.runtime.devices.cuda_kernels import FORMS, THREADS
from maniple.runtime.storage import copy_cuda_kernels as copies

cuda: Any = _cuda
CAPABILITIES = ((8, 0), (9, 0))
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
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


def of_operators() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The kernels of operators, with the types of what they are given."""
    i8, f8 = t.int64, t.float64
    for dtype in FLOATS:
        element, number = KINDS[dtype], KINDS[torch.promote_types(dtype, torch.float32)]
        row, rows, shared = array(element), array(element, 2), array(number)
        read = (rows, array(i8), row, i8, number)
        for lanes, smooth in ((1, True), (THREADS, False)) if dtype == torch.float32 else ((64, True),):
            kind, shown = (dtype, dtype, lanes, THREADS), f"{dtype} cross-entropy, {lanes} threads a row"
            forward = (*read, i8, row, array(f8), array(t.uint32), shared, row)
            yield shown, cross_entropy.forward_kernel(*kind, smooth=smooth), forward
            backward = cross_entropy.backward_kernel(*kind, smooth=smooth, wide=lanes > 1)
            yield f"{shown}, its gradient", backward, (*read, i8, row, shared, row, rows)
        yield f"{dtype} its share", cross_entropy.share_kernel(dtype), (array(i8), row, i8, shared)
        given = (row, row, array(t.uint64), i8, array(i8), t.uint64, t.uint64, number)
        for aligned in (True, False) if dtype == torch.float32 else (True,):
            yield f"{dtype} dropout{', aligned' * aligned}", dropout.dropout_kernel(dtype, aligned=aligned), given
        picture, places, window = array(element, 4), array(i8, 4), ((3, 2, 2, 1, 1, 0), 32)
        yield f"{dtype} max pool", pooling.max_forward(dtype, *window), (picture, picture, places)
        yield f"{dtype} its gradient", pooling.max_backward(dtype, *window), (picture, places, picture)
        yield f"{dtype} avg pool", pooling.avg_forward(dtype, *window), (picture, picture)
        yield f"{dtype} its gradient", pooling.avg_backward(dtype, *window), (picture, picture)
    yield "draw", draw._uniforms, (array(f8), array(f8), array(t.uint64), i8, array(i8), t.uint64)


def of_gates() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The kernels of recurrent layers."""
    for f in (t.float32, t.float64):
        part, rows, parts, steps = array(f, 2, "A"), array(f, 2), array(f, 3), (t.int64, t.int64, t.boolean)
        dtype = torch.float32 if f == t.float32 else torch.float64
        for halves in (torch.float16, torch.bfloat16, dtype) if f == t.float32 else (dtype,):
            half, sums = array(KINDS[halves], 2), array(KINDS[halves], 3)
            yield f"{f} lstm of {halves}", gates.lstm_kernel(halves), (*(part,) * 4, half)
            given = (*(parts,) * 3, rows, rows, half, rows, sums, *steps)
            yield f"{f} lstm's gradients of {halves}", gates.lstm_gradients_kernel(halves, halves), given
            yield f"{f} gru of {halves}", gates.gru_kernel(halves), (part, half, half)
            given = (parts, sums, rows, rows, half, rows, sums, *steps)
            yield f"{f} gru's gradients of {halves}", gates.gru_gradients_kernel(halves, halves), given


def of_updates() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The kernels of updates; gradients are of the dtype of the value, or of 16 bits where it has 32."""
    given = array(t.int64, 2), array(t.int32), *(array(t.float64),) * 3
    own = {"sgd": descent_kernels.RULE, "adam": adam_kernels.RULE, "average": averaging_kernels.RULE}
    rules = own | {name: known.rule for name, known in RULES.items()}
    for dtypes in (*((dtype, dtype) for dtype in FLOATS), (torch.float32, torch.bfloat16)):
        for name, rule in rules.items():
            some = {rule.states} if dtypes != (torch.float32,) * 2 else {rule.states[:held] for held in range(4)}
            for names in sorted(some):
                kernel = rule_kernel(rule, *dtypes, rule.places(names), wide=names == rule.states)
                yield f"{dtypes[0]} of {dtypes[1]} {name}, {len(names)} states", kernel, given


def of_copies() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The runtime's own kernels."""
    for dtype in FORMS:
        parts = t.UniTuple(array(KINDS[dtype]), 4)
        yield f"{dtype} fold", copies.fold_kernel("+", dtype, wide=True), (array(KINDS[dtype]), parts)
    for op in ("*", "min", "max"):
        parts = t.UniTuple(array(t.int16), 3)
        yield f"fold by {op}", copies.fold_kernel(op, torch.bfloat16, wide=False), (array(t.int16), parts)
    for kind, wide, packs in (
        (t.int32, True, True),
        (t.int32, True, False),
        (t.int8, False, True),
        (t.int64, False, False),
    ):
        move = copies.move_kernel(packs=packs, wide=wide)
        yield f"move {kind}, packs {packs}, wide {wide}", move, (array(t.int64, 2), t.int64, array(kind), array(kind))


def lowered(kernel: Any, given: tuple[Any, ...]) -> Any:
    """What numba makes of a kernel, from which NVVM makes the PTX of each capability: the former takes the time."""
    flags = {"debug": None, "lineinfo": False, "device": False, "fastmath": False, "opt": None, "lto": False}
    library, _ = numba.cuda.compiler._compile_pyfunc_with_fixup(
        kernel.py_func, given, cc=CAPABILITIES[0], abi="numba", abi_info=None, **flags
    )
    return library


def main() -> int:
    """Compile all of them; gives the exit status."""
    failed = 0
    # numba asks which device a device function is for; what is compiled here is for the capability that it is told.
    for module in (numba.cuda.api, numba.cuda.dispatcher):
        if hasattr(module, "get_current_device"):
            module.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITIES[-1])
    for name, kernel, given in (*of_operators(), *of_gates(), *of_updates(), *of_copies()):
        library: Any = None
        for capability in CAPABILITIES:
            told = f"sm_{capability[0]}{capability[1]} {name}"
            try:
                library = library or lowered(kernel, given)
                ptx = library.get_asm_str(cc=capability)
            except Exception:  # noqa: BLE001  (any of them is what is looked for)
                failed += 1
                sys.stdout.write(f"FAILED {told}\n{traceback.format_exc(limit=-3)}\n")
            else:
                sys.stdout.write(f"{len(ptx):7d} {told}\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
