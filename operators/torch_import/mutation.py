"""Mutation: in-place operators of a program, as operators that give a new value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.operators.aten import Overload, Schema, schema

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program, such that an in-place operator changes no value but the one that it is given.

    Where a written tensor has views, or is one, that are used later, torch functionalises the whole program; that
    keeps layers whole as well, but takes as long as the export.
    """
    return program.run_decompositions({}) if _writes_to_views(program.graph) else program


def _writes_to_views(program: Graph) -> bool:
    """Whether an operator writes to a storage of which another tensor is used afterwards."""
    storage: dict[Node, Node] = {}
    place = {node: number for number, node in enumerate(program.nodes)}
    members: dict[Node, list[Node]] = {}
    written: list[tuple[Node, Node]] = []
    for node in program.nodes:
        root = node
        found = _schema(node)
        for argument, value in zip(found.arguments, node.args, strict=False) if found is not None else ():
            if isinstance(value, torch.fx.Node) and argument.alias:
                root = storage[value]
                if argument.written:
                    written.append((node, value))
        if found is None and node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
            root = storage[node.args[0]]  # an element of a list that an operator gave
        storage[node] = root
        members.setdefault(root, []).append(node)
    for writer, target in written:
        for other in members[storage[target]]:
            later = any(place[user] > place[writer] for user in other.users)
            if later and other not in (writer, target) and place[other] < place[writer]:
                return True
    return False


def _schema(node: Node) -> Schema | None:
    """What torch says about a node's operator; None for what is no operator."""
    return schema(node.target) if isinstance(node.target, Overload) else None
