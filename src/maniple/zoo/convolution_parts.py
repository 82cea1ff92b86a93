"""Parts that the convolutional networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Extents = int | tuple[int, int]

SMALL_IMAGE = 64
"""Images below this many rows, as CIFAR's 32, go through stems without strides: the usual ones would leave nothing."""


def convolution(inputs: int, outputs: int, kernel: Extents, stride: int = 1, padding: Extents = 0) -> nn.Sequential:
    """A convolution without bias, batch normalization, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Branches(nn.ModuleList):
    """Networks that read the same input; their channels are concatenated."""

    def forward(self, x: Tensor) -> Tensor:
        """The results side by side, in order."""
        return torch.cat([branch(x) for branch in self], 1)


def wide(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """A convolution of one row, as large as its input."""
    return convolution(inputs, outputs, (1, kernel), padding=(0, kernel // 2))


def high(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """A convolution of one column, as large as its input."""
    return convolution(inputs, outputs, (kernel, 1), padding=(kernel // 2, 0))
