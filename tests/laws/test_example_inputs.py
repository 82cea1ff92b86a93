"""Law 1 for every way of giving example inputs: aliases, views, nested, by keyword, defaults, None, no tensors.

Each way is imported once from examples of zeros, and then trained and evaluated on values that all differ, with whole
and smaller batches, beside the same module in torch.
"""

from __future__ import annotations

import re
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tolerance import TOLERANCE, violations
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import maniple as mp
from maniple.operators.graph.batch import check_batch
from maniple.regions.error import RequestError

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


@pytest.mark.parametrize("name", WAYS)
def test_a_step_takes_what_the_module_takes(name: str) -> None:
    way = WAYS[name]
    torch.manual_seed(len(name))
    module = way.module()
    graph = imported(way, module, same())
    assert [tensor.name for tensor in graph.inputs] == way.inputs.split()
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE)) as trainer:
        for step, samples in enumerate((BATCH, 4, 1) if name in {"two", "deep"} else (BATCH, 4)):
            args, named = arguments(way, drawn(step, samples))
            loss, out = in_torch(way, module, drawn(step, samples))
            (shown,) = trainer.evaluate(**by_input(graph, args, named)).values()
            assert not violations(f"{name}, output for {samples}", shown, out.detach(), TOLERANCE["float64"])
            assert trainer.step(*args, **named) == pytest.approx(loss.item(), rel=1e-10)
            loss.backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(RATE * parameter.grad)
                    parameter.grad = None
        for key, value in trainer.state_dict().items():
            assert not violations(key, value, module.state_dict()[key], TOLERANCE["float64"])


