"""Lanes run ahead: no body of the library stops the host, draws on it, or keeps what it makes; all are captured.

On a strict null device a body that does so fails by name. What does so by intent is in `EAGER`, with the reason, and is
run as it comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
import test_library_trains as library
import test_optimizers as optimizing
import torch
from everyday_modules import MODULES
from imported_networks import BATCH
from torch.nn import functional as F

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.library.catalogue import OPERATORS
from maniple.runtime.control.world import World
from maniple.runtime.devices.device import Stream
from maniple.runtime.devices.event import Event
from maniple.runtime.devices.null_device import NullDevice, NullStream, NullTensor, StrictNullDevice
from maniple.runtime.devices.registry import DEVICES
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.lanes.segment import Segment
from maniple.testing import local_worlds

pytestmark = pytest.mark.xdist_group("ahead_of_the_device")  # the last test looks at what all others trained

STRICT = "strict-null"
DEVICES.register(STRICT, StrictNullDevice)

RUN: set[str] = set()
"""The operators that a test of this file has trained."""
EAGER = {"mixture": "one_hot", "counting": "one_hot"}
"""The networks with an operator that stops the host by intent: torch's one_hot looks for the largest number."""
AHEAD = [row for row in optimizing.OPTIONS if hasattr(mp.optim, row[0])]
"""The optimizers whose updates never stop the host; torch's own classes decide by numbers, which they read there."""


def on_strict(train: Callable[[World], object]) -> None:
    """Train on one strict null device."""
    (world,) = local_worlds(1, device=STRICT)
    try:
        train(world)
    finally:
        RankRuntime.of(world).close()


def note(graph: Graph) -> None:
    RUN.update(node.operator.name for node in graph.nodes)


def plan_of(graph: Graph) -> mp.Plan:
    return mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")


@pytest.mark.parametrize("name", library.NETWORKS)
def test_networks_of_the_library_run_ahead_and_train_as_torch_does(name: str) -> None:
    network = library.NETWORKS[name]
    note(network.build())
    on_strict(lambda world: library.check(network, [library.train(network, world, plan_of(network.build()))]))


@pytest.mark.parametrize("name", sorted(MODULES.keys() - EAGER.keys()))
def test_modules_of_users_run_ahead_and_train_as_torch_does(name: str) -> None:
    module = MODULES[name]
    graph = module.graph()
    note(graph)
    wanted, _ = module.judged(graph, BATCH)

    def train(world: World) -> None:
        found, _ = module.trained(graph, plan_of(graph), world, BATCH)
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9)

    on_strict(train)


@pytest.mark.parametrize(("kind", "options"), AHEAD[::3])
def test_updates_run_ahead(kind: str, options: dict[str, object]) -> None:
    graph = optimizing.network()

    def train(world: World) -> None:
        optimizer = optimizing.optimizer_by(kind, options)
        with mp.Trainer(graph, plan_of(graph), optimizer=optimizer, world=world) as trainer:
            for x, y in optimizing.batches(3):
                trainer.step(x, y)

    on_strict(train)


def test_averages_and_steps_of_a_scaled_loss_run_ahead() -> None:
    """Two steps overflow and are skipped, and nobody looks: scale, counts, averages and losses are the host's."""
    graph = mp.Graph("halves")
    x, y = graph.input("x", (12, 6)), graph.input("y", (12,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 10)), 5), y))
    scale = mp.optim.LossScale(init_scale=2.0**26, backoff_factor=2.0**-4, growth_interval=3)
    optimizer = mp.optim.averaged(mp.optim.AdamW(lr=0.01, clip_norm=0.5, loss_scale=scale), 0.8)
    plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel", semantics={"precision": "fp16"})
    found = []

    def train(world: World) -> None:
        with mp.Trainer(graph, plan, optimizer=optimizer, world=world) as trainer:
            losses = [trainer.step(x.float() * 40, y) for x, y in optimizing.batches(6)]
            found.append((losses, trainer.optimizer_state()))

    on_strict(train)
    (host,) = local_worlds(1)
    train(host)
    (losses, state), (wanted, other) = found
    assert losses == pytest.approx(wanted, abs=2.0**-9)
    for name in ("step", "loss_scale", "loss_scale.growth_tracker", "loss_scale.skipped"):
        assert float(state[name]) == float(other[name]), name
    assert float(state["loss_scale.skipped"]) == 2
    for name in state.keys() - {"step"}:
        assert torch.allclose(state[name], other[name], rtol=2.0**-8, atol=2.0**-9), name
    RankRuntime.of(host).close()


