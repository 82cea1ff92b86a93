"""Recurrent layers: LSTM and GRU over whole sequences, and their cells for one step."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.randomness.dropout import check_probability
from maniple.operators.operator.axes import check_at_least, present_shape
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Initial, Kernels, ParameterSpec
from maniple.operators.rules.rule import Rule, Saved, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.operators.library.randomness.dropout_mask import DropFactors
    from maniple.operators.operator.operator import TileContext

_GATES = {"lstm": 4, "gru": 3}


@final
@dataclass(frozen=True, slots=True)
class Recurrent(AbstractOperator):
    """torch.nn.LSTM and GRU: ``"s b i!, l! b h!, ... -> s! b o!, l! b h!"``, the samples split and all else whole.

    A step needs the step before it, so the sequence is not split; a gate needs the whole state, so nor is the state. To
    pipeline layers or steps, write cells. Between layers, elements are dropped by their place in the whole layer's
    result. Forward keeps what backward reads, as ``saved`` lists it.

    Operands: the sequence, the first hidden state, the first cell state of an LSTM (both or none), then for each layer
    and direction weight_ih, weight_hh, with a bias bias_ih and bias_hh, and with projections weight_hr. Results: the
    last layer's hidden states, the last hidden state of every layer and direction, for an LSTM the last cell states.

    Args:
        mode: ``"lstm"`` or ``"gru"``.
        input_size: Features of the sequence.
        hidden_size: Features of a state.
        num_layers: Layers on top of each other.
        bias: Whether there are biases.
        batch_first: Whether the sequence is (batch, steps, features) instead of (steps, batch, features).
        dropout: The probability that an element between two layers is zero in training.
        bidirectional: Whether each layer also runs backwards.
        proj_size: Features that an LSTM's hidden state is projected to; 0: it is not.
    """

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    proj_size: int = 0

    name: ClassVar[str] = "recurrent"
    gradients_together: ClassVar[bool] = True
    random: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None, results=(0,))

    def __post_init__(self) -> None:
        if self.mode not in _GATES:
            raise RequestError(f"recurrent.mode: expected lstm or gru, got {self.mode!r}")
        check_at_least(f"{self.mode}.input_size", self.input_size, 1)
        check_at_least(f"{self.mode}.hidden_size", self.hidden_size, 1)
        check_at_least(f"{self.mode}.num_layers", self.num_layers, 1)
        check_probability(self.mode, self.dropout)
        if not 0 <= self.proj_size < self.hidden_size or (self.proj_size and self.mode != "lstm"):
            raise RequestError(
                f"{self.mode}.proj_size: expected 0, or of an lstm less than hidden_size {self.hidden_size}, "
                f"got {self.proj_size}"
            )

    @property
    def output_size(self) -> int:
        """Features of a hidden state."""
        return self.proj_size or self.hidden_size

    @property
    def directions(self) -> int:
        """1, or 2 where each layer also runs backwards."""
        return 2 if self.bidirectional else 1

    @property
    def states(self) -> int:
        """The states of a layer: hidden and cell, or hidden alone."""
        return 2 if self.mode == "lstm" else 1

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.mode)
        if len(shape) != 3 or shape[2] != self.input_size:
            raise RequestError(f"{self.mode}: expected a sequence of 3 dimensions, {self.input_size} last, got {shape}")
        order = "b s! {0}" if self.batch_first else "s! b {0}"
        layers = self.num_layers * self.directions
        states = [f"{layers} b {width}" for width in (self.output_size, self.hidden_size)][: self.states]
        given = [order.format(self.input_size), *(f"[{state}]" for state in states)]
        given += [" ".join(map(str, spec.shape)) for spec in self.parameters()]
        results = [order.format(self.directions * self.output_size), *states]
        return Rule.parse(f"{', '.join(given)} -> {', '.join(results)}", saved=self.saved())

    def saved(self) -> tuple[Saved, ...]:
        """What forward keeps of every layer in every direction, and of what each inner layer gives."""
        layers, width = self.num_layers * self.directions, self.hidden_size
        found = [Saved("gates", f"{layers} s! b {4 * width}")]
        if self.mode == "lstm":
            found += [Saved("cells", f"{layers} s! b {width}"), Saved("squashed", f"{layers} s! b {width}")]
        if self.proj_size:
            found.append(Saved("full", f"{layers} s! b {width}"))
        if self.num_layers > 1:
            inner = f"{self.num_layers - 1} s! b {self.directions * self.output_size}"
            found += [Saved("hidden", inner), Saved("dropped", inner)][: 2 if self.dropout else 1]
        return tuple(found)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        initial = Initial("uniform", 1.0 / sqrt(self.hidden_size))
        gates, specs = _GATES[self.mode] * self.hidden_size, []
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else self.directions * self.output_size
            for suffix in ("", "_reverse")[: self.directions]:
                shapes: dict[str, Shape] = {"weight_ih": (gates, width), "weight_hh": (gates, self.output_size)}
                if self.bias:
                    shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
                if self.proj_size:
                    shapes["weight_hr"] = (self.proj_size, self.hidden_size)
                specs += [ParameterSpec(f"{key}_l{layer}{suffix}", shape, initial) for key, shape in shapes.items()]
        return tuple(specs)

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        (dtype,) = AbstractOperator.result_dtypes(self, dtypes, where)
        return (dtype,) * (1 + self.states)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: for each product of forward, backward has one for each of its operands."""
        weights = sum(rect.volume for rect in tile.operand_rects[1 + self.states :] if rect is not None)
        forward = 2 * weights * tile.extent("s") * tile.extent("b")
        return Cost(forward, 2 * forward)

    def draws(self, context: TileContext) -> tuple[DropFactors, ...]:
        """What dropout multiplies the inner layers' results by: these lie one after the other in one tensor."""
        from maniple.operators.library.randomness.dropout_mask import DropFactors
        from maniple.regions.rectangle import Rect

        if not (self.dropout and context.training):
            return ()
        (low, high), steps = context.tile.range("b"), context.extent("s")
        width = self.directions * self.output_size
        part = [(low, high), (0, steps)] if self.batch_first else [(0, steps), (low, high)]
        whole = [context.extent("b"), steps] if self.batch_first else [steps, context.extent("b")]
        found = []
        for layer in range(self.num_layers - 1):
            ranges = [(layer, layer + 1), *part, (0, width)]
            rect = Rect(tuple(first for first, _ in ranges), tuple(last for _, last in ranges))
            found.append(DropFactors(self.dropout, (self.num_layers, *whole, width), rect))
        return tuple(found)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.dense.recurrent_gradients import bind_backward
        from maniple.operators.library.dense.recurrent_kernels import bind_forward

        return Kernels(bind_forward, bind_backward)