def by_input(graph: mp.Graph, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a call by the graph's names of them, in their order."""
    found = graph.arguments.by_name(args, named, [tensor.name for tensor in graph.inputs])
    return {key: value for key, value in found.items() if isinstance(value, Tensor)}


@cache
def of_tensors_apart(name: str) -> str:
    """The fingerprint of an import whose examples share nothing."""
    return imported(WAYS[name], WAYS[name].module(), drawn(0, BATCH)).fingerprint()


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", ["two", "deep", "a loss"])
def test_examples_of_one_storage_are_inputs_of_their_own(name: str, examples: str) -> None:
    way = WAYS[name]
    assert imported(way, way.module(), EXAMPLES[examples]()).fingerprint() == of_tensors_apart(name)


def test_a_parameter_of_the_module_may_be_an_example() -> None:
    module = Plain()
    graph = mp.from_torch(module, (module.layer.weight, module.layer.weight))
    assert [tensor.name for tensor in graph.inputs] == ["x", "y"]
    assert graph.node("layer").operands == (0, 2, 3)


class Opaque:
    def __init__(self, held: object) -> None:
        self.held = held


X = torch.zeros(BATCH, WIDTH, dtype=torch.float64)
BESIDE = WAYS["a dictionary beside"].module


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ((X, Opaque(X)), r"'extra' is of type Opaque and holds a tensor, extra\.held, which would be a constant"),
        (
            (X, {"y": Opaque([{"deep": X}])}),
            r"'extra\.y' is of type Opaque and holds a tensor, extra\.y\.held\.0\.deep",
        ),
        ((X, {"y": {1: Opaque(Opaque(X))}}), r"extra\.y\.1\.held\.held, which would be a constant; pass it in a dict"),
        ((X, {"y": {X}}), r"'extra\.y' is of type set and holds a tensor"),
        ((X, {"y": iter([X])}), r"'extra\.y' is of type list_iterator, into which .* pass a list"),
        ((X, {"y": X.numpy()}), r"'extra\.y' is of type ndarray, whose values would be constants; pass a tensor"),
        ((X, {"y": [np.ones(3)]}), r"'extra\.y\.0' is of type ndarray"),
        ((X, {1: X, "1": X}), r"two of the example inputs are called 'extra\.1'"),
        ((X, {"y": X.to_sparse()}), r"'extra\.y' is torch\.sparse_coo; expected a dense tensor"),
        ((X, {"y": X.to("meta")}), r"'extra\.y' is on meta, the module on cpu"),
        ((2.0, {"y": 3.0}), r"no tensor among the example inputs \(x, extra\); expected at least one"),
        ({"x": X, "labels": X}, r"takes \(x.*, extra.*\): .*pass \(\{\.\.\.\},\) for one argument that is a dict"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_tensors_that_would_be_constants_are_refused_by_name(examples: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        mp.from_torch(BESIDE(), examples)


@pytest.mark.parametrize(
    ("name", "args", "named", "said"),
    [
        (
            "a dictionary beside",
            (X, X),
            {},
            r"'extra' of graph 'InSecond' takes extra\.y; got 'extra', a tensor of shape",
        ),
        ("a dictionary beside", (X, {"z": X}), {}, r"takes extra\.y; got 'extra\.z'"),
        (
            "a dictionary beside",
            (X, {"y": X, "scale": 3.0}),
            {},
            r"'extra\.scale' .* was 2\.0 at the import .* got 3\.0",
        ),
        ("a dictionary beside", (X, {}), {}, r"input 'extra\.y' is missing; expected x, extra\.y"),
        ("a dictionary beside", (X,), {"extra.z": X}, r"has no input 'extra\.z'; did you mean 'extra\.y'"),
        ("None", (X, X, X), {}, r"'mask' .* was None at the import .* got a tensor of shape \(6, 5\)"),
        ("None and a flag", (X, None, X, True), {}, r"'use' .* was False at the import .* got True"),
        ("two", (X, X, X), {}, r"expected at most 2 inputs \(x, y\), got 3"),
        ("two", (X, [X]), {}, r"input 'y': expected a torch\.Tensor, got list"),
    ],
)
def test_a_step_that_is_given_something_else_is_refused(
    name: str, args: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    graph = graph_of(name)
    with pytest.raises(RequestError, match=said):
        check_batch(graph, args, named, [tensor.name for tensor in graph.inputs])


@cache
def graph_of(name: str) -> mp.Graph:
    return imported(WAYS[name], WAYS[name].module(), same())


def test_what_was_fixed_may_be_left_out_or_given_again() -> None:
    for name, calls in {
        "None and a flag": [(X, X), (X, None, X), (X, None, X, False)],
        "a dictionary beside": [(X, {"y": X}), (X, {"y": X, "scale": 2.0})],
        "one that nothing reads": [(X, X, X)],
        "a frozen dataclass": [(Sample(X, X, 2.0),), ({"x": X, "y": X},)],
    }.items():
        graph = graph_of(name)
        needed = [tensor.name for tensor in graph.inputs]
        for args in calls:
            assert list(check_batch(graph, args, {}, needed)[0]) == needed, (name, args)


def test_an_input_that_nothing_reads_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    imported(WAYS["one that nothing reads"], OnlyFirst(), same())
    assert "OnlyFirst: nothing reads these inputs, and a step does without them:\n  unused\n" in capsys.readouterr().err


def test_a_module_that_reads_no_input_is_refused() -> None:
    class Deaf(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer.weight.sum()

    with pytest.raises(RequestError, match=r"read none of the example inputs \(x\); use them in forward"):
        mp.from_torch(Deaf(), (X,))


def test_an_input_of_a_graph_built_by_hand_that_nothing_reads_is_refused() -> None:
    g = mp.Graph("mine")
    x, y = g.input("x", (4, 2)), g.input("y", (4,), dtype="int64")
    g.input("weights", (4,))
    g.loss(g.cross_entropy(g.linear(x, 3), y))
    with pytest.raises(RequestError, match=r"graph 'mine': no operator reads input 'weights'; remove it, or use it"):
        mp.search(g, mp.Machine.cpu(1), strategy="data_parallel")


ELSEWHERE = torch.full((WIDTH,), 3.0, dtype=torch.float64)

CLOSED = nn.Parameter(ELSEWHERE.clone())


class Closing(Net):
    """Reads tensors from anywhere but its arguments, parameters and buffers."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.plain = torch.full((WIDTH,), 2.0, dtype=torch.float64)
        self.listed = [nn.Parameter(self.plain.clone())]
        self.layers = [nn.Linear(WIDTH, WIDTH, dtype=torch.float64)]
        self.register_buffer("kept", self.plain.clone(), persistent=False)

    def forward(self, x: Tensor, default: Tensor = ELSEWHERE) -> Tensor:
        if self.what == "assigned":
            self.plain = self.plain + 1
        if self.what == "written":
            self.plain.add_(1)
        factors: dict[str, Draw] = {
            "a number": lambda: torch.tensor([2.0], dtype=torch.float64),
            "buffer": lambda: self.kept,
            "global": lambda: ELSEWHERE,
            "default": lambda: default,
            "listed": lambda: self.listed[0],
            "closed": lambda: CLOSED,
            "detached": CLOSED.detach,
        }
        out = self.layers[0](self.layer(x)) if self.what == "modules" else self.layer(x)
        return (out * factors.get(self.what, lambda: self.plain)()).sum()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            "plain",
            r"stay as they are now:\n  'plain', read at .*test_example_inputs\.py:\d+; make it a buffer, or an input",
        ),
        ("global", r"  a tensor of shape \(5,\), read at .*test_example_inputs\.py:\d+; make it a buffer"),
        ("default", r"  a tensor of shape \(5,\), read at .*test_example_inputs\.py:\d+; make it a buffer"),
        ("detached", r"  a tensor of shape \(5,\), read at"),
        ("a number", "^$"),
        ("buffer", "^$"),
    ],
)
def test_constants_from_elsewhere_are_told(what: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = Closing(what)
    plan = mp.search(graph := mp.from_torch(module, (X,)), mp.Machine.cpu(1), strategy="data_parallel")
    assert re.search(told, capsys.readouterr().err)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.0)) as trainer:
        assert trainer.step(X + 1) == pytest.approx(module(X + 1).item(), rel=1e-12)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("listed", r"'listed\.0', read at .*test_example_inputs\.py:\d+, requires a gradient and is no parameter"),
        (
            "modules",
            r"'layers\.0\.weight', read at .*, requires a gradient .* register it \(nn\.Parameter, nn\.M",
        ),
        ("closed", r"a tensor of shape \(5,\), read at .*, requires a gradient and is no parameter"),
        ("written", r"'plain', read at .*, yet forward writes to it; make it a buffer"),
        ("assigned", r"'plain', read at .*, yet forward writes to it; make it a buffer"),
    ],
)
def test_constants_that_would_change_are_refused(what: str, said: str) -> None:
    module = Closing(what)
    with pytest.raises(RequestError, match=said):
        mp.from_torch(module, (X,))
    assert module.plain.tolist() == [2.0] * WIDTH
