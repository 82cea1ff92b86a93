"""Law 1 in mixed precision: plans of one precision differ by re-ordered float32 sums, and one processor is plain torch.

The reference rounds where the graph says that it does, and nowhere else: what a product reads as it is read, what it
gives as it is complete, and the gradient of a half as it is read.

A sum in another order may fall on the other side of a border between two halves. Then one value of a layer differs by
one unit in the last place of a half, 2^-8 of it under bf16 and 2^-11 under fp16, and no more: bounds say both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_optimizers import Ran
from thread_ranks import run_on_ranks
from torch.nn import functional as F

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.lowering.step_program import FragmentCache
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.runtime.analysis.schedule_builder import ScheduleBuilder
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine
from maniple.strategies.bound import lower_bound_s
from maniple.strategies.simulation.simulation import Simulation

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = 25
WORLDS = ((1, 1), (1, 3), (2, 1), (2, 2), (4, 1), (3, 1))
SCALE = mp.optim.LossScale(init_scale=2.0**24, growth_interval=3)


def network(batch: int = 12, *, normed: bool = True) -> mp.Graph:
    graph = mp.Graph("two layers and a norm")
    x, y = graph.input("x", (batch, 6)), graph.input("y", (batch,), dtype="int64")
    hidden = graph.relu(graph.linear(x, 10, name="l1"))
    hidden = graph.layer_norm(hidden, 10, name="norm") if normed else hidden
    graph.loss(graph.cross_entropy(graph.linear(hidden, 5, name="l2"), y))
    return graph


def pictures(batch: int = 8) -> mp.Graph:
    graph = mp.Graph("pictures")
    x, y = graph.input("x", (batch, 3, 10, 10)), graph.input("y", (batch,), dtype="int64")
    found = graph.max_pool2d(graph.relu(graph.batch_norm(graph.conv2d(x, 8, 3))), 2)
    found = graph.dropout(graph.linear(graph.flatten(found), 32), 0.2)
    graph.output("logits", logits := graph.linear(graph.relu(found), 10))
    graph.loss(graph.cross_entropy(logits, y))
    return graph


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    chance = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(12, 6, generator=chance), torch.randint(5, (12,), generator=chance)


class Rounded(torch.autograd.Function):
    """A value rounded to halves; its gradient passes, rounded where it is that of a half."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, half: torch.dtype, back: bool) -> torch.Tensor:
        ctx.half = half if back else torch.float32
        return value.to(half).float()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return gradient.to(ctx.half).float(), None, None


