"""Composites: operators of torch that are made of others, written as what they are made of.

``movedim``, ``vstack`` or ``kron`` is one operator of an exported program. torch itself computes it, and its gradient,
as some permutations, concatenations and products; each of these has a rule by which it is split, the whole has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from maniple.operators.operator.aten_overload import Overload, is_random
from maniple.operators.torch_import.capture import exporting
from maniple.operators.torch_import.mutation import writes_to_views
from maniple.process.torch_internals import DispatchMode, is_composite

if TYPE_CHECKING:
    from torch.fx import Graph as Program
    from torch.fx import Node

MOST_PARTS = 32
"""A composite of more is a loop that torch unrolls, such as a recurrent layer's: better one task."""


def decompose(node: Node, is_known: Callable[[Overload], bool]) -> Program | None:
    """What a composite is made of.

    Args:
        node: A call in an exported program.
        is_known: Whether an operator has a handler.

    Returns:
        A program whose placeholders stand for ``node.all_input_nodes``; None where the operator is not made of others,
        where one of these is not known, where torch makes some without gradients, or writes to a tensor of which
        another one is a view: then it is better written as one.
    """
    target, operands = node.target, node.all_input_nodes
    if not isinstance(target, Overload) or not is_composite(target):
        return None
    values = [operand.meta.get("val") for operand in operands]
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        return None
    watch = _GradientWatch()

    def run(*given: torch.Tensor) -> list[Any]:
        held = dict(zip(operands, given, strict=True))
        with watch:
            found = target.decompose(*map_arg(node.args, held.__getitem__), **map_arg(node.kwargs, held.__getitem__))
        return list(found) if isinstance(found, tuple | list) else [found]

    try:
        with exporting(), torch.enable_grad():
            program = make_fx(run)(*values).graph
    except RuntimeError:  # so torch says that what happens depends on values
        return None
    program.eliminate_dead_code()
    parts = [part for part in program.nodes if part.op not in {"placeholder", "output"}]
    if watch.without or writes_to_views(program) or not 0 < len(parts) <= MOST_PARTS:
        return None
    if not all(_is_written(part, is_known) for part in parts):
        return None
    for part in parts:  # it lies where the composite lies, and is named after the same module
        part.meta |= {name: node.meta[name] for name in ("nn_module_stack", "stack_trace") if name in node.meta}
    return program


def _is_written(part: Node, is_known: Callable[[Overload], bool]) -> bool:
    """Whether a part can be written."""
    target = part.target
    if not isinstance(target, Overload):
        return part.op == "call_function" and getattr(target, "__name__", "") == "getitem"
    return not is_random(target) and is_known(target)


@final
class _GradientWatch(DispatchMode):
    """A stretch in which is seen whether torch switches gradients off, which no operator of a graph would say."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.without = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator."""
        self.without |= not torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))
