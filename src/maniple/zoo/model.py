"""What every model of the zoo is: a module whose forward gives the loss, and that knows its inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor, nn

from maniple.zoo.input_sample import Sample


class ZooModel(nn.Module, ABC):
    """A module that is called with a batch of every input and gives the mean loss."""

    @abstractmethod
    def samples(self) -> dict[str, Sample]:
        """The inputs by the names of forward's arguments, in their order."""


class ImageClassifier(ZooModel):
    """Tells classes of images apart.

    Args:
        image: Rows and columns of an image.
        classes: How many there are.
        channels: Of an image.
    """

    def __init__(self, image: int, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.image = image
        self.classes = classes
        self.channels = channels

    def samples(self) -> dict[str, Sample]:
        """Images and their classes."""
        return {"images": Sample((self.channels, self.image, self.image)), "labels": Sample((), self.classes)}

    @abstractmethod
    def logits(self, images: Tensor) -> Tensor:
        """Scores (N, classes) of images (N, channels, image, image)."""

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy."""
        return F.cross_entropy(self.logits(images), labels)


class TextClassifier(ZooModel):
    """Tells classes of texts apart.

    Args:
        words: The size of the vocabulary.
        steps: Words of a text.
        classes: How many there are.
    """

    def __init__(self, words: int, steps: int, classes: int) -> None:
        super().__init__()
        self.words = words
        self.steps = steps
        self.classes = classes

    def samples(self) -> dict[str, Sample]:
        """Texts as word numbers, and their classes."""
        return {"tokens": Sample((self.steps,), self.words), "labels": Sample((), self.classes)}

    @abstractmethod
    def logits(self, tokens: Tensor) -> Tensor:
        """Scores (N, classes) of texts (N, steps)."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy."""
        return F.cross_entropy(self.logits(tokens), labels)


class LanguageModel(ZooModel):
    """Guesses every next word of a text.

    Args:
        words: The size of the vocabulary.
        steps: Words of a text.
    """

    def __init__(self, words: int, steps: int) -> None:
        super().__init__()
        self.words = words
        self.steps = steps

    def samples(self) -> dict[str, Sample]:
        """Texts, and the word that follows each of their words."""
        text = Sample((self.steps,), self.words)
        return {"tokens": text, "following": text}


class Translator(ZooModel):
    """Guesses every next word of a translation.

    Args:
        words: The size of each vocabulary.
        steps: Words of a text.
    """

    def __init__(self, words: int, steps: int) -> None:
        super().__init__()
        self.words = words
        self.steps = steps

    def samples(self) -> dict[str, Sample]:
        """Texts, their translations, and the word that follows each word of the translation."""
        text = Sample((self.steps,), self.words)
        return {"source": text, "target": text, "following": text}


def word_loss(scores: Tensor, words: Tensor) -> Tensor:
    """The mean cross-entropy of scores (N, steps, vocabulary) and the right words (N, steps)."""
    return F.cross_entropy(scores.flatten(0, 1), words.flatten())
