"""Builder methods for sequences: embedding, attention, recurrent layers, dropout, with torch.nn's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from maniple.operators.graph.writer import GraphWriter
from maniple.operators.library.dense.attention import Attention
from maniple.operators.library.dense.embedding import Embedding
from maniple.operators.library.dense.recurrent import Recurrent, RecurrentCell
from maniple.operators.library.randomness.dropout import Dropout, DropoutVariant
from maniple.operators.operator.builder import Tensor
from maniple.process.error import RequestError

Parameters = Sequence[Tensor | None]


class SequenceMethods(GraphWriter):
    """The methods that add what models of sequences are made of."""

    @final
    def embedding(
        self,
        x: Tensor,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        name: str | None = None,
        *,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Rows of a table, as torch.nn.Embedding.

        Args:
            x: (N, ...) row numbers, int64 or int32.
            num_embeddings: Rows of the table.
            embedding_dim: The result is (N, ..., embedding_dim).
            padding_idx: The row that has no gradient; a negative one counts from the end.
            name: The node's name.
            weight: An existing parameter (num_embeddings, embedding_dim) to share.

        Raises:
            RequestError: The arguments do not fit.
        """
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        return self.append(Embedding(num_embeddings, embedding_dim, padding_idx), (x,), (weight,), name)

    @final
    def dropout(self, x: Tensor, p: float = 0.5, name: str | None = None) -> Tensor:
        """Elements set to zero with probability ``p`` in training and the others scaled, as torch.nn.Dropout.

        Raises:
            RequestError: ``p`` is no probability.
        """
        return self.append(Dropout(p), (x,), (), name)

    @final
    def dropout1d(self, x: Tensor, p: float = 0.5, name: str | None = None) -> Tensor:
        """Whole channels of (N, channels, ...) set to zero, as torch.nn.Dropout1d; ``dropout2d`` and 3d are the same.

        Raises:
            RequestError: ``p`` is no probability, or there are no channels.
        """
        return self.append(DropoutVariant(p, channels=True), (x,), (), name or self.fresh("dropout1d"))

    dropout2d = dropout3d = dropout1d

    @final
    def scaled_dot_product_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # as in torch.nn
        scale: float | None = None,
        enable_gqa: bool = False,  # as in torch.nn
        name: str | None = None,
    ) -> Tensor:
        """Values weighted by the softmax of products of queries and keys, as torch.nn.functional has it.

        Args:
            query: (N, ..., heads, queries, features).
            key: (N, ..., heads, keys, features).
            value: (N, ..., heads, keys, width); the result is (N, ..., heads, queries, width).
            attn_mask: Broadcasts to the scores; bool: which keys take part, float: added to the scores.
            dropout_p: The probability that a weight is zero in training.
            is_causal: Whether query ``i`` sees keys ``0..i`` only.
            scale: Of the products; 1/sqrt(features) by default.
            enable_gqa: Whether several heads of queries share one of keys and values.
            name: The node's name.

        Raises:
            RequestError: The arguments do not fit.
        """
        return self.append(Attention(dropout_p, is_causal, scale, enable_gqa), (query, key, value, attn_mask), (), name)

    @final
    def lstm(
        self,
        x: Tensor,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,  # as in torch.nn
        batch_first: bool = False,  # as in torch.nn
        dropout: float = 0.0,
        bidirectional: bool = False,  # as in torch.nn
        proj_size: int = 0,
        name: str | None = None,
        *,
        hx: tuple[Tensor, Tensor] | None = None,
        parameters: Parameters = (),
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A long short-term memory over a sequence, as torch.nn.LSTM.

        Args:
            x: (steps, N, features), or (N, steps, features) with ``batch_first``.
            hidden_size: Features of a state.
            num_layers: Layers on top of each other.
            bias: Whether there are biases.
            batch_first: The order of x's dimensions.
            dropout: The probability that an element between two layers is zero in training.
            bidirectional: Whether each layer also runs backwards.
            proj_size: Features that hidden states are projected to; 0: they are not.
            name: The node's name.
            hx: The first hidden and cell states, (layers * directions, N, proj_size or hidden_size) and (layers *
                directions, N, hidden_size); zeros by default.
            parameters: Existing parameters to share, in torch.nn's order.

        Returns:
            The last layer's hidden states, and the last hidden and cell states of all layers.

        Raises:
            RequestError: The arguments do not fit.
        """
        operator = Recurrent(
            "lstm", _features(x, "lstm"), hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size
        )
        result, hidden, cell = self.apply(operator, (x, *(hx or (None, None))), parameters, name or self.fresh("lstm"))
        return result, hidden, cell

    @final
    def gru(
        self,
        x: Tensor,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,  # as in torch.nn
        batch_first: bool = False,  # as in torch.nn
        dropout: float = 0.0,
        bidirectional: bool = False,  # as in torch.nn
        name: str | None = None,
        *,
        hx: Tensor | None = None,
        parameters: Parameters = (),
    ) -> tuple[Tensor, Tensor]:
        """A gated recurrent unit over a sequence, as torch.nn.GRU; see ``lstm``.

        Returns:
            The last layer's hidden states, and the last hidden states of all layers.

        Raises:
            RequestError: The arguments do not fit.
        """
        operator = Recurrent(
            "gru", _features(x, "gru"), hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        result, hidden = self.apply(operator, (x, hx), parameters, name or self.fresh("gru"))
        return result, hidden

    @final
    def lstm_cell(
        self,
        x: Tensor,
        hx: tuple[Tensor, Tensor],
        bias: bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        parameters: Parameters = (),
    ) -> tuple[Tensor, Tensor]:
        """One step of a long short-term memory, as torch.nn.LSTMCell.

        Args:
            x: (N, features).
            hx: The hidden and the cell state, (N, hidden_size) each.
            bias: Whether there are biases.
            name: The node's name.
            parameters: Existing parameters to share: those of another step of the same cell.

        Returns:
            The next hidden and cell state.

        Raises:
            RequestError: The arguments do not fit.
        """
        operator = RecurrentCell("lstm", _features(x, "lstm_cell"), _features(hx[0], "lstm_cell"), bias)
        hidden, cell = self.apply(operator, (x, *hx), parameters, name or self.fresh("lstm_cell"))
        return hidden, cell

    @final
    def gru_cell(
        self,
        x: Tensor,
        hx: Tensor,
        bias: bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        parameters: Parameters = (),
    ) -> Tensor:
        """One step of a gated recurrent unit, as torch.nn.GRUCell; see ``lstm_cell``. Gives the next state.

        Raises:
            RequestError: The arguments do not fit.
        """
        operator = RecurrentCell("gru", _features(x, "gru_cell"), _features(hx, "gru_cell"), bias)
        return self.append(operator, (x, hx), parameters, name or self.fresh("gru_cell"))


def _features(x: Tensor, operator: str) -> int:
    """The extent of the last dimension.

    Raises:
        RequestError: There is none.
    """
    if len(x.shape) < 2:
        raise RequestError(f"{operator}: expected an input (samples, ..., features), got '{x.name}' {x.shape}")
    return x.shape[-1]
