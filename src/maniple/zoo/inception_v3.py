"""Inception-v3: Szegedy et al., Rethinking the Inception Architecture (2016), table 1, without the auxiliary head."""

from __future__ import annotations

from torch import Tensor, nn

from maniple.zoo.convolution_parts import SMALL_IMAGE, Branches, convolution, high, wide
from maniple.zoo.model import ImageClassifier


def pooled(inputs: int, outputs: int) -> nn.Sequential:
    """The branch of an average pool and a 1 x 1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), convolution(inputs, outputs, 1))


def square(inputs: int, projected: int, s: int) -> Branches:
    """Figure 5: 1 x 1, 5 x 5, two of 3 x 3, and a pool."""
    a, b, c = 64 // s, 48 // s, 96 // s
    return Branches(
        [
            convolution(inputs, a, 1),
            nn.Sequential(convolution(inputs, b, 1), convolution(b, a, 5, padding=2)),
            nn.Sequential(convolution(inputs, a, 1), convolution(a, c, 3, padding=1), convolution(c, c, 3, padding=1)),
            pooled(inputs, projected // s),
        ]
    )


def factored(inputs: int, inner: int, s: int) -> Branches:
    """Figure 6 with n = 7: convolutions of 7 x 7 as pairs of 1 x 7 and 7 x 1."""
    c, out = inner // s, 192 // s
    return Branches(
        [
            convolution(inputs, out, 1),
            nn.Sequential(convolution(inputs, c, 1), wide(c, c, 7), high(c, out, 7)),
            nn.Sequential(
                *(convolution(inputs, c, 1), high(c, c, 7), wide(c, c, 7)),
                *(high(c, c, 7), wide(c, out, 7)),
            ),
            pooled(inputs, out),
        ]
    )


def expanded(inputs: int, s: int) -> Branches:
    """Figure 7: 3 x 3 convolutions as 1 x 3 and 3 x 1 side by side."""
    a, b = 384 // s, 448 // s

    def pair() -> Branches:
        return Branches([wide(a, a, 3), high(a, a, 3)])

    return Branches(
        [
            convolution(inputs, 320 // s, 1),
            nn.Sequential(convolution(inputs, a, 1), pair()),
            nn.Sequential(convolution(inputs, b, 1), convolution(b, a, 3, padding=1), pair()),
            pooled(inputs, 192 // s),
        ]
    )


def halved(inputs: int, s: int) -> Branches:
    """The first reduction: from figure 5's modules to figure 6's."""
    a, b = 64 // s, 96 // s
    return Branches(
        [
            convolution(inputs, 384 // s, 3, stride=2),
            nn.Sequential(convolution(inputs, a, 1), convolution(a, b, 3, padding=1), convolution(b, b, 3, stride=2)),
            nn.MaxPool2d(3, 2),
        ]
    )


def quartered(inputs: int, s: int) -> Branches:
    """The second reduction: from figure 6's modules to figure 7's."""
    a = 192 // s
    return Branches(
        [
            nn.Sequential(convolution(inputs, a, 1), convolution(a, 320 // s, 3, stride=2)),
            nn.Sequential(
                *(convolution(inputs, a, 1), wide(a, a, 7)),
                *(high(a, a, 7), convolution(a, a, 3, stride=2)),
            ),
            nn.MaxPool2d(3, 2),
        ]
    )


class InceptionV3(ImageClassifier):
    """Eleven inception modules.

    Args:
        image: Rows and columns, 75 or more; a small image has a stem without strides and pools.
        classes: How many there are.
        shrink: Divides all channels.
    """

    def __init__(self, image: int = 299, classes: int = 1000, shrink: int = 1) -> None:
        super().__init__(image, classes)
        s, small = shrink, image < SMALL_IMAGE
        stem = [
            convolution(3, 32 // s, 3, padding=1) if small else convolution(3, 32 // s, 3, stride=2),
            convolution(32 // s, 32 // s, 3, padding=int(small)),
            convolution(32 // s, 64 // s, 3, padding=1),
            nn.Identity() if small else nn.MaxPool2d(3, 2),
            convolution(64 // s, 80 // s, 1),
            convolution(80 // s, 192 // s, 3),
            nn.Identity() if small else nn.MaxPool2d(3, 2),
        ]
        self.features = nn.Sequential(
            *stem,
            *(square(192 // s, 32, s), square(256 // s, 64, s), square(288 // s, 64, s), halved(288 // s, s)),
            *(factored(768 // s, inner, s) for inner in (128, 160, 160, 192)),
            *(quartered(768 // s, s), expanded(1280 // s, s), expanded(2048 // s, s)),
        )
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(2048 // s, classes))

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return scores
