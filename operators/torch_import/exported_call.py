"""Calls: one operator of an exported program, with its arguments by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import torch

from maniple.operators.operator.aten_overload import Overload, Schema, schema
from maniple.operators.operator.builder import Tensor

if TYPE_CHECKING:
    from torch.fx import Node

    from maniple.operators.rules.rule import Shape


@final
@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A tensor whose values the import knows: computed from numbers alone, or a buffer that never changes.

    Args:
        value: On the CPU.
        name: A buffer's own name; of anything else empty.
    """

    value: torch.Tensor
    name: str = ""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One operator with its arguments.

    Args:
        node: Where it stands in the program.
        target: What it calls.
        name: E.g. ``"sum.dim_IntList"``; of an in-place operator, the name of the one that is not.
        arguments: Every argument by the schema's name: ``Tensor``, ``Known``, lists of these, and plain values.
        schema: What torch says about the arguments.
    """

    node: Node
    target: Overload
    name: str
    arguments: dict[str, Any]
    schema: Schema

    @staticmethod
    def of(node: Node, target: Overload, resolve: Callable[[Any], Any]) -> Call:
        """The call of a node.

        Args:
            node: Of the program.
            target: What it calls.
            resolve: Gives what an argument of the node stands for.
        """
        found = schema(target)
        values = dict(zip((argument.name for argument in found.arguments), node.args, strict=False)) | node.kwargs
        arguments = {
            argument.name: resolve(values[argument.name]) if argument.name in values else argument.default
            for argument in found.arguments
        }
        return Call(node, target, plain_name(target), arguments, found)

    @property
    def packet(self) -> str:
        """The operator's name without its overload."""
        return self.name.partition(".")[0]

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]

    @property
    def shape(self) -> Shape:
        """Of the first result."""
        return self.shapes[0]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of every result."""
        return tuple(tuple(value.shape) for value in self._results())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of every result."""
        return tuple(str(value.dtype).removeprefix("torch.") for value in self._results())

    @property
    def many(self) -> bool:
        """Whether the operator gives a tuple or a list."""
        return not isinstance(self.node.meta["val"], torch.Tensor)

    @property
    def dtype(self) -> torch.dtype:
        """Of the first result."""
        return self._results()[0].dtype

    def _results(self) -> list[torch.Tensor]:
        found = self.node.meta["val"]
        return list(found) if self.many else [found]

    def tensors(self) -> list[Tensor | Known]:
        """The tensors among the arguments, in order; those in lists included."""
        found: list[Tensor | Known] = []
        for value in self.arguments.values():
            for item in value if isinstance(value, list | tuple) else (value,):
                found += [item] if isinstance(item, Tensor | Known) else []
        return found


def with_arguments(call: Call, **arguments: Any) -> Call:
    """The call with some of its arguments others."""
    return replace(call, arguments={**call.arguments, **arguments})


def plain_name(target: Overload) -> str:
    """An operator's name and overload; of an in-place operator, of the one that is not."""
    found = schema(target)
    packet, _, overload = found.name.removeprefix("aten::").partition(".")
    if found.mutable and packet.endswith("_") and not packet.endswith("__"):
        packet = packet[:-1]
    return f"{packet}.{overload}" if overload else packet


def spell(call: Call, **other: str) -> tuple[str, list[Tensor | Known]]:
    """The call as ``maniple.operators.library.elementwise.aten`` writes it, and the tensors that are its operands.

    Args:
        call: What to write.
        other: Arguments to write in another way.
    """
    operands: list[Tensor | Known] = []
    positional: list[str] = []
    keywords: list[str] = []
    for argument in call.schema.arguments:
        value = call[argument.name]
        text = other.get(argument.name) or _text(value, operands)
        if argument.name in {"device", "layout", "pin_memory", "memory_format", "out"}:
            continue
        if not argument.keyword_only:
            positional.append(text)
        elif argument.name in other or not _same(value, argument.default):
            keywords.append(f"{argument.name}={text}")
    return f"{call.name}({', '.join([*positional, *keywords])})", operands


def _same(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


def _text(value: object, operands: list[Tensor | Known]) -> str:
    """One argument; appends the tensors that it names."""
    if isinstance(value, Tensor | Known):
        operands.append(value)
        return f"x{len(operands) - 1}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, operands) for item in value)}]"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return repr(value)
