"""Constants: tensors that a module's forward takes from anywhere but its arguments, parameters and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from maniple.operators.operator.aten_overload import Overload, schema
from maniple.operators.torch_import.capture import source
from maniple.operators.torch_import.closure import attributes
from maniple.operators.torch_import.exported_call import Known
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from maniple.operators.torch_import.import_request import Request


@final
class Constants:
    """The constants of an exported program, checked one by one.

    | forward reads | it is |
    |---|---|
    | `torch.tensor([1.0, 2.0])` | a number in the code |
    | `self.scale`, a plain attribute; a global tensor; a default value | closed over: told by name |
    | one of these that is written to | refused |

    Args:
        request: What is imported.
        program: Of its step.
        closed: What is closed over, as messages say it.
    """

    def __init__(self, request: Request, program: ExportedProgram) -> None:
        self._request = request
        self._program = program
        self._attributes = list(attributes(request.module))
        self.closed: list[str] = []

    def values_of(self, node: Node, target: str) -> Known:
        """The values of a constant.

        Args:
            node: Its placeholder.
            target: Its name in the program.

        Raises:
            RequestError: It is no tensor, has no values, or is written to; names it.
        """
        value = self._program.constants[target]
        if not isinstance(value, torch.Tensor):
            raise RequestError(f"from_torch: {self._request.name} uses {type(value).__name__} '{target}', no tensor")
        readers = [user for user in node.users if "lift_fresh" not in str(user.target)]
        if not readers:
            return Known(value)
        place = source(readers[0])
        name = next((path for path, held in self._attributes if held is value), None)
        shown = f"'{name}', read at {place}" if name else f"a tensor of shape {tuple(value.shape)}, read at {place}"
        where = f"from_torch: {self._request.name}: {shown}, is no input, parameter or buffer"
        if is_written(node) or name in self._request.assigned:
            raise RequestError(f"{where}, yet forward writes to it; make it a buffer with register_buffer")
        if value.is_meta:
            raise RequestError(f"{where}, and is on the meta device, without values; make it a buffer, or an input")
        self.closed.append(f"{shown}; make it a buffer, or an input if it differs from step to step")
        return Known(value.detach().cpu())


def is_written(node: Node) -> bool:
    """Whether an operator writes to a placeholder, or may do so."""
    return any(
        not isinstance(user.target, Overload) or schema(user.target).mutable or "batch_norm" in str(user.target)
        for user in node.users
    )