def reference(
    start: dict[str, torch.Tensor],
    precision: str,
    make: Callable[[Any], torch.optim.Optimizer],
    clip: float | None,
    given_batches: Iterable[tuple[torch.Tensor, torch.Tensor]] | None = None,
    scale: mp.optim.LossScale = SCALE,
    *,
    normed: bool = True,
) -> tuple[list[float], dict[str, torch.Tensor], torch.amp.GradScaler]:
    """The same network in plain torch, with the same casts at the same places, in fp16 under GradScaler."""
    own = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer, half = make(own.values()), HALVES[precision]
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale.init_scale, growth_interval=scale.growth_interval, enabled=precision == "fp16"
    )

    def read(value: torch.Tensor) -> torch.Tensor:
        return Rounded.apply(value, half, False)  # type: ignore[no-any-return, no-untyped-call]

    def given(value: torch.Tensor) -> torch.Tensor:
        return Rounded.apply(value, half, True)  # type: ignore[no-any-return, no-untyped-call]

    def linear(value: torch.Tensor, name: str) -> torch.Tensor:
        return given(F.linear(read(value), read(own[f"{name}.weight"]), read(own[f"{name}.bias"])))

    losses = []
    for x, y in given_batches or batches(STEPS):
        optimizer.zero_grad()
        hidden = read(F.relu(linear(x, "l1")))
        hidden = F.layer_norm(hidden, (10,), own["norm.weight"], own["norm.bias"]) if normed else hidden
        loss = F.cross_entropy(linear(hidden, "l2"), y)
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(own.values(), clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, {name: value.detach() for name, value in own.items()}, scaler


Found = tuple[Ran, dict[str, torch.Tensor], int]


def train(optimizer: AbstractOptimizer, world: tuple[int, int], seed: int, precision: str) -> list[Found]:
    """Train under a random plan with two steps under way."""

    def body(here: World) -> Found:
        machine = host_machine(here)
        plan = mp.search(network(), machine, strategy="random", seed=seed, semantics={"precision": precision})
        simulated = Simulation(network(), machine, plan, optimizer=optimizer).bytes
        with mp.Trainer(network(), plan, optimizer=optimizer, world=here) as trainer:
            start, losses = trainer.parameters(), list(trainer.run(batches(STEPS)))
            return (losses, start, trainer.parameters(), trainer.bytes()), trainer.optimizer_state(), simulated

    return run_on_ranks(world[0], body, processors=world[1])


Rule = tuple[AbstractOptimizer, Callable[[Any], torch.optim.Optimizer], float | None]
RULES: dict[str, Rule] = {
    "AdamW": (mp.optim.AdamW(lr=0.01, loss_scale=SCALE), lambda own: torch.optim.AdamW(own, lr=0.01), None),
    "momentum": (
        mp.SGD(lr=0.1, momentum=0.9, loss_scale=SCALE),
        lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9),
        None,
    ),
    "clipped": (
        mp.optim.AdamW(lr=0.01, clip_norm=0.5, loss_scale=SCALE),
        lambda own: torch.optim.AdamW(own, lr=0.01),
        0.5,
    ),
    "by torch": (
        mp.optim.by_torch(torch.optim.RMSprop, lr=0.01, loss_scale=SCALE),
        lambda own: torch.optim.RMSprop(own, lr=0.01),
        None,
    ),
}


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("rule", RULES)
def test_a_training_equals_plain_torch_with_the_same_casts(precision: str, rule: str) -> None:
    """Losses and parameters; in fp16 scale and overflows are GradScaler's, with the first five steps skipped."""
    optimizer, make, clip = RULES[rule]
    place = [*RULES].index(rule)
    for world in ((1, 1), WORLDS[1 + place], WORLDS[5 - place % 2]):
        (losses, start, found, moved), state, simulated = train(optimizer, world, place, precision)[0]
        wanted, parameters, scaler = reference(start, precision, make, clip)
        assert max(abs(mine - its) for mine, its in zip(losses, wanted, strict=True)) <= 2.0**-11
        assert max(float((found[name] - value).abs().max()) for name, value in parameters.items()) <= 2.0**-11
        assert moved["predicted"] == moved["measured"] == simulated
        if precision == "fp16":
            assert float(state["loss_scale"]) == scaler.get_scale()
            assert float(state["loss_scale.growth_tracker"]) == scaler._get_growth_tracker()  # type: ignore[attr-defined]
            assert float(state["loss_scale.skipped"]) >= 5


@pytest.mark.parametrize(("cores", "normed", "bound"), [(1, False, 1e-6), (2, True, 1e-6), (1, True, 2.0**-11)])
@pytest.mark.parametrize("precision", HALVES)
def test_a_step_of_one_processor_is_that_of_plain_torch(precision: str, cores: int, normed: bool, bound: float) -> None:
    """Every step by itself, from the parameters that the one before it left.

    Nothing is rounded the other way but where one core takes the sums of a norm in an order of its own.
    """
    (world,) = mp.testing.local_worlds(1, cores=cores)
    plan = mp.search(network(normed=normed), host_machine(world), semantics={"precision": precision})
    scale = mp.optim.LossScale(init_scale=1024.0)
    with mp.Trainer(network(normed=normed), plan, optimizer=mp.SGD(0.1, loss_scale=scale), world=world) as trainer:
        for batch in batches(12):
            start = trainer.parameters()
            loss = trainer.step(*batch)
            rule: Rule = mp.SGD(0.1), lambda own: torch.optim.SGD(own, 0.1), None
            (wanted,), parameters, _ = reference(start, precision, *rule[1:], [batch], scale, normed=normed)
            assert abs(loss - wanted) <= bound
            found = trainer.parameters()
            assert max(float((found[name] - value).abs().max()) for name, value in parameters.items()) <= bound


