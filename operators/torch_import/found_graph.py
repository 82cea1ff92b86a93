"""What an export found: a graph, without the values of the module, as one process can send it to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, cast, final

import msgpack
import torch

from maniple.operators.graph import graph_file
from maniple.operators.graph.graph import Graph


@final
@dataclass(frozen=True, slots=True)
class FoundGraph:
    """The graph of a module, as a graph file has it.

    Args:
        document: The graph.
        held: The names of the module's parameters and buffers that have values.
        constants: The values of the graph's other buffers.
        closed: The constants that the module takes from elsewhere, as messages say it.
        changed: The attributes that forward changes, as messages say it.
    """

    document: dict[str, object]
    held: tuple[str, ...]
    constants: dict[str, torch.Tensor]
    closed: tuple[str, ...]
    changed: tuple[str, ...]

    def graph(self) -> Graph:
        """Make the graph. Wherever the module was exported, its tensors have the same numbers."""
        return graph_file.from_json(self.document, Graph)

    def to_bytes(self) -> bytes:
        """Write it down."""
        values = {
            name: (str(value.dtype).removeprefix("torch."), value.shape, _bytes(value))
            for name, value in self.constants.items()
        }
        return cast("bytes", msgpack.packb((self.document, self.held, values, self.closed, self.changed)))

    @classmethod
    def of_bytes(cls, packed: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        document, held, values, closed, changed = msgpack.unpackb(packed, strict_map_key=False)
        constants = {name: _tensor(*described) for name, described in values.items()}
        return cls(document, tuple(held), constants, tuple(closed), tuple(changed))


def _bytes(value: torch.Tensor) -> bytes:
    found: bytes = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


def _tensor(dtype: str, shape: list[int], data: bytes) -> torch.Tensor:
    kind: Any = getattr(torch, dtype)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)
