"""Tasks timed on a device: as nodes of a graph where it captures them, else as the host launches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch

import maniple as mp
from maniple.costs import open_timer
from maniple.models import model
from maniple.operators.lowering.expansion import training_step
from maniple.operators.training.descent import SGD
from maniple.process.error import RequestError
from maniple.runtime.devices.device import Captured, Device, Refused
from maniple.runtime.devices.event import DONE
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch
from maniple.strategies.cost_model.gpu_timer import NODES, time_nodes
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measured_device import measured_kind, name_device
from maniple.strategies.cost_model.measurement import Measurements, frames
from maniple.strategies.cost_model.timed_body import views_of
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation

ONE_GPU = Machine.preset("h100x1")


class Clocked:
    """A device on which a launch takes 9 us, the first one of a body a second, and a node of a graph 2 us.

    Args:
        refuses: whether it captures nothing.
    """

    def __init__(self, *, refuses: bool = False) -> None:
        self.now, self.refuses, self.known, self.log = 0, refuses, set[int](), list[str]()
        self.tasks = self

    def body(self) -> Callable[[], object]:
        number = len(self.known)
        self.known.add(number)

        def run() -> None:
            self.log.append(f"run {number}")
            self.now += 9_000 if number not in self.known else 1_000_000_000
            self.known.discard(number)

        return run

    def submit(self, work: Callable[[], object]) -> object:
        begun = self.now
        work()
        return SimpleNamespace(begun_ns=begun, ended_ns=self.now, wait=DONE.wait)

    def capture(self, parts: Sequence[Callable[[], object]]) -> Captured | Refused:
        if self.refuses:
            return Refused(-1, "it captures nothing")
        self.log.append(f"capture {len(parts)}")

        def replay() -> None:
            self.now += 2_000 * len(parts)

        return replay


@pytest.mark.parametrize(("refuses", "taken"), [(False, 2_000), (True, 9_000)])
def test_a_task_takes_what_a_node_takes_or_what_its_launch_does(refuses: bool, taken: int) -> None:
    """What the first run of each body takes, where kernels compile, counts in neither."""
    device = Clocked(refuses=refuses)
    bodies = [device.body() for _ in range(3)]
    assert set(time_nodes(cast("Device", device), bodies)) == {taken}
    assert device.log[:3] == ["run 0", "run 1", "run 2"]
    assert ("capture 3" in device.log) is not refuses


def launches(graph: mp.Graph) -> dict[str, Launch]:
    plan = DataParallel().plan(Problem(graph, ONE_GPU))
    return {launch.name: launch for launch in training_step(graph, plan, ONE_GPU, SGD(lr=0.1, momentum=0.9)).launches}


@pytest.mark.simulator
def test_all_tasks_of_a_step_are_timed_on_a_device_and_take_nothing_beside() -> None:
    graph = model("digits_cnn", batch=2)
    plan = DataParallel().plan(Problem(graph, ONE_GPU))
    with open_timer("null", ONE_GPU) as timer:
        costs = Measured(ONE_GPU, Measurements.here("null"), timer=timer, footprint=1)
        simulation = Simulation(graph, ONE_GPU, plan, costs)
    predicted = simulation.predict()
    sources = dict(predicted.sources)
    assert sources["measured"] > 10
    assert "interpolated" not in sources
    known = {found.median_ns for found in costs.measurements.tasks.values()}
    placed, _ = simulation.parts()
    kinds = [each for each in placed.values() if each.rows.tasks.launch().kind]
    assert {int(each.rows.columns[0, 1]) for each in kinds} <= known


def test_tasks_meet_all_rows_of_a_table() -> None:
    """A table whose rows all tasks name the same takes another time, for they wait for each other to add to it."""
    graph = mp.Graph("words")
    x, y = graph.input("x", (32,), dtype="int64"), graph.input("y", (32,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.embedding(x, num_embeddings=16, embedding_dim=4), y))
    (forward,) = (found for found in launches(graph).values() if found.kind == "embedding.forward")
    views = views_of(forward, 0, frames(forward, [0]))
    (numbers,) = (view for view in views if view is not None and view.dtype == torch.int64)
    assert set(numbers.flatten().tolist()) == set(range(16))


def test_graphs_have_some_nodes_though_tensors_are_large() -> None:
    found = launches(model("mlp", batch=2)).values()
    launch = next(each for each in found if each.kind == "relu.forward")
    counted: list[int] = []
    with open_timer("null", ONE_GPU) as timer:
        device = timer._device
        capture = device.capture
        device.capture = lambda parts: (counted.append(len(parts)), capture(parts))[1]  # type: ignore[method-assign]
        timer(launch, 0, 1, frames(launch, [0]), footprint=1)
    assert counted == [NODES]


def test_gpus_are_measured_where_there_are_some_and_one_kind_at_a_time() -> None:
    assert measured_kind(Machine.preset("cpu:2")) == "cpu"
    assert name_device("null") == "NullDevice"
    assert name_device() == name_device("cpu")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RequestError, match=r"h100x1 has processors of kind gpu.*where there is one.*--device cuda"):
        measured_kind(ONE_GPU)
