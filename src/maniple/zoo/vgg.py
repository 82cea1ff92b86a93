"""VGG: Simonyan and Zisserman, Very Deep Convolutional Networks (2015), table 1, column D."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from maniple.zoo.model import ImageClassifier

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of every stage."""


class VGG16(ImageClassifier):
    """Thirteen convolutions and three linear layers.

    Args:
        image: Rows and columns, a multiple of 32.
        classes: How many there are.
        shrink: Divides all widths.
    """

    def __init__(self, image: int = 224, classes: int = 1000, shrink: int = 1) -> None:
        super().__init__(image, classes)
        wide = 4096 // shrink
        self.features = nn.Sequential(*_stages(shrink))
        self.classifier = nn.Sequential(
            *(nn.Linear(512 // shrink * (image // 32) ** 2, wide), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(wide, wide), nn.ReLU(inplace=True), nn.Dropout()),
            nn.Linear(wide, classes),
        )

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def _stages(shrink: int) -> Iterator[nn.Module]:
    """The convolutions, with a pool after every stage."""
    inputs = 3
    for channels, count in STAGES:
        for _ in range(count):
            yield nn.Conv2d(inputs, channels // shrink, 3, padding=1)
            yield nn.ReLU(inplace=True)
            inputs = channels // shrink
        yield nn.MaxPool2d(2)
