"""Plain torch with the masks that a graph draws: so that a module with dropout can be its judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor

from maniple.operators.graph.graph import Graph
from maniple.operators.graph.node import Node
from maniple.operators.library.dense.attention import Attention
from maniple.operators.library.randomness.draw import DISTRIBUTIONS, Draw
from maniple.operators.library.randomness.draw_kernels import uniforms
from maniple.operators.library.randomness.dropout import Dropout, DropoutVariant
from maniple.operators.library.randomness.dropout_mask import drawn_factors
from maniple.operators.operator.random_stream import RandomStream
from maniple.regions.rectangle import Rect


@contextmanager
def masks_of(graph: Graph, seed: int, step: int) -> Iterator[None]:
    """Let torch's dropout and attention, in the order of their calls, drop what the graph's operators drop.

    Args:
        graph: an imported module.
        seed: of the trainer.
        step: the number of the step.
    """
    clock = torch.tensor([seed, step])
    names = iter([node.name for node in graph.nodes if isinstance(node.operator, Dropout)])
    attentions = iter([node for node in graph.nodes if isinstance(node.operator, Attention)])

    def factors(name: str, p: float, value: Tensor) -> Tensor:
        shape = tuple(value.shape)
        return drawn_factors(RandomStream.of(name, clock), p, shape, Rect.of_shape(shape), value.dtype)

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        return input * factors(next(names), p, input) if training and p else input

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        name = next(attentions).name
        if enable_gqa:
            key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = scores.softmax(-1)
        return (weights * factors(name, dropout_p, weights) if dropout_p else weights) @ value

    with (
        mock.patch("torch.nn.functional.dropout", dropout),
        mock.patch("torch.nn.functional.scaled_dot_product_attention", attention),
        ExitStack() as stack,
    ):
        _replace_draws(stack, [node for node in graph.nodes if isinstance(node.operator, Draw | DropoutVariant)], clock)
        yield


def _replace_draws(stack: ExitStack, nodes: Sequence[Node], clock: Tensor) -> None:
    """Let torch's functions that draw, in the order of their calls, give what the graph's operators draw.

    Args:
        stack: ends it.
        nodes: of the graph.
        clock: seed and step.
    """
    following = iter(nodes)

    def draw(shape: Sequence[int], dtype: torch.dtype, *parameters: float | Tensor) -> Tensor:
        node = next(following)
        assert isinstance(node.operator, Draw)
        whole = tuple(shape)
        u, v = uniforms(RandomStream.of(node.name, clock), whole, Rect.of_shape(whole))
        given = [torch.as_tensor(parameter, dtype=torch.float64) for parameter in parameters]
        return DISTRIBUTIONS[node.operator.distribution](u, v, *given).to(dtype)

    def variant(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        node = next(following)
        assert isinstance(node.operator, DropoutVariant)
        count = 2 if node.operator.channels else x.ndim
        shape = tuple(x.shape)[:count]
        factors = drawn_factors(RandomStream.of(node.name, clock), p, shape, Rect.of_shape(shape), x.dtype)
        factors = factors.reshape(*shape, *[1] * (x.ndim - count))
        if not node.operator.alpha:
            return x * factors
        # torch: noise.bernoulli_(1 - p); a = 1 / sqrt((alpha^2 p + 1)(1 - p)); x * noise * a + alpha a (noise - 1 + p)
        noise, alpha = factors * (1 - p), 1.7580993408473766
        a = 1 / math.sqrt((alpha**2 * p + 1) * (1 - p))
        return x * (noise * a) + (noise - 1) * alpha * a + alpha * a * p

    functions: dict[str, Callable[..., Tensor]] = {
        "randn_like": lambda x: draw(x.shape, x.dtype, 0, 1),
        "rand_like": lambda x: draw(x.shape, x.dtype, 0, 1),
        "rand": lambda *shape, dtype: draw(shape, dtype, 0, 1),
        "randint_like": lambda x, high: draw(x.shape, x.dtype, 0, high),
        "normal": lambda mean, deviation: draw(mean.shape, mean.dtype, mean, deviation),
        "bernoulli": lambda x: draw(x.shape, x.dtype, x),
        "Tensor.bernoulli_": lambda x, p: draw(x.shape, x.dtype, p),
        "Tensor.exponential_": lambda x: draw(x.shape, x.dtype, 1),
        "Tensor.uniform_": lambda x, low, high: draw(x.shape, x.dtype, low, high),
    }
    for name in ("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        functions[f"nn.functional.{name}"] = variant
    for name, function in functions.items():
        stack.enter_context(mock.patch(f"torch.{name}", function))
