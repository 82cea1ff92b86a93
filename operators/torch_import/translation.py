"""Translation: an exported program becomes the nodes of a graph, operator by operator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from maniple.operators.graph.writer import DTYPES
from maniple.operators.library.elementwise.aten import Aten, AtenCall, AtenDetached, AtenLinear
from maniple.operators.operator.aten_overload import Overload, is_random
from maniple.operators.operator.axes import activation_axes
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.pattern_text import text, whole
from maniple.operators.torch_import.autocast_region import half_of
from maniple.operators.torch_import.capture import source
from maniple.operators.torch_import.composite import decompose
from maniple.operators.torch_import.exported_call import Call, Known, spell
from maniple.operators.torch_import.names import Names
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch.fx import Graph as Program
    from torch.fx import Node

    from maniple.operators.graph.graph import Graph
    from maniple.operators.operator.operator import AbstractOperator

Handler = Callable[["Translation", Call], Any]

IGNORED = frozenset({"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size", "_assert_async"})


class Translation:
    """Writes the operators of a program into a graph.

    Args:
        graph: Where to.
        names: Names nodes after the modules that they come from.
        handler: Finds what writes an operator; None where nothing does.
    """

    def __init__(self, graph: Graph, names: Names, handler: Callable[[Overload], Handler | None]) -> None:
        self.graph = graph
        self.names = names
        self.handler = handler
        self.assigned: dict[str, Tensor] = {}
        self._values: dict[Node, Any] = {}
        self._buffers: dict[Node, Tensor] = {}
        self._node: Node | None = None
        self._half = ""
        self.autocast: dict[str, str] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self._constants: dict[int, Tensor] = {}
        self._compacted: dict[int, Known] = {}
        self._kept: list[Known] = []

    def translate(self, program: Program, values: Mapping[Node, Any]) -> list[Any]:
        """Write a program's operators, and give its outputs.

        Args:
            program: Of an exported program, or of a part that it calls.
            values: Of the program's placeholders.
        """
        self._values.update(values)
        for node in program.nodes:
            if node.op == "call_function":
                self._node = node
                self._values[node] = self._call(node)
            elif node.op == "get_attr":
                self._values[node] = getattr(program.owning_module, str(node.target))
            elif node.op == "output":
                return [self.value(item) for item in node.args[0]]
        return []

    def value(self, argument: Any) -> Any:
        """What an argument of a node stands for."""
        if isinstance(argument, torch.fx.Node):
            return self._values[argument]
        if isinstance(argument, list | tuple):
            return [self.value(item) for item in argument]
        return argument

    def _call(self, node: Node) -> Any:
        """What a node gives."""
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]
        if not isinstance(node.target, Overload):
            return self._inline(node)
        call = Call.of(node, node.target, self.value)
        if call.packet in IGNORED:
            return None
        if _depends_on_values(node.meta.get("val")):
            raise RequestError(
                f"from_torch: {call.name} at {source(node)} gives a number or a shape that depends on values; two ways "
                "out: keep what is masked in its place (torch.where, one_hot, a product with the mask) instead of "
                "picking it out, or compute it before the step and pass the result as an input"
            )
        found = self._write(call)
        self._check(call, found)
        if call.schema.mutable:
            self._replace(call, found)
        return found

    def _write(self, call: Call) -> Any:
        """What an operator gives: computed now where everything is known, else written as a node."""
        tensors = call.tensors()
        if all(isinstance(tensor, Known) for tensor in tensors) and not _random(call):
            return self._compute(call)
        if not call.many and 0 in call.shape:  # of values that are none all are known: the rest of a head without one
            return Known(torch.empty(call.shape, dtype=call.dtype))
        handler = self.handler(call.target)
        found = None if handler is None else handler(self, call)
        if found is None:
            found = self._take_apart(call)
        return self.opaque(call) if found is None else found

    def _take_apart(self, call: Call) -> Any:
        """What a composite gives, written as its parts; None where it is not one, or better written as one."""
        node = call.node
        program = None if call.schema.mutable else decompose(node, lambda part: self.handler(part) is not None)
        if program is None:
            return None
        placeholders = [item for item in program.nodes if item.op == "placeholder"]
        outputs = self.translate(
            program, {item: self._values[given] for item, given in zip(placeholders, node.all_input_nodes, strict=True)}
        )
        self._node = node
        return outputs if call.many else outputs[0]

    def _compute(self, call: Call) -> Any:
        """The result of an operator on known values."""

        def plain(value: Any) -> Any:
            if isinstance(value, Known):
                return value.value
            if isinstance(value, list):
                return [plain(item) for item in value]
            return torch.device("cpu") if isinstance(value, torch.device) else value

        given = {name: plain(value) for name, value in call.arguments.items()}
        positional = [given[item.name] for item in call.schema.arguments if not item.keyword_only]
        keywords = {item.name: given[item.name] for item in call.schema.arguments if item.keyword_only}
        if call.schema.mutable:
            positional[0] = positional[0].clone()
        found = call.target(*positional, **keywords)
        return [Known(item) for item in found] if isinstance(found, list | tuple) else Known(found)

    def _inline(self, node: Node) -> Any:
        """The results of a part of the program that runs in another mode: without gradients, or in a precision."""
        name = getattr(node.target, "__name__", str(node.target))
        if name not in {"wrap_with_set_grad_enabled", "wrap_with_autocast"}:
            raise RequestError(f"from_torch: {name} at {source(node)} cannot be imported; write it without")
        count = 1 if name == "wrap_with_set_grad_enabled" else 4
        part = self.value(node.args[count])
        given = [self.value(item) for item in node.args[count + 1 :]]
        placeholders = [item for item in part.graph.nodes if item.op == "placeholder"]
        around = self._half
        if name == "wrap_with_autocast":
            self._half = half_of(node)
        outputs = self.translate(part.graph, dict(zip(placeholders, given, strict=True)))
        self._node, self._half = node, around
        if count == 1 and not node.args[0]:
            return [self.detach(item) if isinstance(item, Tensor) else item for item in outputs]
        return outputs

    def detach(self, tensor: Tensor) -> Tensor:
        """The same values, through which no gradient flows."""
        axes = " ".join(activation_axes(len(tensor.shape))) if tensor.shape else ""
        (found,) = self.apply(AtenDetached("detach(x0)", f"{axes} -> {axes}".strip(), (tensor.dtype,)), (tensor,))
        return found

    def _replace(self, call: Call, found: Any) -> None:
        """Let what an in-place operator wrote be what its argument stands for from here on."""
        self.assign(call, next(argument.name for argument in call.schema.arguments if argument.written), found)

    def assign(self, call: Call, argument: str, value: Any) -> None:
        """Let an argument of a call stand for another value from here on; a buffer has it as its next one.

        What an in-place operator gives is what it wrote: ``buffer.mul_(0.9).add_(x)`` writes to the buffer twice.
        """
        place = [item.name for item in call.schema.arguments].index(argument)
        target = call.node.args[place] if place < len(call.node.args) else call.node.kwargs[argument]
        if not isinstance(target, torch.fx.Node):
            raise TypeError(f"{call.name}: expected to write to a tensor, got {target!r}")
        buffer = self._buffers.get(target, self._values[target])
        if isinstance(buffer, Tensor) and self.graph.tensor(buffer.name).kind == "buffer":
            self._buffers[target] = buffer
            if call.schema.mutable:
                self._buffers[call.node] = buffer
            self.assigned[buffer.name] = value
        self._values[target] = value

    # -- for handlers -----------------------------------------------------------------------------------------------

    def opaque(self, call: Call) -> Any:
        """An operator that nothing is known about, as one task."""
        place = source(call.node)
        if _random(call):
            raise RequestError(
                f"from_torch: {call.name} at {place} draws random numbers that a plan would change; use dropout, or "
                "draw them before the step and pass them as an input"
            )
        found, operands = spell(call)
        given = [self.tensor(operand) for operand in operands]
        rule = text([whole(tensor.shape) for tensor in given], [whole(shape) for shape in call.shapes])
        return self.results(call, Aten(found, rule, call.dtypes, source=place), given)

    def results(self, call: Call, found: AtenCall, operands: Sequence[Tensor]) -> Any:
        """Apply a generic operator, and give what the call gives: a tensor or a list."""
        tensors = self.apply(found, operands)
        return list(tensors) if call.many else tensors[0]

    def apply(
        self,
        found: AbstractOperator,
        operands: Sequence[Tensor | None],
        parameters: Sequence[Tensor | None] = (),
    ) -> tuple[Tensor, ...]:
        """Write a node, named after the module that the present operator comes from."""
        name = self.names.fresh(self._node, found.name)
        if self._half:
            self.autocast[name] = self._half
        return self.graph.apply(found, operands, parameters, name)

    def tensor(self, value: Tensor | Known) -> Tensor:
        """A tensor of the graph; known values become a buffer that never changes.

        Along dimensions where all its values are equal, a known value is kept once and repeated.
        """
        if isinstance(value, Tensor):
            return value
        if id(value) not in self._constants:
            once = compact(value.value)
            name = value.name or self.names.free(f"constant_{len(self._constants)}")
            if once.ndim and not once.numel():
                raise RequestError(f"from_torch: {source_of(self._node)} makes a tensor without elements")
            dtype = str(once.dtype).removeprefix("torch.")
            found = self.graph.buffer(name, tuple(once.shape), dtype, persistent=False)
            self.constants[name] = once.contiguous()
            if once.shape != value.value.shape:
                found = self.expand(found, tuple(value.value.shape))
            self._constants[id(value)] = found
            self._kept.append(value)  # an id is good for as long as its object lives
        return self._constants[id(value)]

    def broadcastable(self, value: Tensor | Known) -> Tensor:
        """A tensor for an operator that repeats dimensions of one element by itself."""
        if isinstance(value, Tensor):
            return value
        if id(value) not in self._compacted:
            self._compacted[id(value)] = Known(compact(value.value), value.name)
            self._kept.append(value)
        return self.tensor(self._compacted[id(value)])

    def result(self, value: Tensor | Known) -> Tensor:
        """A value as an operator's result, which a loss and an output must be."""
        tensor = self.tensor(value)
        if self.graph.tensor(tensor.name).kind == "activation":
            return tensor
        axes = " ".join(activation_axes(len(tensor.shape))) if tensor.shape else ""
        return self.apply(AtenLinear("clone(x0)", f"{axes} -> {axes}".strip(), (tensor.dtype,)), (tensor,))[0]

    def expand(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor whose dimensions of one element are repeated; new ones come in front."""
        if tensor.shape == shape:
            return tensor
        names = list(activation_axes(len(shape)))
        offset = len(shape) - len(tensor.shape)
        kept = [extent == shape[offset + axis] for axis, extent in enumerate(tensor.shape)]
        before = [names[offset + axis] if keep else "1" for axis, keep in enumerate(kept)]
        new = [axis for axis in range(len(shape)) if axis < offset or not kept[axis - offset]]
        sizes = tuple((names[axis], shape[axis]) for axis in new)
        found = AtenLinear("expand(x0, shape0)", text([before], [names]), (tensor.dtype,), sizes)
        return self.apply(found, (tensor,))[0]

    def _check(self, call: Call, found: Any) -> None:
        """Refuse results that are not what torch says: a fault of the import, never of the user."""
        results = found if isinstance(found, list) else [found]
        for value, shape, dtype in zip(results, call.shapes, call.dtypes, strict=False):
            if value is None:
                continue
            have = (
                (tuple(value.value.shape), str(value.value.dtype)[6:])
                if isinstance(value, Known)
                else (
                    value.shape,
                    value.dtype,
                )
            )
            if have != (shape, dtype):
                raise RequestError(
                    f"from_torch: {call.name} at {source(call.node)}: torch gives {shape} of {dtype}, the import "
                    f"{have[0]} of {have[1]}; this is a fault of the import"
                )
            if dtype not in DTYPES:
                raise RequestError(
                    f"from_torch: {call.name} at {source(call.node)} gives {dtype}; expected one of "
                    f"{', '.join(DTYPES)}; two ways out: {_way_out(dtype)}, or compute it before the step and pass the "
                    "result as an input"
                )


def source_of(node: Node | None) -> str:
    """Where a node comes from."""
    return "<unknown>" if node is None else source(node)


def _way_out(dtype: str) -> str:
    """What can be written instead of values of a dtype that no graph has."""
    if dtype.startswith("complex"):
        return (
            "keep real and imaginary parts apart as floats (a transform is a product with a matrix of cosines and one "
            "of sines)"
        )
    return "compute in one of these (module.float(), or .to(dtype) on the line)"


def compact(value: torch.Tensor) -> torch.Tensor:
    """The values with one element along every dimension that repeats them."""
    if not value.numel():
        return value
    for axis, extent in enumerate(value.shape):
        first = value.narrow(axis, 0, 1)
        if extent > 1 and torch.equal(first.expand_as(value), value):
            value = first
    return value


def _depends_on_values(result: object) -> bool:
    """Whether a result is known only when the program runs: a number, or a tensor of an unknown shape."""
    if isinstance(result, list | tuple):
        return any(_depends_on_values(item) for item in result)
    if isinstance(result, torch.Tensor):
        return not all(isinstance(extent, int) for extent in result.shape)
    return isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool)


def _random(call: Call) -> bool:
    """Whether an operator draws random numbers."""
    return is_random(call.target)
