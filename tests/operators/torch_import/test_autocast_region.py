"""Parts of a module that enter autocast: a float32 graph that knows them, and steps that round where torch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import maniple as mp
from maniple.operators.lowering.fusion.chained_graph import chained
from maniple.operators.lowering.precision import apply_semantics, is_scaled
from maniple.process.error import RequestError

BATCH, WIDTH, CLASSES = 6, 8, 3


class Cast(nn.Module):
    """A perceptron of which some enters autocast.

    Args:
        dtype: what it casts to.
        whole: whether all of it does.
    """

    def __init__(self, dtype: torch.dtype = torch.bfloat16, *, whole: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.dtype, self.whole = dtype, whole
        self.first, self.norm, self.second = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype, enabled=self.whole):
            x = torch.relu(self.first(x))
            with torch.autocast("cpu", self.dtype):
                inside = self.second(self.norm(x)) + x
                with torch.autocast("cpu", enabled=self.whole):
                    apart = inside.float() @ self.last.weight.t()
            scores = self.last(inside.float()) + apart
            return nn.functional.cross_entropy(scores.float(), y)


class Plain(Cast):
    """The same that enters nothing."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        inside = self.second(self.norm(x)) + x
        apart = inside @ self.last.weight.t()
        return nn.functional.cross_entropy(self.last(inside) + apart, y)


def batch() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, WIDTH, generator=chance), torch.randint(CLASSES, (BATCH,), generator=chance)


def trained(graph: mp.Graph, plan: mp.Plan, processors: int = 1, steps: int = 5) -> list[float]:
    (world,) = mp.testing.local_worlds(1, processors=processors)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(0.1), world=world) as trainer:
        return [trainer.step(*batch()) for _ in range(steps)]


def by_torch(module: nn.Module, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module(*batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def dtypes(graph: mp.Graph) -> dict[str, str]:
    found = apply_semantics(graph, {})
    return {node.name: found.tensors[node.results[0]].dtype for node in found.nodes}


def test_a_region_is_told_beside_a_graph_in_float32() -> None:
    graph, plain = mp.from_torch(Cast(), batch()), mp.from_torch(Plain(), batch())
    assert {tensor.dtype for tensor in graph.tensors} == {"float32", "int64"}
    assert [node.operator for node in graph.nodes] == [node.operator for node in plain.nodes]
    assert dict(graph.autocast) == dict.fromkeys(("norm", "second", "add"), "bfloat16")
    assert plain.autocast == {}
    found = dtypes(graph)
    assert {name for name, dtype in found.items() if dtype == "bfloat16"} == {"norm", "second"}, found
    assert dtypes(plain).keys() == found.keys()
    assert set(dtypes(plain).values()) == {"float32"}


def test_a_module_that_is_one_region_trains_as_under_a_plans_precision() -> None:
    graph, plain = mp.from_torch(Cast(whole=True), batch()), mp.from_torch(Plain(), batch())
    machine = mp.Machine.preset("cpu:1")
    asked = mp.search(plain, machine, strategy="data_parallel", semantics={"precision": "bf16"})
    own = trained(graph, mp.search(graph, machine, strategy="data_parallel"))
    assert own == trained(plain, asked)
    assert own != trained(plain, mp.search(plain, machine, strategy="data_parallel"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_region_trains_as_torch_does_under_any_plan(dtype: torch.dtype) -> None:
    """To some roundings of 2^-8 of values about 1, which SGD of rate 0.1 adds up over five steps."""
    graph = mp.from_torch(Cast(dtype), batch())
    assert is_scaled(graph) == (dtype is torch.float16)
    whole = trained(graph, mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel"))
    assert whole == pytest.approx(by_torch(Cast(dtype)), rel=0, abs=5e-3)
    assert whole[4] < whole[0]
    machine = mp.Machine.preset("cpu:3")
    for seed in (1, 2):
        plan = mp.search(graph, machine, strategy="random", seed=seed)
        assert trained(graph, plan, processors=3) == pytest.approx(whole, rel=0, abs=5e-3)


def test_what_lies_in_a_region_is_in_no_chain() -> None:
    machine = mp.Machine.preset("cpu:1")
    for module, chains in ((Plain(), {"relu+norm"}), (Cast(whole=True), set())):
        graph = mp.from_torch(module, batch())
        found, _ = chained(graph, mp.search(graph, machine, strategy="data_parallel"))
        assert {node.name for node in found.nodes} - {node.name for node in graph.nodes} == chains
        assert found.autocast == graph.autocast


def test_a_region_outlives_files_and_batches(tmp_path: Path) -> None:
    graph = mp.from_torch(Cast(), batch())
    graph.save(tmp_path / "graph.json")
    read = mp.Graph.load(tmp_path / "graph.json")
    assert read.autocast == graph.autocast
    assert read.fingerprint() == graph.fingerprint() != mp.from_torch(Plain(), batch()).fingerprint()
    assert graph.with_batch(4).autocast == graph.autocast
    text = (tmp_path / "graph.json").read_text().replace('"second": "bfloat16"', '"second": "float32"')
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(RequestError, match=r"autocast.second: expected one of bfloat16, float16"):
        mp.Graph.load(tmp_path / "graph.json")


class Twice(Cast):
    """Enters autocast to two halves."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.first(x)
        with torch.autocast("cpu", torch.float16):
            x = self.last(x.float())
        return nn.functional.cross_entropy(x.float(), y)


def test_what_no_region_stands_for_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="enters autocast to bfloat16 and to float16; expected one half"):
        mp.from_torch(Twice(), batch())
    halves = Cast()
    halves.second.to(torch.bfloat16)
    with pytest.raises(RequestError, match=r"is torch\.bfloat16 by itself; keep it in float32"):
        mp.from_torch(halves, batch())
    graph, machine = mp.from_torch(Cast(), batch()), mp.Machine.preset("cpu:1")
    with pytest.raises(
        RequestError, match="runs parts in bfloat16 by itself; expected that, or no precision; got fp16"
    ):
        mp.search(graph, machine, strategy="data_parallel", semantics={"precision": "fp16"})
