"""Inception-v4: Szegedy et al., Inception-v4, Inception-ResNet and the Impact of ... (2017), figures 3-9."""

from __future__ import annotations

from torch import Tensor, nn

from maniple.zoo.convolution_parts import SMALL_IMAGE, Branches, convolution, high, wide
from maniple.zoo.inception_v3 import pooled
from maniple.zoo.model import ImageClassifier


def stem(s: int, *, small: bool) -> nn.Sequential:
    """Figure 3; a small image passes it without strides."""
    stride, edge = (1, 1) if small else (2, 0)
    a, b, c, d = 32 // s, 64 // s, 96 // s, 192 // s
    return nn.Sequential(
        convolution(3, a, 3, stride, edge),
        *(convolution(a, a, 3, padding=edge), convolution(a, b, 3, padding=1)),
        Branches([nn.MaxPool2d(3, stride, padding=edge), convolution(b, c, 3, stride, edge)]),
        Branches(
            [
                nn.Sequential(convolution(b + c, b, 1), convolution(b, c, 3)),
                nn.Sequential(
                    *(convolution(b + c, b, 1), wide(b, b, 7), high(b, b, 7)),
                    convolution(b, c, 3),
                ),
            ]
        ),
        Branches([convolution(d, d, 3, stride, edge), nn.MaxPool2d(3, stride, padding=edge)]),
    )


def square(s: int) -> Branches:
    """Figure 4, Inception-A."""
    inputs, a, b = 384 // s, 64 // s, 96 // s
    return Branches(
        [
            pooled(inputs, b),
            convolution(inputs, b, 1),
            nn.Sequential(convolution(inputs, a, 1), convolution(a, b, 3, padding=1)),
            nn.Sequential(convolution(inputs, a, 1), convolution(a, b, 3, padding=1), convolution(b, b, 3, padding=1)),
        ]
    )


def halved(s: int) -> Branches:
    """Figure 7, Reduction-A, with the widths k, l, m, n = 192, 224, 256, 384 of table 1."""
    inputs, k, l, m, n = (width // s for width in (384, 192, 224, 256, 384))  # noqa: E741  (the paper's letters)
    return Branches(
        [
            nn.MaxPool2d(3, 2),
            convolution(inputs, n, 3, stride=2),
            nn.Sequential(convolution(inputs, k, 1), convolution(k, l, 3, padding=1), convolution(l, m, 3, stride=2)),
        ]
    )


def factored(s: int) -> Branches:
    """Figure 5, Inception-B."""
    inputs, a, b, c = (width // s for width in (1024, 192, 224, 256))
    return Branches(
        [
            pooled(inputs, 128 // s),
            convolution(inputs, 384 // s, 1),
            nn.Sequential(convolution(inputs, a, 1), wide(a, b, 7), high(b, c, 7)),
            nn.Sequential(
                *(convolution(inputs, a, 1), wide(a, a, 7), high(a, b, 7)),
                *(wide(b, b, 7), high(b, c, 7)),
            ),
        ]
    )


def quartered(s: int) -> Branches:
    """Figure 8, Reduction-B."""
    inputs, a, b, c = (width // s for width in (1024, 192, 256, 320))
    return Branches(
        [
            nn.MaxPool2d(3, 2),
            nn.Sequential(convolution(inputs, a, 1), convolution(a, a, 3, stride=2)),
            nn.Sequential(
                *(convolution(inputs, b, 1), wide(b, b, 7), high(b, c, 7)),
                convolution(c, c, 3, stride=2),
            ),
        ]
    )


def expanded(s: int) -> Branches:
    """Figure 6, Inception-C."""
    inputs, a, b, c, d = (width // s for width in (1536, 256, 384, 448, 512))
    return Branches(
        [
            pooled(inputs, a),
            convolution(inputs, a, 1),
            nn.Sequential(convolution(inputs, b, 1), Branches([wide(b, a, 3), high(b, a, 3)])),
            nn.Sequential(
                *(convolution(inputs, b, 1), wide(b, c, 3), high(c, d, 3)),
                Branches([high(d, a, 3), wide(d, a, 3)]),
            ),
        ]
    )


class InceptionV4(ImageClassifier):
    """Fourteen inception modules.

    Args:
        image: Rows and columns, 75 or more; a small image has a stem without strides.
        classes: How many there are.
        shrink: Divides all channels.
    """

    def __init__(self, image: int = 299, classes: int = 1000, shrink: int = 1) -> None:
        super().__init__(image, classes)
        s = shrink
        self.features = nn.Sequential(
            stem(s, small=image < SMALL_IMAGE),
            *(square(s) for _ in range(4)),
            halved(s),
            *(factored(s) for _ in range(7)),
            quartered(s),
            *(expanded(s) for _ in range(3)),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1536 // s, classes))

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return scores
