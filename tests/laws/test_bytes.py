"""Laws 2 and 3: what moves follows from rectangles alone, no byte more, and as many bytes as predicted are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise, product
from math import prod

import pytest
import torch
from hypothesis import settings
from thread_ranks import run_on_ranks
from trained_networks import NETWORKS, OPTIMIZER

import maniple as mp
from maniple.operators.lowering.composite import lower_composites
from maniple.operators.lowering.expansion import Expansion, elided_views
from maniple.operators.lowering.fusion.fused_launch import home_names
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.lowering.weight import weights
from maniple.operators.rules.tile import split_range
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.schedule import RowKind, Schedule

ITEM = {"float64": 8, "float32": 4}
STRATEGIES = ("data_parallel", "expert", "model_parallel", "spatial", "random")


def stepped(graph: mp.Graph, plan: mp.Plan, world: World, size: int, steps: int = 2) -> tuple[Schedule, dict[str, int]]:
    """The schedule of a step, and the bytes that the last of some steps moved."""
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    chance = torch.Generator().manual_seed(size)
    x = torch.rand((size, *inputs["x"].shape[1:]), generator=chance, dtype=torch.float64)
    batch = {"x": x.to(getattr(torch, inputs["x"].dtype)), "y": torch.arange(size) % 3}
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world) as trainer:
        for _ in range(steps):
            trainer.step(**batch)
        return trainer.schedule, trainer.bytes()


def planned(graph: mp.Graph, machine: mp.Machine, plan: mp.Plan) -> Schedule:
    """The schedule of a training step, without running it."""
    table = RegionTable()
    expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, OPTIMIZER, table), table)
    return lower(expansion.training_step(OPTIMIZER), FragmentCache(machine))


def by_region(schedule: Schedule) -> Counter[str]:
    """The bytes that each region's values and contributions cost."""
    found: Counter[str] = Counter()
    for row in range(len(schedule)):
        if schedule.bytes[row]:
            found[schedule.regions[schedule.region[row]].name] += int(schedule.bytes[row])
    return found


def parameter_bytes(graph: mp.Graph) -> dict[str, int]:
    return {tensor.name: prod(tensor.shape) * ITEM[tensor.dtype] for tensor in graph.parameters}


# ------------------------------------------------------------------------------------------------- data parallelism


# The bytes of an element are a factor of all that moves: a network with either.
@pytest.mark.parametrize(
    ("name", "dtype"), [("digits", "float32"), ("mlp7", "float64"), ("mlp13", "float32"), ("residual", "float64")]
)
@pytest.mark.parametrize(("ranks", "processors"), [(1, 1), (2, 1), (3, 1), (4, 1), (1, 3), (2, 2)])
def test_data_parallelism_moves_the_parameters_twice(name: str, dtype: str, ranks: int, processors: int) -> None:
    """A value and its gradient, as a ring all-reduce moves them, and the mean loss, as a sum that all get back.

    of S bytes on P ranks   reduced to the homes   gathered from the homes
    gradient, then value    (P - 1) S              (P - 1) S
    loss                    (P - 1) item           (P - 1) item
    """
    graph = NETWORKS[name].graph(dtype)

    def body(world: World) -> tuple[Schedule, dict[str, int]]:
        plan = mp.search(graph, host_machine(world), strategy="data_parallel")
        return stepped(graph, plan, world, graph.batch)

    wanted = 2 * (ranks - 1) * (sum(parameter_bytes(graph).values()) + ITEM[dtype])
    for _, moved in run_on_ranks(ranks, body, processors=processors):
        assert moved == {"predicted": wanted, "measured": wanted}


# -------------------------------------------------------------------------------------------------------- halo rows


