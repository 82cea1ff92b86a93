"""A program for `maniple calibrate`: measures a GPU as a lane uses it, and what its host takes to feed it.

Everything is submitted to the device's stream of tasks and timed by its own clock, but for the fixed cost of a run:

    program   step ......................... loss heard, device idle        <- a step
    host       | inputs | submit |                     | hear |
    device                       [in][in][graph][out][graph]                <- its rows, by the simulator
               run_s = step - rows

Rank 0 prints one JSON object.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, final

from maniple.operators.graph.graph import Graph
from maniple.operators.training.descent import SGD
from maniple.process.error import RequestError
from maniple.runtime.devices.multiplication import MULTIPLICATION
from maniple.runtime.devices.processor import run_as_task
from maniple.runtime.devices.registry import open_device
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Feed
from maniple.strategies.cost_model.calibration import GpuRates, calibrate_gpus
from maniple.strategies.cost_model.gpu_timer import elapsed_ns, time_nodes
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation
from maniple.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from maniple.operators.plan.plan import Plan
    from maniple.runtime.control.world import World
    from maniple.runtime.devices.device import Device

__all__: list[str] = []

TYPES = ("float32", "tf32", "bfloat16", "float16", "float64")
"""What products are timed in: ``tf32`` is float32 with the tensor cores' rounding."""
STEPS, TIMES = 40, 4
WORKED_S = 0.2
"""Seconds that a device multiplies before it is measured."""


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured with.

    Args:
        matrix: rows of the matrices that are multiplied.
        copied: bytes of what is copied within the device.
        pinned: bytes of what is copied between host and device.
        staged: bytes of a batch that the host copies first.
        nodes: of a graph of tasks that do next to nothing; as many are launched one by one.
    """

    matrix: int = 4096
    copied: int = 1 << 29
    pinned: int = 1 << 26
    staged: int = 1 << 22
    nodes: int = 1000


SMALL = Sizes(32, 1 << 12, 1 << 12, 1 << 12, 20)
"""For devices that stand in for GPUs: no rate of theirs means anything."""


def measure_gpu(kind: str, capacity: int, sizes: Sizes) -> GpuRates:
    """Measure a device of this host, but for the fixed cost of a run.

    Args:
        kind: the device, by its name in the registry.
        capacity: bytes that it may hold.
        sizes: how much to measure with.

    Raises:
        RequestError: there is no such device here.
    """
    import torch

    device = open_device(kind, 0, capacity)
    device.timed = True
    try:
        with device.binding(), run_as_task():
            products = {name: 2.0e9 * sizes.matrix**3 / _product_ns(device, name, sizes.matrix) for name in TYPES}
            near, other = (torch.zeros(sizes.copied // 4) for _ in range(2))
            little = torch.zeros(1)
        copied_ns = _alone_ns(device, partial(other.copy_, near))
        node_ns = statistics.median(time_nodes(device, [partial(little.add_, 0)] * sizes.nodes))
        eager = [partial(little.copy_, device.stage(1, torch.float32), non_blocking=True)] * sizes.nodes
        eager_ns = _alone_ns(device, lambda: [body() for body in eager]) / sizes.nodes
        far, count = device.stage(sizes.pinned // 4, torch.float32), sizes.pinned // 4
        far.zero_()
        up_ns = _alone_ns(device, partial(near[:count].copy_, far, non_blocking=True))
        down_ns = _alone_ns(device, partial(_leave, far, near[:count]))
        staging = _staging_rate(device, torch.ones(sizes.staged // 4))
    finally:
        device.close()
    rates = staging, 1e9 * sizes.pinned / up_ns, 1e9 * sizes.pinned / down_ns
    feed = Feed(eager_ns / 1e9, 0.0, *rates)
    return GpuRates(products, 2e9 * sizes.copied / copied_ns, node_ns / 1e9, feed)


def _staging_rate(device: Device, values: torch.Tensor) -> float:
    """The bytes per second that the host copies to where the device fetches them."""
    taken = []
    for _ in range(7):
        begun = time.perf_counter()
        device.bring(values)
        taken.append(time.perf_counter() - begun)
    return values.nbytes / statistics.median(taken[1:])


def _leave(far: torch.Tensor, near: torch.Tensor) -> None:
    far.copy_(near, non_blocking=True)


def _product_ns(device: Device, name: str, rows: int) -> float:
    """The nanoseconds of a product of two square matrices."""
    import torch

    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    a = torch.linspace(0, 1, rows * rows).to(dtype).view(rows, rows)
    product = partial(torch.mm, a, a, out=torch.zeros(rows, rows, dtype=dtype))
    with MULTIPLICATION.tf32() if name == "tf32" else nullcontext():
        end = time.perf_counter() + WORKED_S
        while True:  # at work for a while it may be slower, for the power that it takes
            found = statistics.median(time_nodes(device, [product] * 8))
            if time.perf_counter() > end:
                return found


def _alone_ns(device: Device, work: Callable[[], object]) -> float:
    """The nanoseconds of some work, several times behind each other, after a round that does not count."""
    return statistics.median([elapsed_ns(device, work, TIMES) / TIMES for _ in range(6)][1:])


def measure_run(world: World | None, machine: Machine, sizes: Sizes) -> float:
    """Measure the seconds that a run takes beside its rows, as the simulator times these.

    Args:
        world: of one rank.
        machine: with the rates that were measured.
        sizes: how much is measured with.
    """
    graph = Graph("little")
    x, y = graph.input("x", (4, 16)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.relu(graph.linear(x, out_features=16)), y))
    plan = DataParallel().plan(Problem(graph, machine))
    rows_s = Simulation(graph, machine, plan).makespan_ns / 1e9
    return step_seconds(graph, plan, world, STEPS if sizes.nodes > SMALL.nodes else 2) - rows_s


def step_seconds(graph: Graph, plan: Plan, world: World | None, steps: int) -> float:
    """The median seconds of a step, from its submission until its loss is there and the device has nothing to do.

    Args:
        graph: the graph.
        plan: how it is run.
        world: where; None for the launched one.
        steps: how many count.
    """
    import torch

    batch = {tensor.name: torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in graph.inputs}
    taken = []
    with Trainer(graph, plan, optimizer=SGD(lr=0.0), world=world) as trainer:
        for _ in range(steps + 4):
            begun = time.perf_counter()
            trainer.step(**batch)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken[4:])


def probe(world: World | None) -> tuple[GpuRates, Machine]:
    """Measure the first GPU of this rank, alone in its world; give what was found, and the machine with it.

    Args:
        world: of one rank; None for the launched one.

    Raises:
        RequestError: its processors are CPUs.
    """
    from maniple.runtime.control import world as launched

    world = world or launched.current()
    if world.device == "cpu":
        raise RequestError("gpu_probe: expected a run with --device cuda, got CPUs")
    machine, sizes = Machine.detect(world), Sizes() if world.device == "cuda" else SMALL
    found = measure_gpu(world.device, machine.memories[0].capacity_bytes, sizes)
    fixed_s = max(0.0, measure_run(world, calibrate_gpus(machine, found, None), sizes))
    found = replace(found, feed=replace(found.feed, run_s=fixed_s))
    return found, calibrate_gpus(machine, found, None)


def main() -> None:
    """Measure, and print what was found."""
    found, machine = probe(None)
    print(json.dumps({**asdict(found), "machine": machine.to_json()}))  # noqa: T201  (the result of the program)


if __name__ == "__main__":
    main()
