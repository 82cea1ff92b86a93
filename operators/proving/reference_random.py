"""Reference randomness: torch's dropout draws what a graph's operators draw, to compare a module with its import.

Dropout here is a function of (seed, step, operator, element), which torch's generator cannot give. Inside this context
the calls that a module makes of dropout, of attention and of recurrent layers with dropout, and of what gives random
tensors, are answered in their order by the graph's operators, run whole:

    with mp.testing.InjectedDropout(graph, seed=0, step=3):
        loss = module(x, y)          # the loss of step 3 of a trainer with seed 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from maniple.operators.library.dense.attention import Attention
from maniple.operators.library.dense.recurrent import Recurrent
from maniple.operators.library.dense.torch_recurrent import TorchRecurrent
from maniple.operators.library.randomness.draw import Draw
from maniple.operators.library.randomness.dropout import Dropout, DropoutVariant
from maniple.operators.operator.call_under_mode import call_under_mode
from maniple.operators.operator.operator import TileContext
from maniple.operators.operator.random_stream import RandomStream
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node

__all__: list[str] = []

# Functions in Python that draw inside, and the one whose code does it for them: it gives indices beside the result.
_DRAWING_WITHIN = frozenset(
    (
        *(F.multi_head_attention_forward, F.gumbel_softmax, torch.svd_lowrank, torch.pca_lowrank),
        *(F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices),
    )
)
_WITH_INDICES = {
    F.fractional_max_pool2d: F.fractional_max_pool2d_with_indices,
    F.fractional_max_pool3d: F.fractional_max_pool3d_with_indices,
}
_IN_PLACE = frozenset((torch.Tensor.bernoulli_, torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.exponential_))
_DRAWS = _IN_PLACE | {
    *(torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.randint, torch.randint_like),
    *(torch.normal, torch.bernoulli, torch.Tensor.bernoulli),
}
_RECURRENT = (torch.lstm, torch.gru)
_VARIANTS = (F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


@final
class InjectedDropout(TorchFunctionMode):
    """The context.

    Args:
        graph: The graph whose dropouts are drawn, for as many samples as the module is given (``Graph.with_batch``).
        seed: Of the trainer.
        step: From 0.

    Raises:
        RequestError: The module calls dropout more often than the graph has it, or less often, or otherwise.
    """

    def __init__(self, graph: Graph, seed: int, step: int) -> None:
        super().__init__()
        self._graph = graph
        signed = seed - (1 << 64) if seed >= 1 << 63 else seed
        self._clock = torch.tensor([signed, step])
        self._nodes = _drawing(graph)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """A call of a function of torch; see ``torch.overrides.TorchFunctionMode``."""
        del types
        named = dict(kwargs or {})
        if func is F.dropout:
            given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | named
            if given.get("training", True) and given.get("p", 0.5):
                return self._dropout(given["input"], given.get("p", 0.5))
        elif func in _VARIANTS:
            given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | named
            if given.get("training", func is not F.alpha_dropout) and given.get("p", 0.5):
                return self._variant(given["input"], given.get("p", 0.5))
        elif func in _DRAWS:
            return self._draw(func, args, named)
        elif func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given = dict(zip(names, args, strict=False)) | named
            if given.get("dropout_p"):
                return self._attention(*(given.get(name) for name in names[:4]))
        elif func in _RECURRENT:
            options = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train")
            given = dict(zip(options, args, strict=False)) | named
            if given["train"] and given["dropout"] and given["num_layers"] > 1:
                return self._recurrent(given["input"], given["hx"], given["params"])
        elif func in _DRAWING_WITHIN:
            return call_under_mode(func, args, named, self.__torch_function__)
        elif func in _WITH_INDICES:
            return call_under_mode(_WITH_INDICES[func], args, named, self.__torch_function__)[0]
        return func(*args, **named)

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        """End, and refuse a module that called dropout less often than the graph has it."""
        super().__exit__(kind, value, trace)  # type: ignore[no-untyped-call]
        left = [node.name for node in self._nodes]
        if kind is None and left:
            raise RequestError(f"injected dropout: the module did not call {left[0]!r}, nor {len(left) - 1} others")

    def _next(self, kind: type, p: float | None) -> Node:
        """The node that the next call stands for."""
        node = next(self._nodes, None)
        if node is None or not isinstance(node.operator, kind):
            found = "has no more" if node is None else f"has {node.name!r}"
            raise RequestError(
                f"injected dropout: the module calls {kind.__name__} where graph {self._graph.name!r} {found}"
            )
        if isinstance(node.operator, Dropout | DropoutVariant) and node.operator.p != p:
            raise RequestError(f"injected dropout: {node.name!r} has p={node.operator.p}, the module calls it with {p}")
        return node

    def _dropout(self, x: torch.Tensor, p: float) -> torch.Tensor:
        from maniple.operators.library.randomness.dropout_mask import drawn_factors
        from maniple.regions.rectangle import Rect

        node = self._next(Dropout, p)
        shape = tuple(x.shape)
        stream = RandomStream.of(node.name, self._clock)
        return x * drawn_factors(stream, p, shape, Rect.of_shape(shape), x.dtype)

    def _variant(self, x: torch.Tensor, p: float) -> torch.Tensor:
        node = self._next(DropoutVariant, p)
        context = self._context(node)
        shape = context.tile.result_rects[0].shape  # of one sample where the call gives none its axis
        return cast("DropoutVariant", node.operator).forward(context, (x.reshape(shape),)).reshape(x.shape)

    def _draw(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> torch.Tensor:
        """Numbers by the graph's stream; parameters that are no constants of the graph are the call's."""
        node = self._next(Draw, None)
        written = args[0] if func in _IN_PLACE else None
        values = [*args[written is not None :], *named.values()]
        given = iter([value for value in values if isinstance(value, torch.Tensor)])
        tensors = [self._graph.tensors[i] for i in node.given if i is not None]
        constants = [tensor.kind == "buffer" and not tensor.persistent for tensor in tensors]
        operands = tuple(
            self._graph.state[tensor.name] if constant else next(given)
            for tensor, constant in zip(tensors, constants, strict=True)
        )
        found = cast("Draw", node.operator).forward(self._context(node), operands)
        return found if written is None else written.copy_(found)

    def _context(self, node: Node) -> TileContext:
        """The whole of a node, in the step."""
        bound = self._graph.bound(node)
        (tile,) = bound.tiles({})
        return TileContext(tile, bound.extents(), node.operator, stream=RandomStream.of(node.name, self._clock))

    def _attention(self, *operands: torch.Tensor | None) -> torch.Tensor:
        node = self._next(Attention, None)
        (found,) = cast("Attention", node.operator).compute(self._context(node), operands)
        return found

    def _recurrent(self, x: torch.Tensor, first: Any, weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        node = self._next(Recurrent, None)
        states = (first,) if isinstance(first, torch.Tensor) else first
        layers = TorchRecurrent(cast("Recurrent", node.operator))
        return layers.compute(self._context(node), (x, *states, *weights))


def _drawing(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph that draw random numbers when it trains."""
    for node in graph.nodes:
        operator = node.operator
        if (
            isinstance(operator, Draw | Dropout | DropoutVariant)
            or (isinstance(operator, Attention) and operator.dropout_p)
            or (isinstance(operator, Recurrent) and operator.dropout and operator.num_layers > 1)
        ):
            yield node
