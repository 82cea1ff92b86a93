"""Operators that a user adds: applied, trained under random plans, saved, and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maniple as mp
from maniple.operators.library.catalogue import OPERATORS
from maniple.operators.operator.operator import Initial, TileContext
from maniple.operators.proving.user_operator import OperatorFunction
from maniple.process.error import RequestError

SEED = 2


@mp.operator("b s k, n k -> b s n", reduce="k:sum", flops_per_point=2)
def project(x: Tensor, weight: Tensor) -> Tensor:
    """A product over the last dimension."""
    return x @ weight.T


@mp.operator("b q k -> b q k")
def fade(x: Tensor, *, rate: float = 0.5, tile: TileContext) -> Tensor:
    rows, columns = torch.arange(*tile.tile.range("q")), torch.arange(*tile.tile.range("k"))
    return x * torch.exp(-rate * (rows.unsqueeze(1) - columns).abs())


def doubled(x: Tensor) -> Tensor:
    return x * 2


def tripled(x: Tensor) -> Tensor:
    return x * 3


def network() -> mp.Graph:
    g = mp.Graph("mine")
    x, y = g.input("x", (5, 4, 3), dtype="float64"), g.input("y", (5,), dtype="int64")
    weight = g.parameter("w", (6, 3), "float64", Initial("uniform", 0.5))
    h = fade(project(x, weight), rate=0.25)
    assert isinstance(h, mp.Tensor)
    (h,) = g.call(doubled, h)
    g.loss(g.cross_entropy(g.linear(g.flatten(h), 3), y))
    return g


def test_a_users_operator_trains_under_random_plans_as_torch_does() -> None:
    chance = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 4, 3, generator=chance, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])
    state = {key: value.requires_grad_() for key, value in network().state_dict(SEED).items()}
    descent = torch.optim.SGD(state.values(), lr=0.1)
    losses = []
    for _ in range(3):
        descent.zero_grad()
        h = x @ state["w"].T
        h = h * torch.exp(-0.25 * (torch.arange(4).unsqueeze(1) - torch.arange(6)).abs()) * 2
        loss = F.cross_entropy(F.linear(h.flatten(1), state["linear.weight"], state["linear.bias"]), y)
        loss.backward()
        descent.step()
        losses.append(loss.item())
    for seed in range(4):
        g = network()
        plan = mp.search(g, mp.Machine.cpu(3), strategy="random", seed=seed)
        with mp.Trainer(g, plan, optimizer=mp.SGD(lr=0.1), seed=SEED) as trainer:
            assert [trainer.step(x=x, y=y) for _ in range(3)] == pytest.approx(losses, rel=0, abs=1e-11)
            for key, value in trainer.parameters().items():
                assert torch.allclose(value, state[key], rtol=0, atol=1e-11), key


def test_attributes_and_functions_are_found_again_in_a_file(tmp_path: Path) -> None:
    g = network()
    g.save(tmp_path / "graph.json")
    again = mp.Graph.load(tmp_path / "graph.json")
    assert (again.nodes, again.fingerprint()) == (g.nodes, g.fingerprint())
    assert again.node("fade").operator.arguments == (("rate", 0.25),)  # type: ignore[attr-defined]
    text = (tmp_path / "graph.json").read_text()
    (tmp_path / "old.json").write_text(text.replace('"version": "', '"version": "0'))
    with pytest.raises(RequestError, match="operator project: the graph was made with version 0"):
        mp.Graph.load(tmp_path / "old.json")
    (tmp_path / "unknown.json").write_text(text.replace("doubled", "trebled"))
    with pytest.raises(RequestError, match=r"the function '.*trebled \w+' is not known here"):
        mp.Graph.load(tmp_path / "unknown.json")


def test_what_is_opaque_is_one_task_and_named_with_its_line() -> None:
    g = network()
    assert g.bound(g.node("opaque")).factors == ()
    (line,) = g.opaque
    assert line.startswith("opaque: ")
    assert "test_user_operator.py:" in line


REFUSED = {
    "the library's name": (lambda: mp.operator("b -> b", name="relu")(doubled), "the name belongs to .*pointwise:ReLU"),
    "no rule": (lambda: mp.operator("b k% -> b")(doubled), "unknown suffix '%'"),
    "no tensor of a graph": (lambda: project(torch.ones(2, 3, 4), torch.ones(2, 4)), "expected tensors of a graph"),
    "shapes": (lambda: project(network().handle("x"), network().handle("w")), "another graph"),
    "a function of values": (
        lambda: network().call(lambda x: x if x.sum() > 0 else -x, network().handle("x")),
        "does not run on tensors without values",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_operator_is_refused(name: str) -> None:
    act, message = REFUSED[name]
    with pytest.raises(RequestError, match=message):
        act()


def test_a_cell_that_runs_again_replaces_its_operator() -> None:
    first = mp.operator("b -> b", name="again")(doubled)
    second = mp.operator("b -> b", name="again")(doubled)
    assert isinstance(second, OperatorFunction)
    assert first.kind is not second.kind
    g = mp.Graph("g")
    again = second(g.input("x", (3,)))
    assert isinstance(again, mp.Tensor)
    assert again.name == "again"


def test_another_function_is_refused_a_name_that_is_taken() -> None:
    mp.operator("b -> b", name="taken")(doubled)
    with pytest.raises(RequestError, match=r"'taken' .*belongs to .*:doubled; register .*:tripled under another name"):
        mp.operator("b -> b", name="taken")(tripled)
    assert OPERATORS.origin("taken").endswith(":doubled")


PACKAGE = """
import torch
import maniple as mp