def test_what_a_weight_sends_to_its_readers_is_halves() -> None:
    """Two ranks, each weight spread over both: gathering takes half of the bytes, adding gradients up all of them."""

    def body(here: World) -> list[dict[str, int]]:
        graph, found = network(), []
        for semantics in ({}, {"precision": "bf16"}):
            plan = mp.search(graph, host_machine(here), strategy="data_parallel", semantics=semantics)
            with mp.Trainer(graph, plan, optimizer=mp.SGD(0.1), world=here) as trainer:
                for batch in batches(2):
                    trainer.step(*batch)
                found.append(trainer.bytes())
        return found

    single, half = run_on_ranks(2, body)[0]
    elements = 10 * 6 + 10 + 5 * 10 + 5
    assert (
        single["measured"] - half["measured"] == elements * 2
    )  # each element goes to one other rank, in 2 bytes not 4
    assert (single["measured"], half["measured"]) == (single["predicted"], half["predicted"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [network, pictures])
@pytest.mark.parametrize("precision", HALVES)
def test_the_simulated_step_is_the_lowered_one(precision: str, make: Callable[[], mp.Graph], seed: int) -> None:
    """Time, bytes and memory, the casts and the scale among them; and the bound is below."""
    optimizer, graph = mp.optim.AdamW(), make()
    machine = mp.Machine.preset(("cpu:2", "cpu:2x1", "cpu:2x2", "p100x4")[seed % 4])
    given = {"precision": precision}
    plan = mp.search(graph, machine, strategy="random", seed=seed, semantics=given)
    simulation = Simulation(graph, machine, plan, optimizer=optimizer)
    other = mp.search(graph, machine, strategy="random", seed=seed + 100, semantics=given)
    for _ in range(2):
        program = training_step(graph, simulation.plan, machine, optimizer)
        cache = FragmentCache(machine)
        fragments = [cache.fragment(key) for key in program.keys(machine)]
        builder = ScheduleBuilder(machine, program.launches, program.regions(), fragments)
        schedule = builder.compose()
        _, begin = builder.order(schedule.successors)
        assert simulation.makespan_ns == int((begin + builder.durations).max())
        assert simulation.bytes == schedule.total_bytes
        assert schedule.memory_bytes() == dict(enumerate(simulation.memory_bytes.tolist()))
        assert lower_bound_s(graph, machine, optimizer, simulation.plan.semantics) * 1e9 <= simulation.makespan_ns
        simulation.propose(dict(other.operators), dict(other.weights))
        simulation.accept()


@pytest.mark.parametrize("precision", HALVES)
def test_pictures_train_alike_under_any_plan(precision: str) -> None:
    """Convolution, exact batch norm, pooling and dropout; what an evaluation gives is halves."""
    chance = torch.Generator().manual_seed(2)
    x, y = torch.randn(8, 3, 10, 10, generator=chance), torch.randint(10, (8,), generator=chance)

    def body(here: World, seed: int) -> tuple[list[float], torch.Tensor]:
        given = {"precision": precision}
        plan = mp.search(pictures(), host_machine(here), strategy="random", seed=seed, semantics=given)
        with mp.Trainer(pictures(), plan, optimizer=mp.SGD(0.05), world=here) as trainer:
            losses = [trainer.step(x=x, y=y) for _ in range(4)]
            return losses, trainer.evaluate(x=x)["logits"]

    (wanted, logits), *_ = run_on_ranks(1, lambda here: body(here, 0))
    assert logits.dtype == HALVES[precision]
    assert wanted[-1] < wanted[0]
    for world, seed in (((1, 3), 1), ((2, 1), 2), ((2, 2), 3)):
        for losses, _ in run_on_ranks(world[0], lambda here, seed=seed: body(here, seed), processors=world[1]):
            assert max(abs(a - b) for a, b in zip(losses, wanted, strict=True)) <= 2.0**-7


def test_halves_take_less_memory() -> None:
    """A layer's activations are what a step of this shape consists of: a value in 2 bytes, its gradient in 4."""
    graph = mp.Graph("wide")
    x, y = graph.input("x", (4096, 8)), graph.input("y", (4096,), dtype="int64")
    hidden = graph.linear(x, 64)
    for _ in range(6):
        hidden = graph.linear(graph.relu(hidden), 64)
    graph.loss(graph.cross_entropy(hidden, y))
    machine, sizes = mp.Machine.preset("cpu:1"), []
    for semantics in ({}, {"precision": "bf16"}):
        plan = mp.search(graph, machine, strategy="data_parallel", semantics=semantics)
        found = Simulation(graph, machine, plan).allocated_bytes()
        assert found is not None
        sizes.append(found[0])
    activation = 4096 * 64 * 4
    assert sizes[0] - sizes[1] >= 0.99 * 6 * activation / 2  # less the halves of the weights themselves


@pytest.mark.timeout(600)  # the first search of a checkout compiles what it calls
@pytest.mark.parametrize(("strategy", "cores"), [("soap", 1), ("soap", 2), ("optcnn", 1), ("exhaustive", 1)])
def test_every_search_knows_it(strategy: str, cores: int) -> None:
    """What is searched is the graph that runs; the plan is one of the graph that was given."""
    graph, machine = network(), mp.Machine.preset("cpu:2x1")
    proposals = None if strategy == "optcnn" else 20
    given = {"precision": "bf16"}
    plan = mp.search(graph, machine, strategy=strategy, semantics=given, cores=cores, proposals=proposals)
    plan.validate(graph, machine)
    assert plan.semantics == (("precision", "bf16"),)
    assert mp.Plan.parse(plan.text()) == plan
    assert round((plan.predicted.step_s or 0.0) * 1e9) == Simulation(graph, machine, plan).makespan_ns


@pytest.mark.timeout(600)
def test_a_frontier_knows_it() -> None:
    graph, machine = network(), mp.Machine.preset("cpu:2x1")
    frontier = mp.search(graph, machine, strategy="pareto", objective="pareto", semantics={"precision": "fp16"})
    for point in frontier:
        point.plan.validate(graph, machine)
        assert point.plan.semantics == (("precision", "fp16"),)
    assert apply_semantics(graph, {"precision": "float32"}) is graph


def test_what_no_half_stands_for_is_refused() -> None:
    graph = mp.Graph("double")
    x = graph.input("x", (4, 3), dtype="float64")
    graph.loss(graph.cross_entropy(graph.linear(x, 2), graph.input("y", (4,), dtype="int64")))
    machine = mp.Machine.preset("cpu:1")
    with pytest.raises(mp.RequestError, match=r"semantics\.precision: 'x' of graph 'double' is float64"):
        mp.search(graph, machine, semantics={"precision": "bf16"})
    plan = replace(mp.search(graph, machine), semantics=(("precision", "fp16"),))
    with pytest.raises(mp.RequestError, match=r"semantics\.precision: 'x' of graph 'double' is float64"):
        Simulation(graph, machine, plan)
    with pytest.raises(mp.RequestError, match=r"semantics\.precision: expected .*precision=bf16"):
        mp.search(network(), machine, semantics={"precision": "fp8"})


def whole(least: int, most: int, *shape: int, seed: int) -> torch.Tensor:
    """Whole numbers."""
    return torch.randint(least, most + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def exact(half: torch.dtype) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Parameters of two layers, and a batch, of which every float32 sum of a step is exact in whatever order.

    All are small multiples of 1/2, and what is wanted is near to what is given, so that gradients have few digits.
    What the layers give, their gradients and those of weights need more digits than a half has.
    """
    held = {"l1.weight": whole(-8, 8, 10, 6, seed=1) / 2, "l1.bias": whole(-8, 8, 10, seed=2)}
    held |= {"l2.weight": whole(-8, 8, 4, 10, seed=3) / 2, "l2.bias": whole(-8, 8, 4, seed=4)}
    x, double = whole(-31, 31, 8, 6, seed=5), {name: value.double() for name, value in held.items()}
    hidden = F.relu(F.linear(x.double(), double["l1.weight"], double["l1.bias"]).to(half)).double()
    complete = F.linear(hidden, double["l2.weight"], double["l2.bias"])
    assert (complete.to(half) != complete).any()
    return held, x, complete.to(half).float() - whole(-7, 7, 8, 4, seed=6)


@pytest.mark.parametrize("precision", HALVES)
def test_where_float32_sums_are_exact_plans_of_a_precision_give_the_same_bits(precision: str) -> None:
    """So sums are in float32 and rounded once, however a plan cuts them: nothing else tells two plans apart."""
    held, x, y = exact(HALVES[precision])

    def linear() -> mp.Graph:
        graph = mp.Graph("exact sums")
        hidden = graph.relu(graph.linear(graph.input("x", (8, 6)), 10, name="l1"))
        graph.loss(graph.mse_loss(graph.linear(hidden, 4, name="l2"), graph.input("y", (8, 4))))
        return graph

    def body(here: World, seed: int) -> tuple[float, dict[str, torch.Tensor]]:
        given, scale = {"precision": precision}, mp.optim.LossScale(init_scale=1024.0)
        plan = mp.search(linear(), host_machine(here), strategy="random", seed=seed, semantics=given)
        optimizer = mp.SGD(2.0**-6, momentum=0.5, loss_scale=scale)
        with mp.Trainer(linear(), plan, optimizer=optimizer, world=here) as trainer:
            trainer.load_state_dict(held)
            return trainer.step(x=x, y=y), {**trainer.parameters(), **trainer.optimizer_state()}

    (loss, wanted), *_ = run_on_ranks(1, lambda here: body(here, 0))
    gradient = wanted["l2.weight.momentum"]
    assert (gradient.to(HALVES[precision]) != gradient).any()
    for seed, world in enumerate(WORLDS[1:] * 2):
        for found, state in run_on_ranks(world[0], lambda here, seed=seed: body(here, seed), processors=world[1]):
            assert found == loss
            assert not [name for name, value in wanted.items() if not torch.equal(state[name], value)]
