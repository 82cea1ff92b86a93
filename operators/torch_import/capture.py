"""Capture: torch.export of a module, and what is said about a module that cannot be exported."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maniple.operators.torch_import.forward_state import check_second_call
from maniple.operators.torch_import.hooks import users_frames
from maniple.operators.torch_import.import_request import Step
from maniple.process.compilation.numba_internals import global_compiler_lock
from maniple.process.error import RequestError
from maniple.process.torch_internals import masks_without_values, states_of_lstms

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_HERE = Path(__file__).resolve().parent
_TORCH = Path(torch.__file__).resolve().parent


def capture(step: Step, examples: tuple[Tensor, ...]) -> ExportedProgram:
    """The step as a program of torch operators, before autograd decomposes them.

    torch.export runs the module's Python once, on tensors without values (`strict=False`), and writes down the
    operators that it calls. Layers stay one operator each.

    Raises:
        RequestError: The module's Python asks for values that are not there, changes gradients, computes something
            else when it is called again, or fails; names the line, or the attribute.
    """
    with exporting():
        try:
            program = torch.export.export(step, examples, strict=False)
            if step.request.changed:
                check_second_call(step, examples)
        except RequestError:
            raise
        except Exception as error:  # whatever the module's own Python raises
            raise _refusal(step.request.name, error) from error
        return program


@contextmanager
def exporting() -> Iterator[None]:
    """A stretch in which torch exports a program, or writes one anew.

    Meanwhile torch replaces ``min`` and ``max`` of the whole process by its own. A kernel that another thread compiled
    beside it would find those and be refused: so the export holds the compiler's lock. Masks of torch's Transformer
    have no values then, and the states of an LSTM the shapes that the layer gives.
    """
    with global_compiler_lock, masks_without_values(), states_of_lstms(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own future, not about the module
        yield


def _refusal(name: str, error: Exception) -> RequestError:
    """The refusal of a module that cannot be exported."""
    line = next((text for text in str(error).splitlines() if text.strip()), type(error).__name__)
    place = "".join(
        f" at {frame.filename}:{frame.lineno}: {(frame.line or '').strip()!r}"
        for frame in users_frames(traceback.extract_tb(error.__traceback__))[-1:]
    )
    return RequestError(
        f"from_torch: {name} cannot be imported{place}: {line.strip()}; two ways out: write the line with tensor "
        "operators (torch.where for a branch on values, a fixed number of turns for a loop), or compute it before the "
        "step and pass the result as an input"
    )


def source(node: Node) -> str:
    """File and line of the user's code that an operator comes from."""
    place = ""
    for text in str(node.meta.get("stack_trace") or "").splitlines():
        words = text.strip()
        if words.startswith('File "') and ", line " in words:
            path, _, rest = words[6:].partition('", line ')
            if not Path(path).resolve().is_relative_to(_TORCH) and Path(path).resolve().parent != _HERE:
                place = f"{path}:{rest.split(',')[0]}"
    return place or "<unknown>"
