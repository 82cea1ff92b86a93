"""Builder methods for layers: linear, pointwise operators, shapes, and whatever function, with torch.nn's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import final

from maniple.operators.graph.writer import GraphWriter
from maniple.operators.library.dense.linear import Linear
from maniple.operators.library.elementwise.pointwise import Add, ReLU
from maniple.operators.library.shapes.opaque import Opaque, source_of, trace_results
from maniple.operators.library.shapes.shape import Flatten, Reshape
from maniple.operators.operator.builder import Tensor, share
from maniple.process.error import RequestError


class LayerMethods(GraphWriter):
    """The methods that add layers."""

    @final
    def linear(
        self,
        x: Tensor,
        out_features: int,
        bias: Tensor | bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        weight: Tensor | None = None,
    ) -> Tensor:
        """``x W^T + b`` over the last dimension, as torch.nn.Linear.

        Args:
            x: (N, ..., in_features).
            out_features: The result is (N, ..., out_features).
            bias: Whether to add a bias, or an existing parameter to share.
            name: The node's name.
            weight: An existing parameter (out_features, in_features) to share.

        Raises:
            RequestError: The arguments do not fit.
        """
        if not x.shape:
            raise RequestError(f"linear: expected an input of at least 2 dimensions, got '{x.name}' of shape {x.shape}")
        operator = Linear(x.shape[-1], out_features, bias is not False)
        return self.append(operator, (x,), share(weight, bias=bias), name)

    @final
    def relu(self, x: Tensor, name: str | None = None) -> Tensor:
        """The elements that are above zero, zero elsewhere, as torch.nn.ReLU."""
        return self.append(ReLU(), (x,), (), name)

    @final
    def add(self, a: Tensor, b: Tensor, name: str | None = None) -> Tensor:
        """The sum of two tensors of equal shape.

        Raises:
            RequestError: The shapes or dtypes differ.
        """
        return self.append(Add(), (a, b), (), name)

    @final
    def flatten(self, x: Tensor, name: str | None = None) -> Tensor:
        """All dimensions but dimension 0 joined, as torch.nn.Flatten."""
        return self.append(Flatten(), (x,), (), name)

    @final
    def reshape(self, x: Tensor, shape: Sequence[int], name: str | None = None) -> Tensor:
        """The same elements in another shape; dimension 0, the samples, is kept.

        Args:
            x: The tensor.
            shape: All dimensions; one of them, or dimension 0, may be -1.
            name: The node's name.

        Raises:
            RequestError: The elements do not fit, or dimension 0 changes.
        """
        wanted = tuple(shape)
        if not wanted or not x.shape or wanted[0] not in (x.shape[0], -1):
            raise RequestError(f"reshape: expected dimension 0 (the samples) to stay, from {x.shape}, got {wanted}")
        tail, elements = wanted[1:], prod(x.shape[1:])
        if tail.count(-1) > 1:
            raise RequestError(f"reshape: expected at most one -1 after dimension 0, got {wanted}")
        if -1 in tail:
            known = prod(extent for extent in tail if extent != -1)
            if known < 1 or elements % known:
                raise RequestError(f"reshape: expected {elements} elements per sample, got {wanted}")
            tail = tuple(elements // known if extent == -1 else extent for extent in tail)
        return self.append(Reshape(tail), (x,), (), name)

    @final
    def call(
        self,
        function: Callable[..., object],
        *operands: Tensor | None,
        results: Sequence[tuple[Sequence[int], str]] | None = None,
        name: str | None = None,
    ) -> tuple[Tensor, ...]:
        """Any pure function of tensors, run whole on one processor, its gradient by autograd.

        Args:
            function: Gives a tensor or a tuple of tensors.
            operands: What it is called with.
            results: Shape and dtype of what it gives; found on tensors without values by default.
            name: The node's name.

        Raises:
            RequestError: The function does not run on tensors without values and ``results`` is not given.
        """
        if results is None:
            given = tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in operands)
            found = trace_results(function, given, "call" if name is None else name)
        else:
            found = tuple((tuple(shape), dtype) for shape, dtype in results)
        return self.apply(Opaque(function, found, source_of(function)), operands, (), name)
