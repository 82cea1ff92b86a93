"""Builder methods for pools, with torch.nn's arguments."""

from __future__ import annotations

from typing import final

from maniple.operators.library.windows.pooling import AvgPool2d, MaxPool2d
from maniple.operators.library.windows.window_pooling import AdaptivePool, WindowPool
from maniple.operators.operator.builder import AbstractBuilder, Tensor
from maniple.operators.operator.window_arguments import Extents, check_rank, extents
from maniple.regions.error import RequestError


class PoolMethods(AbstractBuilder):
    """The methods that add pools; the number in a name counts the dimensions that windows move along."""

    @final
    def max_pool1d(
        self,
        x: Tensor,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        dilation: Extents = 1,
        ceil_mode: bool = False,  # as in torch.nn
        name: str | None = None,
    ) -> Tensor:
        """The maximum of every window, as torch.nn.MaxPool1d; see ``max_pool2d``."""
        return self._pool("max", 1, x, (kernel_size, stride, padding, dilation), name, ceil_mode=ceil_mode)

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
            RequestError: The arguments do not fit.
        """
        return self._pool("max", 2, x, (kernel_size, stride, padding, dilation), name, ceil_mode=ceil_mode)

    @final
    def max_pool3d(
        self,
        x: Tensor,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        dilation: Extents = 1,
        ceil_mode: bool = False,  # as in torch.nn
        name: str | None = None,
    ) -> Tensor:
        """The maximum of every window, as torch.nn.MaxPool3d; see ``max_pool2d``."""
        return self._pool("max", 3, x, (kernel_size, stride, padding, dilation), name, ceil_mode=ceil_mode)

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
        """The mean of every window, as torch.nn.AvgPool1d; see ``avg_pool2d``."""
        window = (kernel_size, stride, padding, 1)
        return self._pool("avg", 1, x, window, name, ceil_mode=ceil_mode, count_include_pad=count_include_pad)

    @final
    def avg_pool2d(
        self,
        x: Tensor,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,  # as in torch.nn
        count_include_pad: bool = True,  # as in torch.nn
        divisor_override: int | None = None,
        name: str | None = None,
    ) -> Tensor:
        """The mean of every window, as torch.nn.AvgPool2d.

        Raises:
            RequestError: The arguments do not fit.
        """
        window = (kernel_size, stride, padding, 1)
        return self._pool(
            "avg",
            2,
            x,
            window,
            name,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            divisor_override=divisor_override,
        )

    @final
    def avg_pool3d(
        self,
        x: Tensor,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,  # as in torch.nn
        count_include_pad: bool = True,  # as in torch.nn
        divisor_override: int | None = None,
        name: str | None = None,
    ) -> Tensor:
        """The mean of every window, as torch.nn.AvgPool3d; see ``avg_pool2d``."""
        window = (kernel_size, stride, padding, 1)
        return self._pool(
            "avg",
            3,
            x,
            window,
            name,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            divisor_override=divisor_override,
        )

    def _pool(
        self,
        kind: str,
        count: int,
        x: Tensor,
        window: tuple[Extents, Extents | None, Extents, Extents],
        name: str | None,
        *,
        ceil_mode: bool,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        where = f"{kind}_pool{count}d"
        check_rank(where, x, count)
        kernel = extents(f"{where}.kernel_size", window[0], count)
        stride = kernel if window[1] is None else extents(f"{where}.stride", window[1], count)
        padding = extents(f"{where}.padding", window[2], count)
        dilation = extents(f"{where}.dilation", window[3], count)
        plain = count_include_pad and not ceil_mode and divisor_override is None and set(dilation) == {1}
        if count == 2 and plain:
            compiled = MaxPool2d if kind == "max" else AvgPool2d
            return self.append(compiled(_two(kernel), _two(stride), _two(padding)), (x,), (), name)
        operator = WindowPool(kind, kernel, stride, padding, dilation, ceil_mode, count_include_pad, divisor_override)
        return self.append(operator, (x,), (), name)

    @final
    def adaptive_max_pool(self, x: Tensor, output_size: Extents, name: str | None = None) -> Tensor:
        """The maxima that leave ``output_size`` rows, columns, ..., as torch.nn.AdaptiveMaxPool1d, 2d and 3d.

        Raises:
            RequestError: The arguments do not fit.
        """
        return self._adaptive("max", x, output_size, name)

    @final
    def adaptive_avg_pool(self, x: Tensor, output_size: Extents, name: str | None = None) -> Tensor:
        """The means that leave ``output_size`` rows, columns, ..., as torch.nn.AdaptiveAvgPool1d, 2d and 3d.

        Raises:
            RequestError: The arguments do not fit.
        """
        return self._adaptive("avg", x, output_size, name)

    def _adaptive(self, kind: str, x: Tensor, output_size: Extents, name: str | None) -> Tensor:
        where = f"adaptive_{kind}_pool"
        if not 3 <= len(x.shape) <= 5:
            raise RequestError(f"{where}: expected 3 to 5 dimensions (batch, channels, ...), got '{x.name}' {x.shape}")
        size = extents(f"{where}.output_size", output_size, len(x.shape) - 2)
        if all(extent % wanted == 0 for extent, wanted in zip(x.shape[2:], size, strict=True)):
            # Windows of one size: a pool, which can be split.
            window = tuple(extent // wanted for extent, wanted in zip(x.shape[2:], size, strict=True))
            return self._pool(kind, len(size), x, (window, None, 0, 1), name, ceil_mode=False)
        return self.append(AdaptivePool(kind, size), (x,), (), name)


def _two(value: tuple[int, ...]) -> tuple[int, int]:
    """Two integers as what they are."""
    first, second = value
    return first, second
