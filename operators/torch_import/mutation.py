"""Mutation: in-place operators of a program, as operators that give a new value."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from maniple.operators.operator.aten_overload import Overload, Schema, overload, schema
from maniple.operators.torch_import.capture import exporting, source
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule, Node

GRADIENT_MODE = "wrap_with_set_grad_enabled"
"""torch's name for the call of a part of a program in a gradient mode of its own."""

DETACH, CLONE = overload("detach"), overload("clone")

VARIANTS = tuple(overload(name) for name in ("feature_dropout", "alpha_dropout", "feature_alpha_dropout"))
"""Dropouts that torch functionalises into draws, which would no longer be left out of an evaluation."""


@torch.library.custom_op(
    "maniple::dropout_variant", mutates_args=(), schema="(Tensor input, float p, bool train, str name) -> Tensor"
)
def _dropout_variant(x: Tensor, p: float, train: bool, name: str) -> Tensor:  # noqa: FBT001
    """Stand for one of these, which torch then keeps whole; never run."""
    return x.clone()


_dropout_variant.register_fake(lambda x, p, train, name: torch.empty_like(x))  # noqa: ARG005


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program, such that an in-place operator changes no value but the one that it is given.

    Where a written tensor has views that are used later, is a view of a buffer, is given as ``out=``, or is written
    without gradients, torch functionalises the whole program; that keeps layers whole as well, but takes as long as the
    export. It forgets where gradients were disabled, so these parts become operators on detached tensors before.

    Raises:
        RequestError: Forward writes to a parameter.
    """
    owner = program.graph_module
    _check_parameters(program)
    _drop_idle(program)
    if not writes_to_views(program.graph) and not any(_writes(part.graph) for _, part in _find_ungraded(owner)):
        return program
    _inline(owner, program.graph_signature.replace_all_uses, program.graph_signature.inputs_to_parameters)
    for node in owner.graph.nodes:
        if node.target in VARIANTS:
            node.args = (*node.args, node.target.name().removeprefix("aten::"))
            node.target = torch.ops.maniple.dropout_variant.default
    owner.recompile()
    with exporting():
        found: ExportedProgram = program.run_decompositions({})
    return found


def _check_parameters(program: ExportedProgram) -> None:
    """Refuse what writes to a parameter: only the optimizer does, and what forward wrote would be lost."""
    graph, parameters = program.graph_module.graph, program.graph_signature.inputs_to_parameters
    storage, _ = _find_storages(graph)
    written = [(node, value) for node in graph.nodes if (found := _schema(node)) for value in _written(node, found)]
    for call, part in _find_ungraded(program.graph_module):
        inside, _ = _find_storages(part.graph)
        given = dict(zip([each for each in part.graph.nodes if each.op == "placeholder"], call.args[2:], strict=True))
        for node in part.graph.nodes:
            roots = [inside[value] for value in _written(node, found)] if (found := _schema(node)) else []
            written += [(node, outer) for root in roots if isinstance(outer := given.get(root), torch.fx.Node)]
    for node, value in written:
        if storage[value].name in parameters:
            name = parameters[storage[value].name].removeprefix("module.")
            raise RequestError(
                f"from_torch: forward writes at {source(node)} to parameter '{name}', which only the optimizer does "
                "here; make it a buffer (register_buffer), or write to it between steps"
            )


def _written(node: Node, found: Schema) -> list[Node]:
    """The tensors that an operator writes to."""
    given = [*zip(found.arguments, node.args, strict=False)]
    given += [(argument, node.kwargs.get(argument.name)) for argument in found.arguments]
    return [value for argument, value in given if argument.written and isinstance(value, torch.fx.Node)]


def _drop_idle(program: ExportedProgram) -> None:
    """Where something is written in place: have operators that give their operand itself be that, which no schema says.

    So is a dropout that drops nothing; whoever writes to its result writes to its operand.
    """
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule) and any(
            found.mutable for node in part.graph.nodes if (found := _schema(node))
        ):
            for node in [node for node in part.graph.nodes if _is_idle(node)]:
                node.replace_all_uses_with(node.args[0])
                program.graph_signature.replace_all_uses(node.name, node.args[0].name)
                part.graph.erase_node(node)


def _is_idle(node: Node) -> bool:
    """Whether an operator gives its first operand itself."""
    found = _schema(node)
    if found is None:
        return False
    values = dict(zip((argument.name for argument in found.arguments), node.args, strict=False)) | node.kwargs
    match found.name.removeprefix("aten::").partition(".")[0]:
        case "dropout" | "feature_dropout" | "alpha_dropout" | "feature_alpha_dropout":
            return not (values["train"] and values["p"])
        case "type_as" | "atleast_1d" | "atleast_2d" | "atleast_3d":
            before, after = (cast("Tensor", item.meta["val"]) for item in (cast("Node", node.args[0]), node))
            return (before.shape, before.dtype) == (after.shape, after.dtype)
    return False


def _find_ungraded(owner: GraphModule) -> list[tuple[Node, GraphModule]]:
    """The calls of parts that run in a gradient mode of their own, with these parts."""
    return [
        (node, getattr(owner, str(node.args[1].target)))
        for node in owner.graph.nodes
        if getattr(node.target, "__name__", "") == GRADIENT_MODE and isinstance(node.args[1], torch.fx.Node)
    ]


def _writes(program: Graph) -> bool:
    """Whether an operator of a program is an in-place one, or a part of it may be."""
    nodes = [node for node in program.nodes if node.op == "call_function"]
    return any((found.mutable if (found := _schema(node)) else node.target is not operator.getitem) for node in nodes)


def _inline(owner: GraphModule, renamed: Callable[[str, str], object], parameters: Collection[str]) -> None:
    """Put the operators of such parts where they are called; without gradients they read what is detached.

    Args:
        owner: The program, or a part of it.
        renamed: Told the name of a part's result, and then that of the operator that gives it.
        parameters: The names of the program's parameters; of a part of it none.
    """
    for node, part in _find_ungraded(owner):
        _inline(part, lambda before, after: None, ())  # noqa: ARG005 (results of a part of a part have no names)
        # Found anew each time: what an earlier part wrote has gradients, too.
        results = _copy_part(owner.graph, node, part, _find_tracked(owner.graph, parameters))
        for user in list(node.users):
            value = results[int(str(user.args[1]))]
            user.replace_all_uses_with(value)
            renamed(user.name, value.name)
            owner.graph.erase_node(user)
        owner.graph.erase_node(node)


def _copy_part(graph: Graph, node: Node, part: GraphModule, tracked: AbstractSet[Node]) -> list[Node]:
    """The results of a part's operators, copied to where it is called.

    To detach is to view, so writes go through. Where gradients flow through what is written, autograd does not see the
    write: the value is the new one, and its gradient is the old one's.
    """
    enabled, _, *given = node.args
    copied: dict[Node, Any] = {}
    results: list[Node] = []
    given_back: list[Node] = []
    _, itself = _find_storages(part.graph)
    written = {} if enabled else _find_written(part.graph)
    with graph.inserting_before(node):
        for inner in part.graph.nodes:
            match inner.op:
                case "placeholder":
                    value = cast("Node", given[len(copied)])
                    copied[inner] = value if enabled else _added(graph, value, DETACH)
                    if inner in written and value in tracked:
                        copied[inner] = _added(graph, copied[inner], CLONE)
                case "output":
                    given_back = list(inner.args[0])
                    results += [copied[item] for item in given_back]
                case _:
                    copied[inner] = graph.node_copy(inner, copied.__getitem__)
        for inner, last in written.items():
            value = cast("Node", given[list(copied).index(inner)])
            if value in tracked:
                changed = _revalue(graph, node, value, None if last is None else copied[last])
                same = [itself[item] is inner for item in given_back]
                results = [changed if new else result for new, result in zip(same, results, strict=True)]
    return results


def _find_written(program: Graph) -> dict[Node, Node | None]:
    """The placeholders that a program writes to, with what gives their last value; None where that is a view."""
    storage, itself = _find_storages(program)
    found: dict[Node, Node | None] = {}
    for node in program.nodes:
        declared = _schema(node)
        if declared is None or not declared.mutable or storage[node].op != "placeholder":
            continue
        whole = itself[node] is storage[node] and found.get(storage[node], node) is not None
        found[storage[node]] = node if whole else None
    return found


def _revalue(graph: Graph, place: Node, value: Node, written: Node | None) -> Node:
    """Let what comes after a place read a new value, with the gradient of the old one.

    Raises:
        RequestError: Only a part of it is written, or a view of it is read afterwards.
    """
    storage, _ = _find_storages(graph)
    order = {node: number for number, node in enumerate(graph.nodes)}
    views = [other for other in storage if other is not value and storage[other] is storage[value]]
    late = [user for view in views for user in view.users if order[user] > order[place]]
    if written is None or late:
        raise RequestError(
            f"from_torch: forward writes at {source(place)}, without gradients, to a part of a tensor that has one, or "
            "to one of which a view is read afterwards; write it with operators that give a new tensor (torch.where, "
            "clamp), or detach the tensor first"
        )
    before = _added(graph, value, DETACH)
    none = graph.call_function(overload("nan_to_num"), (graph.call_function(overload("sub.Tensor"), (value, before)),))
    found = graph.call_function(overload("add.Tensor"), (_added(graph, written, DETACH), none))
    found.meta = dict(value.meta)
    for user in list(value.users):
        if order.get(user, -1) > order[place]:
            user.replace_input_with(value, found)
    return found


def _added(graph: Graph, value: Node, operator_: Any) -> Node:
    """A node that applies an operator of one operand."""
    found = graph.call_function(operator_, (value,))
    found.meta = dict(value.meta)
    return found


def _find_tracked(program: Graph, parameters: Collection[str]) -> set[Node]:
    """The nodes through which gradients flow from a loss to a parameter."""
    found: set[Node] = set()
    for node in program.nodes:
        cut = node.target is DETACH or (getattr(node.target, "__name__", "") == GRADIENT_MODE and not node.args[0])
        if node.name in parameters or (not cut and not found.isdisjoint(node.all_input_nodes)):
            found.add(node)
    return found


def _find_storages(program: Graph) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """For each node the one whose storage it has, and the one that it is, written in place or not."""
    storage: dict[Node, Node] = {}
    itself: dict[Node, Node] = {}
    for node in program.nodes:
        root = same = node
        found = _schema(node)
        for argument, value in zip(found.arguments, node.args, strict=False) if found is not None else ():
            if isinstance(value, torch.fx.Node) and argument.alias:
                root = storage[value]
                if argument.written:
                    same = itself[value]
        if found is None and node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
            root = storage[node.args[0]]  # an element of a list that an operator gave
        storage[node], itself[node] = root, same
    return storage, itself


def writes_to_views(program: Graph) -> bool:
    """Whether an operator writes to a storage of which another tensor is used afterwards.

    | program | view of a buffer | used afterwards |
    |---|---|---|
    | ``ema.mul_(0.9).add_(x)`` | no: what an in-place operator gives is what it wrote | no |
    | ``queue[0].copy_(x)`` | yes | |
    | ``row = h[0]; h.mul_(2); row + 1`` | | ``row`` |
    """
    storage, itself = _find_storages(program)
    place = {node: number for number, node in enumerate(program.nodes)}
    members: dict[Node, list[Node]] = {}
    written: list[tuple[Node, Node]] = []
    for node in program.nodes:
        found = _schema(node)
        if found is not None and any(argument.written and argument.name in node.kwargs for argument in found.arguments):
            return True
        for argument, value in zip(found.arguments, node.args, strict=False) if found is not None else ():
            if isinstance(value, torch.fx.Node) and argument.written:
                written.append((node, value))
        members.setdefault(storage[node], []).append(node)
    for writer, target in written:
        if storage[target].op == "placeholder" and itself[target] is not storage[target]:
            return True
        for other in members[storage[target]]:
            later = any(place[user] > place[writer] for user in other.users)
            if later and other not in (writer, target) and place[other] < place[writer]:
                return True
    return False


def _schema(node: Node) -> Schema | None:
    """What torch says about a node's operator; None for what is no operator."""
    return schema(node.target) if isinstance(node.target, Overload) else None