@final
@dataclass(frozen=True, slots=True)
class RecurrentCell(AbstractOperator):
    """torch.nn.LSTMCell and GRUCell: one step of one layer, ``"b i!, b h!, ... -> b h!"``, the samples split.

    Operands: the input, the hidden state, the cell state of an LSTM, weight_ih, weight_hh, bias_ih, bias_hh. Results:
    the next states.

    Args:
        mode: ``"lstm"`` or ``"gru"``.
        input_size: Features of the input.
        hidden_size: Features of a state.
        bias: Whether there are biases.
    """

    mode: str
    input_size: int
    hidden_size: int
    bias: bool = True

    name: ClassVar[str] = "recurrent_cell"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None)

    def __post_init__(self) -> None:
        if self.mode not in _GATES:
            raise RequestError(f"recurrent_cell.mode: expected lstm or gru, got {self.mode!r}")
        check_at_least(f"{self.mode}_cell.input_size", self.input_size, 1)
        check_at_least(f"{self.mode}_cell.hidden_size", self.hidden_size, 1)

    @property
    def states(self) -> int:
        """The states: hidden and cell, or hidden alone."""
        return 2 if self.mode == "lstm" else 1

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        state = f"b {self.hidden_size}"
        given = [f"b {self.input_size}", *[state] * self.states]
        given += [" ".join(map(str, spec.shape)) for spec in self.parameters()]
        saved = [Saved("gates", f"b {4 * self.hidden_size}"), Saved("squashed", state)][: self.states]
        return Rule.parse(f"{', '.join(given)} -> {', '.join([state] * self.states)}", saved=saved)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        initial = Initial("uniform", 1.0 / sqrt(self.hidden_size))
        gates = _GATES[self.mode] * self.hidden_size
        shapes: dict[str, Shape] = {"weight_ih": (gates, self.input_size), "weight_hh": (gates, self.hidden_size)}
        if self.bias:
            shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
        return tuple(ParameterSpec(key, shape, initial) for key, shape in shapes.items())

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        (dtype,) = AbstractOperator.result_dtypes(self, dtypes, where)
        return (dtype,) * self.states

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: for each product of forward, backward has one for each of its operands."""
        weights = sum(rect.volume for rect in tile.operand_rects[1 + self.states :] if rect is not None)
        forward = 2 * weights * tile.extent("b")
        return Cost(forward, 2 * forward)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.dense.cell_kernels import KERNELS

        return KERNELS
