"""The graph as a table that a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph


def table(graph: Graph) -> str:
    """One line per input and operator: name, operands, rule, result.

    Args:
        graph: Any graph, also one that is being built.
    """
    marks = {tensor: f"output '{name}'" for name, tensor in graph.outputs.items()}
    marks |= {tensor: f"next '{graph.tensors[buffer].name}'" for buffer, tensor in graph.assignments.items()}
    if graph.loss_tensor is not None:
        marks[graph.loss_tensor] = "loss"
    rows = [("operator", "operands", "rule", "result", "")]
    rows += [(t.name, "", "input", f"{t.shape} {t.dtype}", "") for t in graph.inputs]
    for node in graph.nodes:
        operands = ", ".join(graph.tensors[i].name for i in node.operands if i is not None)
        results = [graph.tensors[result] for result in node.results]
        written = ", ".join(f"{result.shape} {result.dtype}" for result in results)
        marked = ", ".join(marks[result] for result in node.results if result in marks)
        rows.append((node.name, operands, graph.bound(node).rule.text, written, marked))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = sum(_volume(tensor.shape) for tensor in graph.parameters)
    return "\n".join([f"graph '{graph.name}': {len(graph.nodes)} operators, {total} parameter elements", *lines])


def _volume(shape: tuple[int, ...]) -> int:
    """The elements of a shape."""
    volume = 1
    for extent in shape:
        volume *= extent
    return volume