def test_updates_by_a_class_of_torchs_run_as_they_come_and_the_rest_is_captured() -> None:
    graph, optimizer = optimizing.network(), mp.optim.by_torch(torch.optim.RMSprop, lr=0.01, clip_norm=0.1)
    (world,) = local_worlds(1, device="null")
    with mp.Trainer(graph, plan_of(graph), optimizer=optimizer, world=world) as trainer:
        for x, y in optimizing.batches(4):
            trainer.step(x, y)
        pieces = trainer.captures()
    eager = {labels[0].partition("[")[0].rpartition(".")[2]: why for labels, why, _ in pieces if why}
    assert [why for name, why in eager.items() if name == "update"]
    assert eager.keys() <= {"update", "input", "fetch"}
    assert sum(captured for _, _, captured in pieces) >= 2
    RankRuntime.of(world).close()


@pytest.mark.parametrize(("name", "operator"), EAGER.items())
def test_what_stops_the_host_runs_as_it_comes_and_the_rest_is_captured(name: str, operator: str) -> None:
    module = MODULES[name]
    graph = module.graph()
    note(graph)
    (world,) = local_worlds(1, device="null")
    with mp.Trainer(graph, plan_of(graph), optimizer=mp.SGD(0.1), world=world) as trainer:
        (batch,) = module.batches(1)
        for _ in range(4):
            trainer.step(**batch)
        pieces = trainer.captures()
    eager = [labels[0] for labels, why, _ in pieces if "reads a value" in why]
    assert [label.partition(".")[0] for label in eager] == [operator]
    assert sum(captured for _, _, captured in pieces) >= 3
    RankRuntime.of(world).close()


