"""The builder methods of convolutions and pools: one for each number of dimensions, shown as if it were written out."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.nn import functional as F

import maniple as mp
from maniple.process.error import RequestError

KINDS = {"conv": "Conv", "conv_transpose": "ConvTranspose", "max_pool": "MaxPool", "avg_pool": "AvgPool"}
NAMES = [f"{kind}{count}d" for kind in KINDS for count in (1, 2, 3)]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_shows_its_own_name_its_own_text_and_the_arguments_of_torch(name: str) -> None:
    method = getattr(mp.Graph, name)
    layer = KINDS[name[:-2]] + name[-2:]
    assert (method.__name__, method.__qualname__.split(".")[-1]) == (name, name)
    assert f"torch.nn.{layer}" in method.__doc__
    assert "Nd" not in method.__doc__
    own = list(inspect.signature(method).parameters)
    assert own[:2] == ["self", "x"]
    theirs = inspect.signature(getattr(torch.nn, layer)).parameters
    skipped = {"in_channels", "padding_mode", "device", "dtype", "return_indices"}
    assert [argument for argument in own[2:] if argument not in {"name", "weight"}] == [
        argument for argument in theirs if argument not in skipped
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_a_name_is_that_of_the_dimensions(count: int) -> None:
    g = mp.Graph("windows")
    x = g.input("x", (2, 3, *(6,) * count))
    assert getattr(g, f"conv{count}d")(x, 4, 3, padding="same").shape == (2, 4, *(6,) * count)
    assert getattr(g, f"conv_transpose{count}d")(x, 4, 2, stride=2).shape == (2, 4, *(12,) * count)
    assert getattr(g, f"max_pool{count}d")(x, 2).shape == (2, 3, *(3,) * count)
    assert getattr(g, f"avg_pool{count}d")(x, 2, 1, name="mean").name == "mean"
    other = g.input("other", (2, 3, *(6,) * (count % 3 + 1)))
    for name in NAMES:
        if name.endswith(f"{count}d"):
            more = () if "pool" in name else (4,)
            with pytest.raises(RequestError, match=f"{name}: expected {2 + count} dimensions"):
                getattr(g, name)(other, *more, 2)


@pytest.mark.parametrize("size", [(3, 2), (2, 3), 1])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_adaptive_pools_give_what_torch_gives(kind: str, size: int | tuple[int, int]) -> None:
    g = mp.Graph("adaptive")
    x = g.input("x", (2, 3, 6, 4), "float64")
    found = getattr(g, f"adaptive_{kind}_pool")(x, size)
    g.output("pooled", found)
    y = g.input("y", (2,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.flatten(found), 3), y))
    plan = mp.search(g, mp.Machine.cpu(1), strategy="data_parallel")
    given = torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with mp.Trainer(g, plan, optimizer=mp.SGD(0.1)) as trainer:
        pooled = trainer.evaluate(x=given)["pooled"]
    wanted = getattr(F, f"adaptive_{kind}_pool2d")(given, size)
    assert torch.allclose(pooled, wanted, rtol=0, atol=1e-12)


def test_an_adaptive_pool_of_too_many_dimensions_is_refused() -> None:
    g = mp.Graph("adaptive")
    with pytest.raises(RequestError, match="adaptive_max_pool: expected 3 to 5 dimensions"):
        g.adaptive_max_pool(g.input("x", (2, 3)), 1)
