"""Networks of linear layers alone."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from maniple.zoo.input_sample import Sample
from maniple.zoo.model import ZooModel


class Perceptron(ZooModel):
    """Linear layers with an activation between them.

    Args:
        features: Of a sample, of every hidden layer, and the classes.
        activation: Makes the modules between layers.
    """

    def __init__(self, features: tuple[int, ...], activation: type[nn.ReLU | nn.SELU]) -> None:
        super().__init__()
        self.features = features
        self.layers = nn.Sequential()
        for inputs, outputs in pairwise(features[:-1]):
            self.layers.extend([nn.Linear(inputs, outputs), activation()])
        self.layers.append(nn.Linear(features[-2], features[-1]))

    def samples(self) -> dict[str, Sample]:
        """Vectors and their classes."""
        return {"x": Sample((self.features[0],)), "labels": Sample((), self.features[-1])}

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy."""
        return F.cross_entropy(self.layers(x), labels)


class MLP(Perceptron):
    """A perceptron of 784-2048-2048-10 features, by default."""

    def __init__(self, inputs: int = 784, width: int = 2048, classes: int = 10) -> None:
        super().__init__((inputs, width, width, classes), nn.ReLU)


class SNN(Perceptron):
    """A self-normalizing network: Klambauer et al., Self-Normalizing Neural Networks (2017).

    Args:
        layers: Hidden layers.
        width: Features of a hidden layer.
        inputs: Features of a sample: those of a CIFAR image.
        classes: How many there are.
    """

    def __init__(self, layers: int = 32, width: int = 2048, inputs: int = 3072, classes: int = 10) -> None:
        super().__init__((inputs, *(width,) * layers, classes), nn.SELU)
