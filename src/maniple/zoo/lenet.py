"""LeNet-5: LeCun et al., Gradient-Based Learning Applied to Document Recognition (1998), section II.B."""

from __future__ import annotations

from torch import Tensor, nn

from maniple.zoo.model import ImageClassifier


class LeNet(ImageClassifier):
    """Two convolutions and three linear layers; every map of the second convolution reads all maps of the first."""

    def __init__(self, image: int = 32, classes: int = 10) -> None:
        super().__init__(image, classes, channels=1)
        side = (image - 4) // 2
        side = (side - 4) // 2
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * side * side, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes)
        )

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores
