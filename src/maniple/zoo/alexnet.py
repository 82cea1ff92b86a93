"""AlexNet in one column: Krizhevsky, One Weird Trick for Parallelizing Convolutional Neural Networks (2014)."""

from __future__ import annotations

from torch import Tensor, nn

from maniple.zoo.convolution_parts import SMALL_IMAGE
from maniple.zoo.model import ImageClassifier


class AlexNet(ImageClassifier):
    """Five convolutions and three linear layers, 61,100,840 parameters at full size.

    Args:
        image: Rows and columns; a small image has a first convolution of 5 x 5 without stride.
        classes: How many there are.
        shrink: Divides all widths.
    """

    def __init__(self, image: int = 224, classes: int = 1000, shrink: int = 1) -> None:
        super().__init__(image, classes)
        small = image < SMALL_IMAGE
        a, b, c, d, wide = (n // shrink for n in (64, 192, 384, 256, 4096))
        first = nn.Conv2d(3, a, 5, padding=2) if small else nn.Conv2d(3, a, 11, stride=4, padding=2)
        self.features = nn.Sequential(
            *(first, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(a, b, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(b, c, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(c, d, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(d, d, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        )
        side = image if small else (image - 7) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        self.classifier = nn.Sequential(
            *(nn.Dropout(), nn.Linear(d * side * side, wide), nn.ReLU(inplace=True)),
            *(nn.Dropout(), nn.Linear(wide, wide), nn.ReLU(inplace=True)),
            nn.Linear(wide, classes),
        )

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores
