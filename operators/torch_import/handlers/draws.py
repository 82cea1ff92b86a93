"""Draws: torch's random tensors, by the library's stream instead of torch's generator."""

from __future__ import annotations

from typing import Any

import torch

from maniple.operators.library.randomness.draw import DTYPES, Draw
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.pattern_text import broadcast, text
from maniple.operators.torch_import.exported_call import Call, Known
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.translation import Translation


def draw(into: Translation, call: Call, distribution: str, *parameters: Any) -> Any:
    """A tensor of the call's shape and dtype; parameters are numbers, or tensors that repeat along it."""
    if call.dtypes[0] not in DTYPES or not call.shape:
        return None
    given = [into.broadcastable(item if isinstance(item, Tensor | Known) else _as_known(item)) for item in parameters]
    patterns, result = broadcast(call.shape, [tensor.shape for tensor in given])
    sizes = tuple(
        (name, extent)
        for name, extent in zip(result, call.shape, strict=True)
        if all(name not in pattern for pattern in patterns)
    )
    return into.apply(Draw(distribution, text(patterns, [result]), call.dtypes[0], sizes), given)[0]


def _as_known(number: float) -> Known:
    return Known(torch.tensor(float(number), dtype=torch.float64))


@handles("rand", "rand_like")
def _rand(into: Translation, call: Call) -> Any:
    return draw(into, call, "uniform", 0, 1)


@handles("uniform")
def _uniform(into: Translation, call: Call) -> Any:
    return draw(into, call, "uniform", call["from"], call["to"])


@handles("randn", "randn_like")
def _randn(into: Translation, call: Call) -> Any:
    return draw(into, call, "normal", 0, 1)


@handles("normal", "normal_functional")
def _normal(into: Translation, call: Call) -> Any:
    return draw(into, call, "normal", call["mean"], call["std"])


@handles("bernoulli")
def _bernoulli(into: Translation, call: Call) -> Any:
    return draw(into, call, "bernoulli", call["self"] if call.arguments.get("p") is None else call["p"])


@handles("exponential")
def _exponential(into: Translation, call: Call) -> Any:
    return draw(into, call, "exponential", call["lambd"])


@handles("randint", "randint_like")
def _randint(into: Translation, call: Call) -> Any:
    return draw(into, call, "integers", call.arguments.get("low", 0), call["high"])
