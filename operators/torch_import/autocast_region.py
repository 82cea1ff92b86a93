"""Autocast regions: parts of an exported program that torch runs in mixed precision, where a module enters autocast.

torch.export leaves a region's operators as they are, and says of each result what dtype it would have. Here the graph
is the float32 one, with or without a region; which operators lie in one is told beside it (``Graph.autocast``), and
where values are rounded follows from that as from a plan's precision (``lowering.precision``):

    exported                                   the graph       autocast
    relu       float32                         relu
    wrap_with_autocast(cpu, bfloat16, True)
        linear    bfloat16                     linear          bfloat16
        add       bfloat16                     add             bfloat16
    to(add, float32)                           (the same)
    cross_entropy_loss float32                 cross_entropy
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import map_aggregate

from maniple.operators.operator.aten_overload import Overload
from maniple.operators.operator.operator import HALF_DTYPES
from maniple.operators.torch_import.capture import source
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_HALVES = tuple(getattr(torch, name) for name in HALF_DTYPES)


def half_of(node: Node) -> str:
    """The half of a region; "" where it leaves mixed precision.

    Args:
        node: the call of the region, whose first arguments are device type, dtype and whether autocast is on.

    Raises:
        RequestError: torch would cast to something that is no half.
    """
    dtype, enabled = node.args[1], node.args[2]
    if not enabled:
        return ""
    if dtype not in _HALVES:
        raise RequestError(
            f"from_torch: autocast to {dtype} at {source(node)}: expected one of {', '.join(map(str, _HALVES))}"
        )
    return str(dtype).removeprefix("torch.")


def widen(program: GraphModule, name: str) -> None:
    """Where a module enters autocast: have every half that its program names or gives be float32.

    A cast to a half, in a region or behind it, gives what it reads: where values are rounded is the precision's to say.

    Args:
        program: of the module, with its parts; changed in place.
        name: what messages call the module.

    Raises:
        RequestError: the module has tensors of halves by itself, or enters autocast to two halves.
    """
    nodes = [node for part in program.modules() if isinstance(part, torch.fx.GraphModule) for node in part.graph.nodes]
    halves = sorted({half for node in nodes if _is_region(node) and (half := half_of(node))})
    if not halves:
        return
    if len(halves) > 1:
        raise RequestError(
            f"from_torch: {name} enters autocast to {' and to '.join(halves)}; expected one half in a module"
        )
    for node in program.graph.nodes:
        if node.op == "placeholder" and _dtype(node) in _HALVES:
            raise RequestError(
                f"from_torch: {name} enters autocast, and its {node.name!r} is {_dtype(node)} by itself; keep it in "
                "float32 (autocast rounds it where that helps), or leave autocast out"
            )
    for node in nodes:
        if "val" in node.meta:
            node.meta["val"] = map_aggregate(node.meta["val"], _widened)
        if isinstance(node.target, Overload):
            node.args, node.kwargs = map_aggregate(node.args, _widened), map_aggregate(node.kwargs, _widened)


def _is_region(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "wrap_with_autocast"


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _widened(value: Any) -> Any:
    """A value without halves."""
    if isinstance(value, torch.Tensor) and value.dtype in _HALVES:
        return value.to(torch.float32)
    return torch.float32 if value in _HALVES else value
