"""DenseNet: Huang et al., Densely Connected Convolutional Networks (2017), table 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maniple.zoo.convolution_parts import SMALL_IMAGE
from maniple.zoo.model import ImageClassifier


class DenseLayer(nn.Module):
    """A bottleneck whose result is concatenated to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.grown = nn.Sequential(
            *(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The input and what it makes grow."""
        return torch.cat([x, self.grown(x)], 1)


class DenseNet121(ImageClassifier):
    """Four dense blocks of 6, 12, 24 and 16 layers.

    Args:
        image: Rows and columns; a small image has a 3 x 3 stem without stride and pool.
        classes: How many there are.
        shrink: Divides the growth of 32 channels a layer.
    """

    def __init__(self, image: int = 224, classes: int = 1000, shrink: int = 1) -> None:
        super().__init__(image, classes)
        growth = 32 // shrink
        channels = 2 * growth
        if image < SMALL_IMAGE:
            self.features = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False))
        else:
            self.features = nn.Sequential(
                *(nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(channels)),
                *(nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)),
            )
        for block, layers in enumerate((6, 12, 24, 16)):
            if block:
                half = channels // 2
                self.features.extend(
                    [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, half, 1, bias=False)]
                )
                self.features.append(nn.AvgPool2d(2))
                channels = half
            for _ in range(layers):
                self.features.append(DenseLayer(channels, growth))
                channels += growth
        self.features.append(nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, classes)

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(F.relu(self.features(images)).mean((2, 3)))
        return scores
