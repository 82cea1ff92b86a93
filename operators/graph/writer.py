"""The write side of a graph: tensors are declared and operators applied, each checked as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from maniple.operators.graph.node import Node, TensorInfo
from maniple.operators.graph.tensor_table import TensorTable
from maniple.operators.operator.builder import AbstractBuilder, Tensor
from maniple.operators.operator.operator import FLOAT_DTYPES, REAL_DTYPES, AbstractOperator, Initial
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.rules.rule import BoundRule, Shape

DTYPES = (*FLOAT_DTYPES, "int64", "int32", "uint8", "bool")


class GraphWriter(AbstractBuilder):
    """Declares tensors and applies operators, in an order that is a topological one.

    Args:
        name: What messages call the graph.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._table = TensorTable(self, name)
        self._nodes: list[Node] = []
        self._producers: dict[int, Node] = {}  # by tensor
        self._bound: list[BoundRule] = []
        self._outputs: dict[str, int] = {}
        self._assignments: dict[int, int] = {}
        self._autocast: dict[str, str] = {}
        self._loss: int | None = None

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Declare an input.

        Args:
            name: The keyword by which a step takes it.
            shape: Dimension 0 is the sample dimension.
            dtype: A float, an integer (labels, indices) or bool (masks).

        Raises:
            RequestError: A duplicate name, a bad shape or dtype.
        """
        extents = _shape(f"input '{name}'", shape, dtype)
        if not extents:
            raise RequestError(f"input '{name}': expected at least one dimension (the samples), got shape ()")
        return self._table.handle(self._table.declare(name, extents, dtype, "input", samples=0))

    def parameter(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        initial: Initial | None = None,
        *,
        requires_grad: bool = True,
    ) -> Tensor:
        """Declare a parameter that operators take as any other operand, or share as their own.

        Args:
            name: As ``named_parameters()`` calls it.
            shape: In elements.
            dtype: A float.
            initial: Its initial values unless a state dict gives them; zeros by default.
            requires_grad: Whether it is trained.

        Raises:
            RequestError: A duplicate name, a bad shape, or a dtype that is no float.
        """
        extents = _shape(f"parameter '{name}'", shape, dtype)
        if dtype not in FLOAT_DTYPES:
            raise RequestError(f"parameter '{name}': expected dtype {' or '.join(FLOAT_DTYPES)}, got {dtype}")
        values = initial or Initial("constant", 0.0)
        info = self._table.declare(name, extents, dtype, "parameter", initial=values, requires_grad=requires_grad)
        return self._table.handle(info)

    def buffer(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        initial: Initial | None = None,
        *,
        persistent: bool = True,
    ) -> Tensor:
        """Declare a buffer: values that outlive steps and are not trained, e.g. running statistics.

        Args:
            name: As ``named_buffers()`` calls it.
            shape: In elements.
            dtype: Any.
            initial: Its initial values unless a state dict gives them; zeros by default.
            persistent: Whether it is part of the state dict.

        Raises:
            RequestError: A duplicate name, a bad shape or dtype.
        """
        extents = _shape(f"buffer '{name}'", shape, dtype)
        values = initial or Initial("constant", 0.0)
        info = self._table.declare(name, extents, dtype, "buffer", initial=values, persistent=persistent)
        return self._table.handle(info)

    def assign(self, buffer: Tensor, value: Tensor) -> None:
        """Make a tensor the next value of a buffer: written when a training step ends, read by the next one.

        Args:
            buffer: What changes. The step itself sees its old value everywhere.
            value: An operator's result of the buffer's shape and dtype.

        Raises:
            RequestError: No buffer, no result, another shape or dtype, or a second assignment.
        """
        target = self._table.check_ours("assign", buffer)
        source = self._table.check_ours("assign", value)
        if target.kind != "buffer":
            raise RequestError(f"assign: expected a buffer to assign to, got {target.kind} '{target.name}'")
        if source.kind != "activation":
            raise RequestError(f"assign to '{target.name}': expected an operator's result, got {source.kind}")
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise RequestError(
                f"assign to '{target.name}': expected shape {target.shape} of {target.dtype}, "
                f"got '{source.name}' of shape {source.shape}, {source.dtype}"
            )
        if target.id in self._assignments:
            raise RequestError(f"assign: buffer '{target.name}' has a next value already; expected one")
        self._assignments[target.id] = source.id

    def apply(
        self,
        operator: AbstractOperator,
        operands: Sequence[Tensor | None],
        parameters: Sequence[Tensor | None] = (),
        name: str | None = None,
    ) -> tuple[Tensor, ...]:
        """Apply an operator; see ``AbstractBuilder.apply``."""
        label = self.fresh(operator.name) if name is None else name
        self._table.check_free(label, f"operator '{label}'")
        given = [None if tensor is None else self._table.check_ours(label, tensor) for tensor in operands]
        shared = self._find_shared(label, operator, parameters)
        specs = operator.parameters()
        shapes = [None if info is None else info.shape for info in given] + [spec.shape for spec in specs]
        rule = operator.rule(tuple(shapes))
        absent = (None,) * (len(rule.operands) - len(shapes))
        infos = (*given, *shared, *absent)
        owned = [i for i in range(len(infos)) if _is_parameter(infos[i], own=len(given) <= i < len(shapes))]
        samples = [None if info is None else info.samples for info in infos]
        bound = rule.with_roles(owned, samples).bind((*shapes, *absent), label)
        common = next((info.dtype for info in given if info is not None and info.dtype in FLOAT_DTYPES), "float32")
        created = [common if info is None else info.dtype for info in shared]
        dtypes = (*(None if info is None else info.dtype for info in given), *created, *absent)
        places = []
        for spec, existing in zip(specs, shared, strict=True):
            own = existing or self._table.declare(
                f"{label}.{spec.name}",
                spec.shape,
                common,
                "parameter",
                initial=spec.initial,
                requires_grad=True,
                owner=len(self._nodes),
            )
            places.append(own.id)
        results = self._results(label, operator, bound, operator.result_dtypes(dtypes, label))
        ids = (*(None if info is None else info.id for info in given), *places, *absent)
        node = Node(len(self._nodes), label, operator, ids, tuple(result.id for result in results))
        self._nodes.append(node)
        self._producers.update(dict.fromkeys(node.results, node))
        self._bound.append(bound)
        return tuple(self._table.handle(result) for result in results)

    def _results(
        self, label: str, operator: AbstractOperator, bound: BoundRule, dtypes: tuple[str, ...]
    ) -> list[TensorInfo]:
        """Declare the results of an operator."""
        sampled = {factor.name for factor in bound.factors if factor.role == "sample"}
        if len(dtypes) != len(bound.rule.results):
            raise RequestError(
                f"{label}: rule '{bound.rule.text}' has {len(bound.rule.results)} results, "
                f"but {type(operator).__name__}.result_dtypes gives {len(dtypes)} dtypes"
            )
        _check_gradients(label, operator, bound, dtypes)
        found = []
        for place, (pattern, shape, dtype) in enumerate(
            zip(bound.rule.results, bound.result_shapes, dtypes, strict=True)
        ):
            axis = next((axis for axis, cut in enumerate(bound.cuts(pattern)) if cut in sampled), None)
            name = f"{label}.{place}" if place else label
            found.append(self._table.declare(name, shape, dtype, "activation", samples=axis))
        return found

    def _find_shared(
        self, label: str, operator: AbstractOperator, parameters: Sequence[Tensor | None]
    ) -> list[TensorInfo | None]:
        """The parameter to share at each of an operator's parameter places; None: create one."""
        specs = operator.parameters()
        shared = [None if tensor is None else self._table.check_ours(label, tensor) for tensor in parameters]
        shared += [None] * (len(specs) - len(shared))
        for spec, info in zip(specs, shared, strict=True):
            if info is not None and (info.kind != "parameter" or info.shape != spec.shape):
                raise RequestError(
                    f"{label}.{spec.name}: expected a parameter of shape {spec.shape}, "
                    f"got {info.kind} '{info.name}' of shape {info.shape}"
                )
        return shared

    def fresh(self, stem: str) -> str:
        """A name that is free: the stem, with the first free counter where it is taken."""
        return self._table.fresh(stem)

    @final
    def append(
        self,
        operator: AbstractOperator,
        operands: Sequence[Tensor | None],
        parameters: Sequence[Tensor | None] = (),
        name: str | None = None,
    ) -> Tensor:
        """Apply an operator and give its first result; see ``apply``."""
        return self.apply(operator, operands, parameters, name)[0]

    def adopt(self, tensor: TensorInfo) -> Tensor:
        """Declare an input, parameter or buffer as another graph has it."""
        return self._table.handle(self._table.adopt(tensor))

    def loss(self, t: Tensor) -> None:
        """Name the loss: the scalar that a training step lowers.

        Raises:
            RequestError: There is one already, or the tensor is no scalar result.
        """
        self._table.check_ours("loss", t)
        if t.shape != () or t.dtype not in FLOAT_DTYPES:
            raise RequestError(
                f"loss: expected a scalar such as cross_entropy's result, got '{t.name}' of shape {t.shape}, {t.dtype}"
            )
        if self._loss is not None:
            raise RequestError(
                f"graph '{self.name}' has a loss already, '{self._table.tensors[self._loss].name}'; expected one"
            )
        self._loss = t.id

    def output(self, name: str, t: Tensor) -> None:
        """Name a tensor that evaluation returns.

        Raises:
            RequestError: The name is taken, or the tensor is another graph's.
        """
        info = self._table.check_ours(f"output '{name}'", t)
        if name in self._outputs:
            raise RequestError(f"graph '{self.name}' has an output '{name}' already; names must differ")
        if info.kind != "activation":
            raise RequestError(f"output '{name}': expected an operator's result, got {info.kind} '{t.name}'")
        self._outputs[name] = t.id

    def handle(self, name: str) -> Tensor:
        """A handle of the tensor of that name, to build on.

        Raises:
            RequestError: There is none.
        """
        return self._table.handle(self._table.by_name(name))


