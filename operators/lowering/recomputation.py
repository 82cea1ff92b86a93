"""Recomputation: what of forward the backward pass of a graph computes again, operator by operator.

    operator        computed again in backward       why
    gelu            nothing                          torch reads the operand alone
    layer_norm      nothing                          its statistics are saved
    attention       its forward kernel               what torch keeps of it is in no region
    dropout of      everything                       it draws random numbers, and cannot be recorded
    attention

It is found by recording every operator on tensors that have no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.operators.lowering.script import training_script
from maniple.operators.operator.operator import TileContext
from maniple.operators.operator.random_stream import RandomStream
from maniple.operators.operator.recorded_pass import Layouts, does_save, recorded_pass
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.process.torch_internals import memoryless
from maniple.runtime.storage.copy_kernels import torch_dtype

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.launch_form import LaunchForm
    from maniple.regions.rectangle import Rect

__all__: list[str] = []

Again = tuple[str, ...]


def recomputed(graph: Graph, operator: str | None = None) -> dict[str, Again]:
    """Say of every operator whose body torch gives what of its forward a training step computes again, uncut.

    Args:
        graph: the graph; it must have a loss.
        operator: of this one alone; None: of all.

    Returns:
        By operator the names of torch's operators that its backward calls again; where its pass cannot be recorded one
        entry that says why all of it is.
    """
    script = training_script(graph)
    found: dict[str, Again] = {}
    with memoryless():
        for node in script.nodes:
            if isinstance(node.operator, TorchOperator) and operator in {None, node.name}:
                launches = list(script.backward.of(node))
                again = [name for launch in launches for name in _again(graph, launch)]
                if launches:
                    found[node.name] = tuple(again)
    return found


def _again(graph: Graph, launch: LaunchForm) -> Again:
    """What one launch of backward computes again."""
    node, bound = launch.node, graph.bound(launch.node)
    (tile,) = bound.tiles({})
    stream = RandomStream(0, torch.zeros(2, dtype=torch.int64))
    context = TileContext(tile, bound.extents(), node.operator, stream=stream if node.operator.random else None)

    def empty(tensor: int | None, rect: Rect | None) -> torch.Tensor | None:
        """Room for what the task uses of a tensor, which may be less than all of it."""
        dtype = None if tensor is None else graph.tensors[tensor].dtype
        return None if dtype is None or rect is None else torch.empty(rect.shape, dtype=torch_dtype(dtype))

    operands = [empty(*operand) for operand in zip(node.operands, tile.operand_rects, strict=True)]
    results = [empty(*result) for result in zip(node.results, tile.result_rects, strict=True)]
    given = {place for role, place in launch.slots if role == "result_gradient"}
    given |= {place for place, result in enumerate(node.results) if result == graph.loss_tensor}
    wanted = [place for role, place in launch.slots if role == "operand_gradient"]
    gradients = [result if place in given else None for place, result in enumerate(results)]
    saving = bool(bound.rule.saved) and does_save(context, operands, results)
    found = recorded_pass(context, Layouts.of(operands, gradients, wanted), saving=saving)
    if isinstance(found, str):
        return (f"all: {found}",)
    tape = found.backward(node.operator.backward_reads.results)
    return ("all: it writes over what it reads",) if tape is None else tape.again
