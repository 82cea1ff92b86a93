"""Models by name: graphs of the zoo, and what `maniple list models` says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.process.error import RequestError, nearest
from maniple.zoo.handwritten import digits_cnn as digits_cnn
from maniple.zoo.handwritten import mlp as mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from maniple.operators.graph.graph import Graph
    from maniple.zoo.catalogue import Entry
    from maniple.zoo.model import ZooModel

__all__: list[str] = []

_HANDWRITTEN: dict[str, Callable[..., Graph]] = {"digits_cnn": digits_cnn}


def model_names() -> list[str]:
    """The names of all models, sorted."""
    from maniple.zoo.catalogue import ENTRIES

    return sorted({*ENTRIES, *_HANDWRITTEN})


def describe_models() -> list[dict[str, object]]:
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


def model(name: str, batch: int | None = None, **sizes: int) -> Graph:
    """Build a model of the zoo as a task graph.

    The module is imported without its weights; their initial values are torch's own of seed 0, computed when a trainer
    asks for them.

    Args:
        name: its name.
        batch: samples of a step, over all processors; the model's own number by default.
        sizes: arguments of the model, e.g. `image=32, classes=10`; its published ones by default.

    Raises:
        RequestError: there is no such model, or it has no such argument.
    """
    if name in _HANDWRITTEN and not sizes:
        return _HANDWRITTEN[name]() if batch is None else _HANDWRITTEN[name](batch=batch)
    names = model_names()
    if not isinstance(name, str):
        raise RequestError(
            f"model: expected the name of a model of the zoo, got a {type(name).__name__}; "
            "mp.from_torch(module, example_inputs) imports a module of yours"
        )
    if name not in names:
        raise RequestError(f"there is no model {name!r}{nearest(name, names)}")
    import torch

    from maniple.operators.torch_import.from_torch import from_torch
    from maniple.zoo.catalogue import entry

    found = entry(name)
    samples = found.batch if batch is None else batch
    if samples < 1:
        raise RequestError(f"{name}: expected a batch of at least 1 sample, got {samples}")
    with torch.device("meta"):
        module = _make(found, sizes)
    inputs = {key: sample.meta(samples) for key, sample in module.samples().items()}
    graph = from_torch(module, inputs, name=name, fuse=False)
    graph.initialise_by(lambda: _values(_make(found, sizes)))
    return graph


def _make(found: Entry, sizes: dict[str, int]) -> ZooModel:
    import torch

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return found.make(**sizes)
    except TypeError as error:
        raise RequestError(f"model {found.name!r}: {error}") from error


def _values(module: ZooModel) -> dict[str, Tensor]:
    """The parameters and all buffers of a module."""
    return {**dict(module.named_buffers()), **module.state_dict()}
