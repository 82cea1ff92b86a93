"""Stacks of LSTM layers, unrolled: RNNTC, RNNLM and the residual LSTM.

A fused LSTM over a whole text is one task, and layers would run one after the other. As in FlexFlow's networks (Jia et
al., Beyond Data and Model Parallelism, section 8; 8 steps to an LSTM operator in its first release), a layer is a chain
of operators over `chunk` steps each, which share their parameters. With 4 chunks, layers as rows and time as columns,
what can run at once is a diagonal:

    | layer | 1 | 2 | 3 | 4 | 5 |
    |-------|---|---|---|---|---|
    | 0     | a | b | c | d |   |
    | 1     |   | a | b | c | d |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from maniple.zoo.model import LanguageModel, TextClassifier, word_loss

State = tuple[Tensor, Tensor]


class UnrolledLSTM(nn.Module):
    """Layers of LSTM, each a chain of operators over some steps.

    Args:
        width: Features of a step, and of every layer.
        layers: How many there are.
        residual: Whether each layer but the first adds its input to its result.
    """

    def __init__(self, width: int, layers: int, *, residual: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.residual = residual

    def forward(self, parts: Sequence[Tensor], states: list[State] | None = None) -> tuple[list[Tensor], list[State]]:
        """The last layer's results (N, chunk, width) for every part, and every layer's last state.

        Args:
            parts: The text, cut along its steps: (N, chunk, width) each.
            states: Every layer's first state; None: zeros.
        """
        last = []
        results = list(parts)
        for number, layer in enumerate(self.layers):
            state = states[number] if states else None
            for place, part in enumerate(results):
                result, state = layer(part, state)
                results[place] = result + part if self.residual and number else result
            if state is not None:
                last.append(state)
        return results, last


def part_losses(scores: Sequence[Tensor], words: Sequence[Tensor]) -> Tensor:
    """The mean cross-entropy over parts of equal length."""
    losses = [word_loss(part, right) for part, right in zip(scores, words, strict=True)]
    return torch.stack(losses).mean()


class RecurrentClassifier(TextClassifier):
    """An embedding, LSTM layers, and a softmax over what the last step gives.

    Args:
        words: The size of the vocabulary.
        width: Features of a step.
        layers: Of LSTM.
        steps: Words of a text, a multiple of `chunk`.
        chunk: Steps of one operator.
        classes: How many there are.
        residual: Whether layers have shortcuts.
    """

    def __init__(
        self, words: int, width: int, layers: int, steps: int, chunk: int, classes: int, *, residual: bool
    ) -> None:
        super().__init__(words, steps, classes)
        self.chunk = chunk
        self.embedding = nn.Embedding(words, width)
        self.lstm = UnrolledLSTM(width, layers, residual=residual)
        self.classifier = nn.Linear(width, classes)

    def logits(self, tokens: Tensor) -> Tensor:
        """See ``TextClassifier.logits``."""
        hidden, _ = self.lstm([self.embedding(part) for part in torch.split(tokens, self.chunk, 1)])
        scores: Tensor = self.classifier(hidden[-1][:, -1])
        return scores


class RNNTC(RecurrentClassifier):
    """Text classification by four LSTM layers."""

    def __init__(
        self, words: int = 20000, width: int = 1024, layers: int = 4, steps: int = 40, chunk: int = 8, classes: int = 2
    ) -> None:
        super().__init__(words, width, layers, steps, chunk, classes, residual=False)


class ResidualLSTM(RecurrentClassifier):
    """LSTM layers with shortcuts around each: Prakash et al., Neural Paraphrase Generation (2016); our sizes."""

    def __init__(
        self, words: int = 20000, width: int = 512, layers: int = 8, steps: int = 64, chunk: int = 8, classes: int = 2
    ) -> None:
        super().__init__(words, width, layers, steps, chunk, classes, residual=True)


class RNNLM(LanguageModel):
    """A language model: an embedding, two LSTM layers, and a softmax over all words at every step."""

    def __init__(self, words: int = 10000, width: int = 2048, layers: int = 2, steps: int = 40, chunk: int = 8) -> None:
        super().__init__(words, steps)
        self.chunk = chunk
        self.embedding = nn.Embedding(words, width)
        self.lstm = UnrolledLSTM(width, layers)
        self.classifier = nn.Linear(width, words)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """The mean cross-entropy over all words."""
        hidden, _ = self.lstm([self.embedding(part) for part in torch.split(tokens, self.chunk, 1)])
        return part_losses([self.classifier(part) for part in hidden], torch.split(following, self.chunk, 1))