def _shape(where: str, shape: Sequence[int], dtype: str) -> Shape:
    """The extents, when they and the dtype are a tensor's."""
    extents = tuple(shape)
    if any(isinstance(extent, bool) or not isinstance(extent, int) or extent < 1 for extent in extents):
        raise RequestError(f"{where}: expected extents >= 1, got shape {extents}")
    if dtype not in DTYPES:
        if dtype in {"float16", "bfloat16"}:
            raise RequestError(
                f"{where}: dtype {dtype!r} is not supported: a graph is of float32, and a plan says what is computed "
                'in halves, such as mp.search(..., semantics={"precision": "bf16"})'
            )
        raise RequestError(f"{where}: dtype {dtype!r} is not supported{nearest(str(dtype), DTYPES)}")
    return extents


def _check_gradients(label: str, operator: AbstractOperator, bound: BoundRule, dtypes: tuple[str, ...]) -> None:
    """Refuse a gradient through a fold that is no sum: which part it belongs to, no part knows.

    Raises:
        RequestError: Names the result and the factor.
    """
    for place, (pattern, dtype) in enumerate(zip(bound.rule.results, dtypes, strict=True)):
        for factor in bound.factors:
            folded = factor.splittable and factor.name not in pattern.factors and bound.rule.fold(factor.name) != "+"
            if folded and dtype in REAL_DTYPES and place not in operator.detached and operator.differentiable != ():
                raise RequestError(
                    f"{label}: result {place} folds by {bound.rule.fold(factor.name)} over '{factor.name}', and has no "
                    f"gradient across parts; write '{factor.name}!', or detached=({place},)"
                )


def _is_parameter(info: TensorInfo | None, *, own: bool) -> bool:
    """Whether an operand is a parameter: one that exists, or the operator's own that is about to be created."""
    return own if info is None else info.kind == "parameter"