class Rest(torch.nn.Module):
    """Operators that no other network of this file has."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.ConvTranspose3d(1, 2, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = F.pad(F.avg_pool2d(x, 2), (1, 0, 0, 1)).tril()
        h = self.up(h.unsqueeze(2)).flatten(2).amax(-1)
        return F.nll_loss(torch.cat([h, h * h], 1), y, ignore_index=1)


def ahead_as_on_the_host(graph: Graph, batch: dict[str, torch.Tensor]) -> None:
    """Train on a strict null device and on a CPU: the losses are the same."""
    note(graph)

    def train(world: World) -> None:
        (other,) = local_worlds(1)
        losses = []
        for each in (world, other):
            with mp.Trainer(graph, plan_of(graph), optimizer=mp.SGD(0.1), world=each) as trainer:
                losses.append([trainer.step(**batch) for _ in range(3)])
        assert losses[0] == losses[1]
        RankRuntime.of(other).close()

    on_strict(train)


def test_rare_operators_run_ahead() -> None:
    chance = torch.Generator().manual_seed(0)
    drawn = torch.randn(6, 1, 6, 6, generator=chance, dtype=torch.float64)
    batch = {"x": drawn, "y": torch.arange(6) % 4}
    ahead_as_on_the_host(mp.from_torch(Rest().double(), tuple(batch.values())), batch)


def test_losses_of_labels_run_ahead() -> None:
    graph = mp.Graph("likelihood")
    x, y = graph.input("x", (6, 4), dtype="float64"), graph.input("y", (6,), dtype="int64")
    likely = graph.log_softmax(graph.linear(x, 5), dim=1)
    graph.loss(graph.nll_loss(likely, y, ignore_index=1))
    chance = torch.Generator().manual_seed(0)
    drawn = torch.randn(6, 4, generator=chance, dtype=torch.float64)
    ahead_as_on_the_host(graph, {"x": drawn, "y": torch.arange(6) % 4})


def test_every_operator_was_run_ahead_or_is_an_exception_with_a_reason() -> None:
    """Runs last in this file, whose other tests note what they trained."""
    library_own = {name for name in OPERATORS.names() if OPERATORS.origin(name).startswith("maniple.")}
    if len(RUN) <= 20:
        pytest.skip("only some tests of this file were asked for")
    assert library_own - RUN == set()


def test_a_step_is_submitted_while_the_device_stands_still() -> None:
    """Inputs, forward, the loss and backward are all in the stream before the first of them has begun."""
    graph = optimizing.network()
    batch = dict(zip("xy", next(optimizing.batches(1)), strict=True))
    (world,) = local_worlds(1, device="null")
    with mp.Trainer(graph, plan_of(graph), optimizer=mp.SGD(0.1, 0.9), world=world) as trainer:
        trainer.step(**batch)
        runtime = RankRuntime.of(world)
        device = runtime.processors[0].device
        assert isinstance(device, NullDevice)
        runtime.drain()
        with device.pause():
            steps = [trainer._submit((), batch) for _ in range(2)]
            lane = steps[0].run.replay.pieces()
            assert sum(len(labels) for labels, _, _ in lane) > 10
            assert all(step.run.left for step in steps)
        losses = [trainer._collect(step) for step in steps]
    assert losses[1] < losses[0]
    runtime.close()


def test_who_waits_for_a_step_submits_what_was_captured_and_a_lane_is_submitted_by_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bodies run for two steps, on the lane's thread, where nothing that the program is inside of tells on them.

    step          1      2          3 and on
    pieces        run    captured   issued
    submitted by  lane   lane       who waits
    """
    graph = optimizing.network()
    batch = dict(zip("xy", next(optimizing.batches(1)), strict=True))
    (world,) = local_worlds(1, device="null")
    submit, attend = NullStream.submit, Stream.attend
    by: list[str] = []
    attended: list[Event] = []

    def noted(stream: NullStream, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        if isinstance(work, Segment):
            by.append("who waits" if threading.get_ident() == me else "lane")
            assert work.attended == (by[-1] == "who waits")
        return submit(stream, work, events)

    def attends(stream: Stream, event: Event) -> None:
        attended.append(event)
        attend(stream, event)

    me = threading.get_ident()
    with mp.Trainer(graph, plan_of(graph), optimizer=mp.SGD(0.1, 0.9), world=world) as trainer:
        monkeypatch.setattr(NullStream, "submit", noted)
        monkeypatch.setattr(Stream, "attend", attends)
        losses = [trainer.step(**batch) for _ in range(5)]
        assert by == ["lane", "lane", "who waits", "who waits", "who waits"]
        assert len(attended) >= 3
        losses += list(trainer.run([batch] * 3))  # by whoever comes first: a later step is submitted before one is over
        assert len(by) == 8
    assert losses == sorted(losses, reverse=True)
    RankRuntime.of(world).close()


def test_a_batch_may_lie_on_the_device() -> None:
    graph = optimizing.network()
    batch = dict(zip("xy", next(optimizing.batches(1)), strict=True))
    found = []
    for device in ("cpu", "null"):
        (world,) = local_worlds(1, device=device)
        with mp.Trainer(graph, plan_of(graph), optimizer=mp.SGD(0.1), world=world) as trainer:
            given = dict(batch)
            memory = RankRuntime.of(world).processors[0].device
            if memory is not None:
                for name, value in batch.items():
                    given[name] = place = memory.allocate(tuple(value.shape), value.dtype)
                    memory.tasks.submit(lambda place=place, value=value: place.copy_(value)).wait()
                    assert isinstance(place, NullTensor)
            found.append([trainer.step(**given) for _ in range(3)])
        RankRuntime.of(world).close()
    assert found[0] == found[1]


def test_a_step_is_two_graphs_and_what_the_program_gives_and_takes() -> None:
    """The loss leaves between forward and backward; all else of a step on one device is issued by two launches."""
    graph = optimizing.network()
    (world,) = local_worlds(1, device="null")
    with mp.Trainer(graph, plan_of(graph), optimizer=mp.SGD(0.1, 0.9), world=world) as trainer:
        for x, y in optimizing.batches(4):
            trainer.step(x, y)
        pieces = trainer.captures()
    captured = [labels for labels, _, graph in pieces if graph]
    eager = {labels[0].partition("[")[0]: why for labels, why, _ in pieces if why}
    assert len(captured) == 2
    assert eager.keys() == {"x.input", "y.input", "loss.fetch"}
    RankRuntime.of(world).close()
