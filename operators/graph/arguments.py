"""Arguments: how what a call is given becomes the inputs of a graph, by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard, final

from torch import Tensor

from maniple.operators.graph.nesting import leaves, tensors
from maniple.process.error import RequestError, nearest


@final
@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a graph's step.

    An argument may hold several inputs, in dictionaries, lists, tuples and dataclasses, each of a dotted name. What is
    no tensor was fixed when the module was imported, and a call may leave it out.

    Args:
        graph: What messages call the graph.
        inputs: For every argument, in order, the names of the tensors that it holds.
        fixed: What is no tensor, by dotted name.
        unread: The tensors that nothing reads; a call may leave them out.
        renamed: The arguments that the module calls by the name of one of its parameters or buffers: their names here.
    """

    graph: str
    inputs: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, object] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def by_name(self, args: Sequence[object], kwargs: Mapping[str, object], needed: Sequence[str]) -> dict[str, object]:
        """The inputs that a call gives, those that a program does not need included.

        Args:
            args: By position: all arguments of the module, or those alone that hold a needed tensor. One dictionary
                alone whose keys are names of arguments or inputs is as if each had been given by its name.
            kwargs: By an argument's name, or by an input's.
            needed: The inputs that the program needs.

        Raises:
            RequestError: Too many, an unknown or a missing one, one twice, or what was fixed at the import and is
                another now.
        """
        first = args[0] if len(args) == 1 and not kwargs else None
        if self._is_named(first):
            args, kwargs = (), first
        names = [name for name, held in self.inputs.items() if not set(held).isdisjoint({*needed, *self.unread})]
        full = list(self.inputs)
        if len(full) > len(names) and self._is_full(args, names):
            names = full
        if len(args) > len(names):
            raise RequestError(f"expected at most {len(names)} inputs ({', '.join(names)}), got {len(args)}")
        given = dict(zip(names, args, strict=False))
        found: dict[str, object] = {}
        for name, value in given.items():
            self._take(name, value, found)
        for theirs, value in kwargs.items():
            name = self.renamed.get(theirs, theirs)
            if name in given:
                raise RequestError(f"input {name!r} was given twice, by position and by name")
            self._take(name, value, found)
        for name in needed:
            if name not in found:
                raise RequestError(f"input {name!r} is missing; expected {', '.join(needed)}")
        return found

    def _is_named(self, batch: object) -> TypeGuard[Mapping[str, object]]:
        """Whether a value is a dictionary of this graph's arguments and inputs, and not of what one argument holds."""
        known = {*self.inputs, *self.fixed, *self.renamed}.union(*self.inputs.values())
        return isinstance(batch, Mapping) and bool(batch) and known.issuperset(batch)

    def _is_full(self, args: Sequence[object], names: Sequence[str]) -> bool:
        """Whether positions are those of all arguments: something that is no tensor has a place, or there are more."""
        return bool(self.fixed) and (len(args) > len(names) or any(not tensors("", value) for value in args))

    def _take(self, name: str, value: object, found: dict[str, object]) -> None:
        """Add what one argument holds."""
        known = [path for held in self.inputs.values() for path in held]
        if self.inputs.get(name) == (name,) or name in known:
            self._add(name, value, found)
            return
        if name not in self.inputs and name not in self.fixed:
            raise RequestError(f"graph {self.graph!r} has no input {name!r}{nearest(name, [*self.inputs, *known])}")
        held = self.inputs.get(name, ())
        for path, leaf in leaves(name, value):
            if path in held:
                self._add(path, leaf, found)
            elif path not in self.fixed:
                takes = ", ".join(held) or "nothing"
                raise RequestError(
                    f"argument {name!r} of graph {self.graph!r} takes {takes}; got {path!r}, {_show(leaf)}; give what "
                    "the import was given, or import the module again"
                )
            elif not _same(leaf, self.fixed[path]):
                raise RequestError(
                    f"argument {path!r} of graph {self.graph!r} was {_show(self.fixed[path])} at the import and is "
                    f"part of the graph; got {_show(leaf)}; leave it out, or import the module again with it"
                )

    def _add(self, path: str, value: object, found: dict[str, object]) -> None:
        if path in found:
            raise RequestError(f"input {path!r} was given twice, by position and by name")
        if path not in self.unread:
            found[path] = value


def _show(value: object) -> str:
    """A value as messages show it."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"


def _same(value: object, other: object) -> bool:
    """Whether a value that is no tensor is what it was."""
    return value is other or (type(value) is type(other) and bool(value == other))
