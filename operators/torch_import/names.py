"""Names: what parameters, buffers and nodes of an imported module are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.fx import Node


class Names:
    """Names for the nodes of a graph, after the modules that they come from.

    A layer of torch.nn gives its node its own name, e.g. ``"blocks.0.attention.query"``; an operator in another
    module's forward has that module's name and its own, e.g. ``"blocks.0.add"``. A name that is taken gets a counter.

    Args:
        taken: Names of inputs, parameters and buffers.
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def fresh(self, node: Node | None, stem: str) -> str:
        """A free name for what a node of the program does."""
        stack = {} if node is None else node.meta.get("nn_module_stack") or {}
        path, kind = "", ""
        for found, owner in stack.values():
            path, kind = found, owner if isinstance(owner, str) else f"{owner.__module__}.{owner.__qualname__}"
        path = path.removeprefix("module").removeprefix(".")
        word = stem if node is None else _word(node, stem)
        if not path:
            return self.free(word)
        layer = kind.startswith("torch.nn.modules") and not _counts(node)
        return self.free(path if layer else f"{path}.{word}")

    def free(self, name: str) -> str:
        """The name, with the first free counter where it is taken."""
        found, counter = name, 0
        while found in self._taken:
            counter += 1
            found = f"{name}_{counter}"
        self._taken.add(found)
        return found


def _counts(node: Node | None) -> bool:
    """Whether a node is the counter of batches that a normalization keeps beside its statistics."""
    value = None if node is None else node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _word(node: Node, stem: str) -> str:
    """The torch operator's own name, without overload and marks."""
    name = getattr(node.target, "__name__", stem).partition(".")[0]
    return name.strip("_") or stem
