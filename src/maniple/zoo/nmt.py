"""NMT: translation by LSTMs with attention, in FlexFlow's sizes.

Luong et al., Effective Approaches to Attention-based Neural Machine Translation (2015), sections 3.1 and 4. The sizes
are those of Jia et al., Beyond Data and Model Parallelism, section 8, and FlexFlow 1.0: 2 + 2 layers of 1024, 32,000
words, 40 steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maniple.zoo.model import Translator
from maniple.zoo.unrolled_lstm import UnrolledLSTM, part_losses


class NMT(Translator):
    """An encoder and a decoder of LSTM layers, global attention with dot products, and a softmax over all words."""

    def __init__(self, words: int = 32000, width: int = 1024, layers: int = 2, steps: int = 40, chunk: int = 8) -> None:
        super().__init__(words, steps)
        self.chunk = chunk
        self.source_embedding = nn.Embedding(words, width)
        self.target_embedding = nn.Embedding(words, width)
        self.encoder = UnrolledLSTM(width, layers)
        self.decoder = UnrolledLSTM(width, layers)
        self.attended = nn.Linear(2 * width, width, bias=False)
        self.classifier = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        """The mean cross-entropy over all words."""
        encoded, states = self.encoder([self.source_embedding(part) for part in torch.split(source, self.chunk, 1)])
        decoded, _ = self.decoder([self.target_embedding(part) for part in torch.split(target, self.chunk, 1)], states)
        memory = torch.cat(encoded, 1)
        return part_losses([self.scores(part, memory) for part in decoded], torch.split(following, self.chunk, 1))

    def scores(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """The scores (N, chunk, words) of some steps that attend to the whole source (N, steps, width)."""
        weights = torch.softmax(hidden @ memory.transpose(1, 2), 2)
        attended = torch.tanh(self.attended(torch.cat([weights @ memory, hidden], 2)))
        result: Tensor = self.classifier(attended)
        return result
