"""Ways of giving example inputs, and what reaches the module: aliases, views, nested, by keyword, defaults, None."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import maniple as mp

BATCH, WIDTH = 6, 5
RATE = 0.1


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Sample:
    x: Tensor
    y: Tensor
    scale: float = 1.0


@dataclass(slots=True)
class Slotted:
    y: Tensor
    note: str = "kept"
    missing: Tensor | None = field(default=None)


class Net(nn.Module):
    """A layer whose result is compared with something; `judged` is what all ways of passing the two lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def judged(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        out = self.layer(x)
        return {"loss": mse_loss(out * scale, y) + (out * y).square().mean(), "out": out.sin()}


class Plain(Net):
    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return self.judged(x, y)


class Scaled(Net):
    def forward(self, x: Tensor, y: Tensor, scale: float = 2.0) -> dict[str, Tensor]:
        return self.judged(x, y, scale)


class Between(Net):
    def forward(self, x: Tensor, mask: Tensor | None, y: Tensor, use: bool = True) -> dict[str, Tensor]:
        return self.judged(x if mask is None else x * mask, y, 1.0 if use else 3.0)


class Keyword(Net):
    def forward(self, x: Tensor, *, y: Tensor, scale: float = 0.5) -> dict[str, Tensor]:
        return self.judged(x, y, scale)


class Star(Net):
    def forward(self, x: Tensor, *rest: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return self.judged(x + rest[0], rest[1], scale)


class Named(Net):
    def forward(self, x: Tensor, **rest: Tensor) -> dict[str, Tensor]:
        return self.judged(x - rest["z"], rest["y"])


class OnlyFirst(Net):
    def forward(self, x: Tensor, unused: Tensor, y: Tensor) -> dict[str, Tensor]:
        return self.judged(x, y)


class InDict(Net):
    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.judged(batch["x"], batch["y"])


class InSecond(Net):
    def forward(self, x: Tensor, extra: dict[str, Any]) -> dict[str, Tensor]:
        y = extra.pop("y")  # a module may change what it is given
        return self.judged(x, y, extra.get("scale", 1.0))


class InList(Net):
    def forward(self, xs: list[Tensor], y: Tensor) -> dict[str, Tensor]:
        return self.judged(xs[0] * xs[1], y)


class Deep(Net):
    def forward(self, given: Sequence[Any]) -> dict[str, Tensor]:
        return self.judged(given[0]["xs"][0] - given[0]["xs"][1], given[1][0])


class InFields(Net):
    def forward(self, sample: Any) -> dict[str, Tensor]:
        return self.judged(sample.x, sample.y, getattr(sample, "scale", 1.0))


class InSlots(Net):
    def forward(self, x: Tensor, held: Slotted) -> dict[str, Tensor]:
        return self.judged(x, held.y)


class Frozen(Net):
    """One part is in another mode than the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5).eval()

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return self.judged(self.drop(x), y)


class Lossless(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def apart(out: Tensor, y: Tensor, weight: Tensor | None = None, *, other: Tensor | None = None) -> Tensor:
    """A loss with an argument that may be left out in the middle."""
    found = mse_loss(out, y) if weight is None else (out * weight - y).square().mean()
    return found if other is None else found + (out * other).mean()


def named_alike(out: Tensor, x: Tensor) -> Tensor:
    return mse_loss(out, x)


def in_targets(out: Tensor, given: dict[str, Tensor]) -> Tensor:
    return mse_loss(out * given["w"], given["y"])


Draw = Callable[[], Tensor]


@dataclass(frozen=True)
class Way:
    """A way of giving a step its arguments.

    Args:
        module: What is imported.
        given: Makes forward's arguments from a function that gives a tensor; of examples always the same one.
        targets: The same for the loss's arguments.
        loss: Of the output and the targets.
        inputs: The names of the graph's inputs, in order.
    """

    module: type[Net]
    given: Callable[[Draw], tuple[Any, ...] | dict[str, Any]]
    inputs: str
    loss: Callable[..., Tensor] | None = None
    targets: Callable[[Draw], tuple[Any, ...] | dict[str, Any]] | None = None


WAYS = {
    "two": Way(Plain, lambda t: (t(), t()), "x y"),
    "by name": Way(Plain, lambda t: {"y": t(), "x": t()}, "x y"),
    "mode of a part": Way(Frozen, lambda t: (t(), t()), "x y"),
    "default": Way(Scaled, lambda t: (t(), t()), "x y"),
    "another than the default": Way(Scaled, lambda t: (t(), t(), 3.0), "x y"),
    "no tensor by name": Way(Scaled, lambda t: {"x": t(), "y": t(), "scale": 0.25}, "x y"),
    "None": Way(Between, lambda t: (t(), None, t()), "x y"),
    "None and a flag": Way(Between, lambda t: (t(), None, t(), False), "x y"),
    "an optional tensor": Way(Between, lambda t: (t(), t(), t()), "x mask y"),
    "keyword only": Way(Keyword, lambda t: {"x": t(), "y": t(), "scale": 2.0}, "x y"),
    "a star": Way(Star, lambda t: (t(), t(), t()), "x rest_0 rest_1"),
    "two stars": Way(Named, lambda t: {"x": t(), "z": t(), "y": t()}, "x z y"),
    "one that nothing reads": Way(OnlyFirst, lambda t: (t(), t(), t()), "x y"),
    "a dictionary": Way(InDict, lambda t: ({"x": t(), "y": t()},), "batch.x batch.y"),
    "an ordered dictionary": Way(InDict, lambda t: (OrderedDict(y=t(), x=t()),), "batch.y batch.x"),
    "a user's dictionary": Way(InDict, lambda t: (UserDict(x=t(), y=t()),), "batch.x batch.y"),
    "a dictionary beside": Way(InSecond, lambda t: (t(), {"y": t(), "scale": 2.0}), "x extra.y"),
    "a list": Way(InList, lambda t: ([t(), t()], t()), "xs.0 xs.1 y"),
    "a tuple": Way(InList, lambda t: ((t(), t()), t()), "xs.0 xs.1 y"),
    "deep": Way(Deep, lambda t: ([{"xs": (t(), t())}, [t()]],), "given.0.xs.0 given.0.xs.1 given.1.0"),
    "a named tuple": Way(InFields, lambda t: (Pair(t(), t()),), "sample.x sample.y"),
    "a frozen dataclass": Way(InFields, lambda t: (Sample(t(), t(), 2.0),), "sample.x sample.y"),
    "a dataclass with slots": Way(InSlots, lambda t: (t(), Slotted(t())), "x held.y"),
    "a loss": Way(Lossless, lambda t: (t(),), "x y", apart, lambda t: (t(),)),
    "a loss with one left out": Way(Lossless, lambda t: (t(),), "x y other", apart, lambda t: {"y": t(), "other": t()}),
    "a loss of the same name": Way(Lossless, lambda t: (t(),), "x target_x", named_alike, lambda t: (t(),)),
    "a loss of a dictionary": Way(
        Lossless, lambda t: (t(),), "x given.w given.y", in_targets, lambda t: ({"w": t(), "y": t()},)
    ),
}


def same() -> Draw:
    whole = torch.zeros(BATCH, WIDTH, dtype=torch.float64)
    return lambda: whole


def views() -> Draw:
    whole = torch.zeros(BATCH, WIDTH, dtype=torch.float64)
    return lambda: whole[:]


def overlapping() -> Draw:
    whole = torch.zeros(BATCH + 9, WIDTH, dtype=torch.float64)
    starts = iter(range(9))
    return lambda: whole[(start := next(starts)) : start + BATCH]


def expanded() -> Draw:
    one = torch.zeros(1, 1, dtype=torch.float64)
    return lambda: one.expand(BATCH, WIDTH)


EXAMPLES: dict[str, Callable[[], Draw]] = {
    "the same tensor": same,
    "views of it": views,
    "overlapping views": overlapping,
    "one element expanded": expanded,
}


def drawn(seed: int, samples: int) -> Draw:
    chance = torch.Generator().manual_seed(seed)
    return lambda: torch.randn(samples, WIDTH, generator=chance, dtype=torch.float64)


def flat(given: tuple[Any, ...] | dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), given) if isinstance(given, dict) else (given, {})


def imported(way: Way, module: Net, draw: Draw) -> mp.Graph:
    targets = None if way.targets is None else way.targets(draw)
    return mp.from_torch(module, way.given(draw), loss=way.loss, targets=targets)


def in_torch(way: Way, module: Net, draw: Draw) -> tuple[Tensor, Tensor]:
    """The loss and the output, as torch has them."""
    args, named = flat(way.given(draw))
    output = module(*args, **named)
    if way.loss is None or way.targets is None:
        return output["loss"], output["out"]
    more, named = flat(way.targets(draw))
    return way.loss(output, *more, **named), output


def arguments(way: Way, draw: Draw) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a step is given: what forward and the loss are."""
    args, named = flat(way.given(draw))
    more, others = ((), {}) if way.targets is None else flat(way.targets(draw))
    renamed = {f"target_{name}" if name in named else name: value for name, value in others.items()}
    return (*args, *more), {**named, **renamed}
