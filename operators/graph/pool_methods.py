"""Builder methods for pools, with torch.nn's arguments."""

from __future__ import annotations

from typing import final

from maniple.operators.graph.ranked_method import of_rank
from maniple.operators.graph.writer import GraphWriter
from maniple.operators.library.windows.pooling import AvgPool2d, MaxPool2d
from maniple.operators.library.windows.window_pooling import AdaptivePool, WindowPool
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.window_arguments import Extents, check_rank, extents
from maniple.process.error import RequestError


def _max_pool(
    count: int,
    self: GraphWriter,
    x: Tensor,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,  # as in torch.nn
    name: str | None = None,
) -> Tensor:
    """The maximum of every window, as torch.nn.MaxPoolNd; ``stride`` is ``kernel_size`` where it is not given.

    Raises:
        RequestError: The arguments do not fit.
    """
    operator = _pool("max", count, x, (kernel_size, stride, padding, dilation), ceil_mode=ceil_mode)
    return self.append(operator, (x,), (), name)


def _avg_pool(
    count: int,
    self: GraphWriter,
    x: Tensor,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    ceil_mode: bool = False,  # as in torch.nn
    count_include_pad: bool = True,  # as in torch.nn
    divisor_override: int | None = None,
    name: str | None = None,
) -> Tensor:
    """The mean of every window, as torch.nn.AvgPoolNd; ``stride`` is ``kernel_size`` where it is not given.

    Raises:
        RequestError: The arguments do not fit.
    """
    window = (kernel_size, stride, padding, 1)
    operator = _pool(
        "avg",
        count,
        x,
        window,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor_override=divisor_override,
    )
    return self.append(operator, (x,), (), name)


class PoolMethods(GraphWriter):
    """The methods that add pools; the number in a name counts the dimensions that windows move along."""

    max_pool1d = of_rank("max_pool1d", 1, _max_pool)
    """The maximum of every window, as torch.nn.MaxPool1d."""
    max_pool2d = of_rank("max_pool2d", 2, _max_pool)
    """The maximum of every window, as torch.nn.MaxPool2d."""
    max_pool3d = of_rank("max_pool3d", 3, _max_pool)
    """The maximum of every window, as torch.nn.MaxPool3d."""

    @final
    def avg_pool1d(
        self,
        x: Tensor,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,  # as in torch.nn
        count_include_pad: bool = True,  # as in torch.nn
        name: str | None = None,
    ) -> Tensor:
        """The mean of every window, as torch.nn.AvgPool1d, which has no ``divisor_override``; see ``avg_pool2d``."""
        return _avg_pool(1, self, x, kernel_size, stride, padding, ceil_mode, count_include_pad, None, name)

    avg_pool2d = of_rank("avg_pool2d", 2, _avg_pool)
    """The mean of every window, as torch.nn.AvgPool2d."""
    avg_pool3d = of_rank("avg_pool3d", 3, _avg_pool)
    """The mean of every window, as torch.nn.AvgPool3d."""

    @final
    def adaptive_max_pool(self, x: Tensor, output_size: Extents, name: str | None = None) -> Tensor:
        """The maxima that leave ``output_size`` rows, columns, ..., as torch.nn.AdaptiveMaxPool1d, 2d and 3d.

        Raises:
            RequestError: The arguments do not fit.
        """
        return self.append(_adaptive("max", x, output_size), (x,), (), name)

    @final
    def adaptive_avg_pool(self, x: Tensor, output_size: Extents, name: str | None = None) -> Tensor:
        """The means that leave ``output_size`` rows, columns, ..., as torch.nn.AdaptiveAvgPool1d, 2d and 3d.

        Raises:
            RequestError: The arguments do not fit.
        """
        return self.append(_adaptive("avg", x, output_size), (x,), (), name)


def _pool(
    kind: str,
    count: int,
    x: Tensor,
    window: tuple[Extents, Extents | None, Extents, Extents],
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> MaxPool2d | AvgPool2d | WindowPool:
    """The pool of a window: kernel size, stride, padding and dilation. Plain ones of images have compiled kernels."""
    where = f"{kind}_pool{count}d"
    check_rank(where, x, count)
    kernel = extents(f"{where}.kernel_size", window[0], count)
    stride = kernel if window[1] is None else extents(f"{where}.stride", window[1], count)
    padding = extents(f"{where}.padding", window[2], count)
    dilation = extents(f"{where}.dilation", window[3], count)
    if count == 2 and count_include_pad and not ceil_mode and divisor_override is None and set(dilation) == {1}:
        compiled = MaxPool2d if kind == "max" else AvgPool2d
        return compiled(_two(kernel), _two(stride), _two(padding))
    return WindowPool(kind, kernel, stride, padding, dilation, ceil_mode, count_include_pad, divisor_override)


def _adaptive(kind: str, x: Tensor, output_size: Extents) -> MaxPool2d | AvgPool2d | WindowPool | AdaptivePool:
    """The pool that leaves so many rows and columns."""
    where = f"adaptive_{kind}_pool"
    if not 3 <= len(x.shape) <= 5:
        raise RequestError(f"{where}: expected 3 to 5 dimensions (batch, channels, ...), got '{x.name}' {x.shape}")
    size = extents(f"{where}.output_size", output_size, len(x.shape) - 2)
    if all(extent % wanted == 0 for extent, wanted in zip(x.shape[2:], size, strict=True)):
        # Windows of one size: a pool, which can be split.
        window = tuple(extent // wanted for extent, wanted in zip(x.shape[2:], size, strict=True))
        return _pool(kind, len(size), x, (window, None, 0, 1))
    return AdaptivePool(kind, size)


def _two(value: tuple[int, ...]) -> tuple[int, int]:
    """Two integers as what they are."""
    first, second = value
    return first, second
