"""Builder methods for layers: linear, convolution, pools, shapes, and whatever function, with torch.nn's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import final

from maniple.operators.builder import AbstractBuilder, Tensor
from maniple.operators.library.convolution import Conv2d
from maniple.operators.library.linear import Linear
from maniple.operators.library.opaque import Opaque, source_of, traced_results
from maniple.operators.library.pointwise import Add, ReLU
from maniple.operators.library.pooling import AvgPool2d, MaxPool2d
from maniple.operators.library.shape import Flatten, Reshape
from maniple.regions.error import RequestError

Extents = int | Sequence[int]


class LayerMethods(AbstractBuilder):
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
        return self.append(operator, (x,), _shared(weight, bias=bias), name)

    @final
    def conv2d(
        self,
        x: Tensor,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: Tensor | bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        weight: Tensor | None = None,
    ) -> Tensor:
        """A convolution of images, as torch.nn.Conv2d.

        Args:
            x: (N, in_channels, height, width).
            out_channels: The result is (N, out_channels, rows, columns).
            kernel_size: Rows and columns of the window.
            stride: Input rows and columns between neighbouring windows.
            padding: Zero rows and columns at every border.
            dilation: Input rows and columns between elements of a window.
            groups: 1; others are not built.
            bias: Whether to add a bias, or an existing parameter to share.
            name: The node's name.
            weight: An existing parameter to share.

        Raises:
            RequestError: The arguments do not fit.
        """
        if groups != 1:
            raise RequestError(f"conv2d.groups: only 1 is built, got {groups!r}")
        _check_image("conv2d", x)
        operator = Conv2d(
            x.shape[1],
            out_channels,
            _pair("conv2d.kernel_size", kernel_size),
            _pair("conv2d.stride", stride),
            _pair("conv2d.padding", padding),
            _pair("conv2d.dilation", dilation),
            bias is not False,
        )
        return self.append(operator, (x,), _shared(weight, bias=bias), name)

    @final
    def max_pool2d(
        self,
        x: Tensor,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        dilation: Extents = 1,
        ceil_mode: bool = False,  # as in torch.nn
        name: str | None = None,
    ) -> Tensor:
        """The maximum of every window, as torch.nn.MaxPool2d; ``stride`` is ``kernel_size`` where it is not given.

        Raises:
            RequestError: The arguments do not fit; dilation and ceil_mode are not built.
        """
        if dilation not in (1, (1, 1), [1, 1]):
            raise RequestError(f"max_pool2d.dilation: only 1 is built, got {dilation!r}")
        window = _pool_window("max_pool2d", x, kernel_size, stride, padding, ceil_mode=ceil_mode)
        return self.append(MaxPool2d(*window), (x,), (), name)

    @final
    def avg_pool2d(
        self,
        x: Tensor,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,  # as in torch.nn
        name: str | None = None,
    ) -> Tensor:
        """The mean of every window, padded zeros included, as torch.nn.AvgPool2d.

        Raises:
            RequestError: The arguments do not fit; ceil_mode is not built.
        """
        window = _pool_window("avg_pool2d", x, kernel_size, stride, padding, ceil_mode=ceil_mode)
        return self.append(AvgPool2d(*window), (x,), (), name)

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
    def opaque(
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
            found = traced_results(function, given, "opaque" if name is None else name)
        else:
            found = tuple((tuple(shape), dtype) for shape, dtype in results)
        return self.apply(Opaque(function, found, source_of(function)), operands, (), name)


def _shared(weight: Tensor | None, *, bias: Tensor | bool) -> tuple[Tensor | None, ...]:
    """The tensors to share at the places of a weight and, where there is one, a bias."""
    if bias is False:
        return (weight,)
    return weight, bias if isinstance(bias, Tensor) else None


def _pair(name: str, value: Extents) -> tuple[int, int]:
    """Two integers from one or two."""
    if isinstance(value, int):
        return value, value
    pair = tuple(value)
    if len(pair) != 2:
        raise RequestError(f"{name}: expected an integer or two, got {value!r}")
    return pair[0], pair[1]


def _check_image(operator: str, x: Tensor) -> None:
    """Refuse an operand that is no batch of images."""
    if len(x.shape) != 4:
        raise RequestError(
            f"{operator}: expected 4 dimensions (batch, channels, height, width), got '{x.name}' {x.shape}"
        )


def _pool_window(
    operator: str, x: Tensor, kernel_size: Extents, stride: Extents | None, padding: Extents, *, ceil_mode: bool
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """The window of a pool as pairs."""
    _check_image(operator, x)
    if ceil_mode:
        raise RequestError(f"{operator}.ceil_mode: only False is built")
    kernel = _pair(f"{operator}.kernel_size", kernel_size)
    step = kernel if stride is None else _pair(f"{operator}.stride", stride)
    return kernel, step, _pair(f"{operator}.padding", padding)