@mp.operator("b n -> b n")
def their_swish(x):
    return x * torch.sigmoid(x)
"""
WRITES = """
import maniple as mp
import theirs

g = mp.Graph("g")
g.output("y", theirs.their_swish(g.input("x", (3, 2))))
g.save("graph.json")
"""
READS = """
import sys
import maniple as mp
from maniple.operators.library.catalogue import OPERATORS

assert "theirs" not in sys.modules
(node,) = mp.Graph.load("graph.json").nodes
assert node.operator.name == "their_swish"
assert OPERATORS.packages("their_swish") == ("theirs",)
"""


def test_an_operator_of_an_installed_package_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "activations.py").write_text(PACKAGE)
    (tmp_path / "theirs" / "__init__.py").write_text("from theirs.activations import their_swish\n")
    (tmp_path / "theirs-1.0.dist-info").mkdir()
    (tmp_path / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    announced = "[maniple.operators]\ntheir_swish = theirs:their_swish\n"
    (tmp_path / "theirs-1.0.dist-info" / "entry_points.txt").write_text(announced)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for program in (WRITES, READS):
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr


def test_what_is_no_operator_is_not_registered() -> None:
    with pytest.raises(
        RequestError, match=r"expected a class that completes Operator, got .*make it with mp\.operator"
    ):
        mp.plugins.register_operator(int)  # type: ignore[arg-type]


def test_a_class_may_be_an_operator_of_the_program(tmp_path: Path) -> None:
    @final
    @dataclass(frozen=True, slots=True)
    class Tripled(mp.plugins.TorchOperator):
        name: ClassVar[str] = "tripled"

        def rule(self, shapes: tuple[tuple[int, ...] | None, ...]) -> mp.plugins.Rule:
            return mp.plugins.Rule.parse("b -> b", shapes=shapes)

        def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
            (x,) = operands
            assert x is not None
            return 3 * x

    mp.plugins.register_operator(Tripled)
    g = mp.Graph("g")
    (tripled,) = g.apply(Tripled(), (g.input("x", (3,)),), (), None)
    g.output("y", tripled)
    g.save(tmp_path / "graph.json")
    assert mp.Graph.load(tmp_path / "graph.json").nodes == g.nodes
