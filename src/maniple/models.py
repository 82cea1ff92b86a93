"""Models by name: graphs of the zoo, and what `maniple list models` says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.regions.error import RequestError, nearest
from maniple.zoo.handwritten import digits_cnn as digits_cnn
from maniple.zoo.handwritten import mlp as mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.operators.graph import Graph

__all__: list[str] = []

_HANDWRITTEN: dict[str, Callable[..., Graph]] = {"digits_cnn": digits_cnn, "mlp": mlp}


def model_names() -> list[str]:
    """The names of all models, sorted."""
    from maniple.zoo.catalogue import ENTRIES

    return sorted({*ENTRIES, *_HANDWRITTEN})


def described_models() -> list[dict[str, object]]:
    """What each model of the zoo is at full size: name, default (global) batch, inputs of a batch, parameters."""
    import torch

    from maniple.zoo.catalogue import ENTRIES

    rows: list[dict[str, object]] = []
    for name, entry in sorted(ENTRIES.items()):
        with torch.device("meta"):
            samples = entry.make().samples()
        inputs = {key: {"shape": [entry.batch, *s.shape], "dtype": s.dtype} for key, s in samples.items()}
        rows.append({"name": name, "batch": entry.batch, "inputs": inputs, "parameters": entry.parameters})
    return rows


def model(name: str, batch: int | None = None) -> Graph:
    """Build a model of the zoo as a task graph.

    Args:
        name: its name.
        batch: samples of a step, over all processors; the model's own number by default.

    Raises:
        RequestError: there is no such model.
    """
    if name in _HANDWRITTEN:
        return _HANDWRITTEN[name]() if batch is None else _HANDWRITTEN[name](batch=batch)
    names = model_names()
    if name not in names:
        raise RequestError(f"there is no model {name!r}{nearest(name, names)}")
    raise RequestError(f"model {name!r}: torch modules cannot be imported yet; use {' or '.join(_HANDWRITTEN)}")
