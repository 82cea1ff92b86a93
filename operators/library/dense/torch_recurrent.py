"""Recurrent layers by torch's own functions: what kernels are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast, final

from maniple.operators.operator.torch_operator import TorchOperator

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.library.dense.recurrent import Recurrent, RecurrentCell
    from maniple.operators.library.randomness.dropout_mask import DropFactors
    from maniple.operators.operator.operator import TileContext
    from maniple.operators.rules.rule import Rule, Shape


@dataclass(frozen=True, slots=True)
class StandIn(TorchOperator):
    """An operator that torch computes, to be compared with one that has kernels; its rule is the other's."""

    instead: Recurrent | RecurrentCell

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """See ``AbstractOperator.rule``."""
        return self.instead.rule(shapes)


@final
@dataclass(frozen=True, slots=True)
class TorchRecurrent(StandIn):
    """torch.lstm and torch.gru, layer by layer, for torch would draw a mask of its own between them."""

    name: ClassVar[str] = "torch_recurrent"

    def draws(self, context: TileContext) -> tuple[DropFactors, ...]:
        """See ``TorchOperator.draws``."""
        return cast("Recurrent", self.instead).draws(context)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        import torch

        layers = cast("Recurrent", self.instead)
        x, directions = operands[0], layers.directions
        if x is None:
            raise TypeError(f"{layers.mode}: forward needs its sequence")
        each = directions * ((4 if layers.bias else 2) + (layers.proj_size > 0))
        rest = [operand for operand in operands[1 + layers.states :] if operand is not None]
        weights, drawn = rest[: each * layers.num_layers], rest[each * layers.num_layers :]
        batch, widths = x.shape[0 if layers.batch_first else 1], (layers.output_size, layers.hidden_size)
        first = [
            x.new_zeros((layers.num_layers * directions, batch, width)) if state is None else state
            for width, state in zip(widths, operands[1 : 1 + layers.states], strict=False)
        ]
        last: list[tuple[Tensor, ...]] = []
        for layer in range(layers.num_layers):
            states = [state[layer * directions : (layer + 1) * directions] for state in first]
            own = weights[layer * each : (layer + 1) * each]
            options = (layers.bias, 1, 0.0, context.training, layers.bidirectional, layers.batch_first)
            if layers.mode == "lstm":
                x, *ends = torch.lstm(x, states, own, *options)
            else:
                x, *ends = torch.gru(x, states[0], own, *options)
            last.append(tuple(ends))
            if layer < len(drawn):
                x = x * drawn[layer][0]
        return (x, *(torch.cat(states) for states in zip(*last, strict=True)))


@final
@dataclass(frozen=True, slots=True)
class TorchRecurrentCell(StandIn):
    """torch.lstm_cell and torch.gru_cell."""

    name: ClassVar[str] = "torch_recurrent_cell"

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        import torch

        del context
        cell = cast("RecurrentCell", self.instead)
        x, *rest = (operand for operand in operands if operand is not None)
        states, weights = rest[: cell.states], rest[cell.states :]
        if cell.mode == "lstm":
            return tuple(torch.lstm_cell(x, states, *weights))
        return (torch.gru_cell(x, states[0], *weights),)
