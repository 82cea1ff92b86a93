"""SqueezeNet 1.0: Iandola et al., SqueezeNet: AlexNet-level Accuracy with 50x Fewer Parameters (2016), table 1."""

from __future__ import annotations

from torch import Tensor, nn

from maniple.zoo.convolution_parts import SMALL_IMAGE, Branches
from maniple.zoo.model import ImageClassifier


def fire(inputs: int, squeezed: int, expanded: int) -> nn.Sequential:
    """A squeezing 1 x 1 convolution, and expanding ones of 1 x 1 and 3 x 3 side by side."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, squeezed, 1), nn.ReLU(inplace=True)),
        Branches([nn.Conv2d(squeezed, expanded, 1), nn.Conv2d(squeezed, expanded, 3, padding=1)]),
        nn.ReLU(inplace=True),
    )


class SqueezeNet(ImageClassifier):
    """Eight fire modules between two convolutions.

    Args:
        image: Rows and columns; a small image has a 3 x 3 stem without stride.
        classes: How many there are.
        shrink: Divides all channels.
    """

    def __init__(self, image: int = 224, classes: int = 1000, shrink: int = 1) -> None:
        super().__init__(image, classes)
        first, *widths = (n // shrink for n in (96, 16, 32, 48, 64))
        a, b, c, d = widths
        small = image < SMALL_IMAGE
        self.features = nn.Sequential(
            nn.Conv2d(3, first, 3, padding=1) if small else nn.Conv2d(3, first, 7, stride=2),
            *(nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(fire(first, a, 4 * a), fire(8 * a, a, 4 * a), fire(8 * a, b, 4 * b), nn.MaxPool2d(3, 2)),
            *(fire(8 * b, b, 4 * b), fire(8 * b, c, 4 * c), fire(8 * c, c, 4 * c), fire(8 * c, d, 4 * d)),
            *(nn.MaxPool2d(3, 2), fire(8 * d, d, 4 * d)),
        )
        self.classifier = nn.Sequential(nn.Dropout(), nn.Conv2d(8 * d, classes, 1), nn.ReLU(inplace=True))

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(self.features(images))
        return scores.mean((2, 3))