def halves(extent: int, parts: int) -> list[range]:
    """The rows of each part: sizes differ by one at most, larger first."""
    sizes = [extent // parts + (part < extent % parts) for part in range(parts)]
    ends = [0, *(sum(sizes[: i + 1]) for i in range(parts))]
    return [range(low, high) for low, high in pairwise(ends)]


def halo_rows(height: int, parts: int, kernel: int, stride: int) -> int:
    """Rows of the operand that some part reads and another has, row by row."""
    padding, out = kernel // 2, (height - 1) // stride + 1
    rows = 0
    for mine, produced in zip(halves(height, parts), halves(out, parts), strict=True):
        read = {r * stride - padding + j for r in produced for j in range(kernel)} & set(range(height))
        rows += len(read - set(mine))
    return rows


def image_network(batch: int, height: int, kernel: int, stride: int) -> mp.Graph:
    g = mp.Graph("images")
    x, y = g.input("x", (batch, 2, height, 5), "float64"), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.conv2d(x, 3, kernel_size=kernel, padding=kernel // 2), name="image")
    h = g.conv2d(h, 4, kernel_size=kernel, stride=(stride, 1), padding=kernel // 2, name="second")
    logits = g.linear(g.flatten(h), 3)
    g.loss(g.cross_entropy(logits, y))
    return g


def spatial_bytes(graph: mp.Graph, batch: int, height: int, parts: int, kernel: int, stride: int) -> Counter[str]:
    """What `spatial` moves, region by region."""
    out = (height - 1) // stride + 1
    halo = halo_rows(height, parts, kernel, stride) * batch * 3 * 5 * 8
    # From rows to samples: a part has its own rows of all samples, and wants all rows of its own samples.
    kept = sum(len(rows) * len(own) for rows, own in zip(halves(out, parts), halves(batch, parts), strict=True))
    turned = (batch * out - kept) * 4 * 5 * 8
    wanted = Counter({"image": halo, "image.grad": halo, "second": turned, "second.grad": turned})
    for name, size in parameter_bytes(graph).items():
        wanted[name] = wanted[f"{name}.grad"] = (parts - 1) * size
    wanted["cross_entropy"] = 2 * (parts - 1) * 8
    return wanted


@pytest.mark.parametrize(
    ("kernel", "stride", "rows"),
    [
        # Rows 0..11 on two parts, cut between 5 and 6; * are the rows that the part below the cut reads, + the one
        # above. Row r of the result reads rows r*stride - kernel//2 + 0..kernel-1.
        #
        # kernel  stride   the part of rows 0..5 reads   the part of rows 6..11 reads   k - s rows for each cut
        (3, 1, 2),  #      0 . . . . 5 6*                  5+ 6 . . . . 11
        (5, 1, 4),  #      0 . . . . 5 6* 7*               4+ 5+ 6 . . . . 11
        (3, 2, 1),  #      0 . . . . 5                     5+ 6 . . . . 11
        (5, 2, 3),  #      0 . . . . 5 6*                  4+ 5+ 6 . . . . 11
    ],
)
@pytest.mark.parametrize("parts", [2, 3])
def test_spatial_moves_halo_rows(parts: int, kernel: int, stride: int, rows: int) -> None:
    assert rows == kernel - stride
    batch, height = 6, 12
    graph = image_network(batch, height, kernel, stride)

    def body(world: World) -> tuple[Schedule, dict[str, int]]:
        return stepped(graph, mp.search(graph, host_machine(world), strategy="spatial"), world, batch)

    wanted = spatial_bytes(graph, batch, height, parts, kernel, stride)
    assert wanted["image"] == wanted["image.grad"] == (parts - 1) * rows * batch * 3 * 5 * 8
    for schedule, moved in run_on_ranks(parts, body):
        assert by_region(schedule) == wanted
        assert moved == {"predicted": wanted.total(), "measured": wanted.total()}


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize(("batch", "height", "parts"), [(5, 11, 2), (7, 13, 3), (5, 14, 4)])
def test_spatial_moves_halo_rows_of_uneven_parts(batch: int, height: int, parts: int, kernel: int) -> None:
    graph = image_network(batch, height, kernel, 1)

    def body(world: World) -> tuple[Schedule, dict[str, int]]:
        return stepped(graph, mp.search(graph, host_machine(world), strategy="spatial"), world, batch)

    wanted = spatial_bytes(graph, batch, height, parts, kernel, 1)
    assert wanted["image"] == (parts - 1) * (kernel - 1) * batch * 3 * 5 * 8
    for schedule, moved in run_on_ranks(parts, body):
        assert by_region(schedule) == wanted
        assert moved == {"predicted": wanted.total(), "measured": wanted.total()}


def test_processors_of_one_rank_share_a_memory() -> None:
    for strategy, seed in product(STRATEGIES, range(3)):
        graph = NETWORKS["digits"].graph("float32")
        machine = mp.Machine.cpu(4)
        assert planned(graph, machine, mp.search(graph, machine, strategy=strategy, seed=seed)).total_bytes == 0


# ------------------------------------------------------------------------------------------- measured by the transport


def test_payloads_are_counted_where_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meter is not the schedule's: a transport that is handed a byte more, measures a byte more."""
    from maniple.runtime.control.loopback import LoopbackTransport

    graph = NETWORKS["mlp7"].graph("float64")
    sent: list[int] = []
    send = LoopbackTransport.send

    def counted(self: LoopbackTransport, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        if payload is not None and account == 1:
            sent.append(payload.nbytes)
        send(self, peer, header, payload, account)

    def body(world: World) -> tuple[Schedule, dict[str, int]]:
        return stepped(graph, mp.search(graph, host_machine(world), strategy="random", seed=5), world, 7, steps=1)

    monkeypatch.setattr(LoopbackTransport, "send", counted)
    for schedule, moved in run_on_ranks(2, body):
        assert moved == {"predicted": schedule.total_bytes, "measured": sum(sent)}
        assert schedule.total_bytes == sum(sent) > 0


# ------------------------------------------------------------------------------------------- tasks run where planned


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("name", ["digits", "mlp13", "residual"])
def test_every_point_runs_once_unless_the_plan_says_replicas(name: str, shape: tuple[int, int]) -> None:
    graph = NETWORKS[name].graph("float32")
    machine = mp.Machine.cpu(shape[1], ranks=shape[0])
    plans = [mp.search(graph, machine, strategy=strategy) for strategy in STRATEGIES[:-1]]
    plans += [mp.search(graph, machine, strategy="random", seed=seed) for seed in range(settings().max_examples // 10)]
    for plan in plans:
        # A composite whose plan splits it is planned as the operators that it stands for.
        lowered = lower_composites(graph, plan, training=True)
        check_points(*lowered, planned(graph, machine, plan), elided_views(graph, plan, machine, OPTIMIZER))


def check_points(graph: mp.Graph, plan: mp.Plan, schedule: Schedule, elided: Collection[str]) -> None:
    tasks = [
        (int(schedule.launch[row]), int(schedule.point[row]), int(schedule.processor[row]))
        for row in range(len(schedule))
        if schedule.kind[row] == RowKind.TASK
    ]
    # Every point of every launch is one row, on the processor that the launch says.
    assert Counter((launch, point) for launch, point, _ in tasks) == Counter(
        (number, point) for number, launch in enumerate(schedule.launches) for point in range(len(launch.points))
    )
    assert all(schedule.launches[launch].points[point].processor == processor for launch, point, processor in tasks)
    launches = {launch.name: launch for launch in schedule.launches}
    assert len(launches) == len(schedule.launches)
    for launch in schedule.launches:
        named = [(point.color, point.replica) for point in launch.points]
        assert len(set(named)) == len(named), launch
    assert not any(launches.keys() & {f"{name}.forward", f"{name}.backward"} for name in elided)
    for node in graph.nodes:
        if node.name in elided:  # what it gives is used where its operand lies
            continue
        config = plan.operator(node.name)
        forward = launches[f"{node.name}.forward"].points
        grid = list(product(*(range(degree) for _, degree in config.degrees)))
        assert {point.color for point in forward} == set(grid)
        for number, color in enumerate(grid):
            ran = [point.processor for point in forward if point.color == color]
            allowed = config.processors[number * config.replicas : (number + 1) * config.replicas]
            assert ran[0] == allowed[0]
            assert len(ran) <= config.replicas
            assert set(ran) <= set(allowed)
        backward = launches.get(f"{node.name}.backward")
        if backward is not None:  # gradients count once: where the forward ran first
            firsts = {point.color: point.processor for point in reversed(forward)}
            assert {point.color: point.processor for point in backward.points} == firsts
            assert len(backward.points) == len(grid)
    updated = {name: launch for launch in schedule.launches for name in home_names(launch)}
    for tensor in graph.parameters:
        home, launch = plan.weight(tensor.name), updated[tensor.name]
        (rects,) = [need.rects for need in launch.requirements if need.region.name == tensor.name]
        blocks = [tuple(zip(*block, strict=True)) for block in product(*map(split_range, tensor.shape, home.degrees))]
        for point, rect in zip(launch.points, rects, strict=True):
            number = blocks.index((rect.bounds.lo, rect.bounds.hi) if tensor.shape else ())
            assert point.processor in home.processors[number * home.replicas : (number + 1) * home.replicas]


# ----------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["digits", "residual"])
def test_memory_is_known_before_the_run(name: str, strategy: str, shape: tuple[int, int]) -> None:
    network = NETWORKS[name]
    graph = network.graph("float64")

    def body(world: World) -> tuple[int, int, int]:
        plan = mp.search(graph, host_machine(world), strategy=strategy, seed=4)
        trainer = mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world)
        every = trainer.schedule.memory_bytes()[world.rank]
        for seed in range(2):
            trainer.step(**network.samples(seed, network.batch, "float64"))
        (loaded,) = trainer._loaded.values()
        used = sum(memory.allocated_bytes() for memory in RankRuntime.of(world).memories.values())
        return sum(loaded.replay.needs().values()), used, every

    for need, used, every in run_on_ranks(shape[0], body, processors=shape[1]):
        assert 0 < need == used < every + 4096  # the block and what outlasts it are rounded up to cache lines
