"""Stages on top of a frontier: against brute force over cuts and assignments, and pipelines that run."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from layered_graph import layers

import maniple as mp
from maniple.operators.lowering.precision import apply_semantics
from maniple.runtime.control.world import World
from maniple.strategies.frontier.arrangement import Arrangement, cuts_of
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.own_price import Turns
from maniple.strategies.frontier.pareto import Pareto
from maniple.strategies.frontier.seam import recomputable
from maniple.strategies.frontier.stage_group import StageGroup
from maniple.strategies.frontier.stage_search import Pattern, Staged, StageSearch
from maniple.strategies.frontier.weighted_sum import Found
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.home_table import GATHERED, HOMES, HOMES_IN_PARTS, PASSING, SPREAD, SUMMED, WHERE_USED

pytestmark = pytest.mark.simulator


def best(points: set[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for memory, ticks in sorted(points):
        if not kept or ticks < kept[-1][1]:
            kept.append((memory, ticks))
    return kept


def test_what_only_one_sample_could_be_cut_by_stays_whole() -> None:
    """Positions joined with the samples: of a micro-batch of one they are the outermost dimension, of the batch not."""
    import torch

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scores = torch.nn.Linear(16, 16), torch.nn.Linear(16, 64)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.scores(self.inner(x)).reshape(-1, 64), y.reshape(-1))

    graph = mp.from_torch(Joined(), (torch.zeros(4, 8, 16), torch.zeros(4, 8, dtype=torch.int64)))
    machine = mp.Machine.preset("p100x4")
    search = StageSearch(Problem(graph, machine), (False,) * len(graph.nodes), 0.0, 1)
    found = search.points(Arrangement(1, "1f1b", 4))
    assert found
    for point in found:
        search.plan(point, "pareto").validate(graph, machine)


def tied(batch: int = 8, width: int = 512) -> mp.Graph:
    """Five layers: the first, the third and the last have one weight, the second and the fourth another."""
    graph = mp.Graph("tied")
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    both = [graph.parameter(name, (width, width)) for name in ("one", "other")]
    for number in range(5):
        x = graph.linear(x, width, weight=both[number % 2], bias=False)
    graph.loss(graph.cross_entropy(x, y))
    return graph


def pattern_of(graph: mp.Graph, bounds: tuple[int, ...]) -> Pattern:
    """What each stage shares with others, weight by weight."""
    users = {
        tensor.id: [n for n, node in enumerate(graph.nodes) if tensor.id in node.operands] for tensor in graph.lasting
    }
    stages = [range(first, last) for first, last in pairwise(bounds)]
    return tuple(
        frozenset(
            weight
            for weight, own in users.items()
            if any(user in stage for user in own) and any(user not in stage for user in own)
        )
        for stage in stages
    )


@pytest.mark.parametrize(
    ("graph", "arrangement"),
    [
        (layers(count=2), Arrangement(2, "1f1b", 2)),
        (layers(count=2), Arrangement(2, "1f1b", 4)),
        (tied(), Arrangement(4, "1f1b", 4)),
    ],
    ids=["two micro-batches", "four micro-batches", "shared weights"],
)
def test_the_frontier_is_that_of_all_cuts_and_assignments(graph: mp.Graph, arrangement: Arrangement) -> None:
    search = StageSearch(Problem(graph, mp.Machine.preset("p100x4")), (False,) * len(graph.nodes), 0.0, 1)
    found = search.points(arrangement)
    assert [(point.memory, point.ticks) for point in found] == best(all_pipelines(search, graph, arrangement))


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_what_is_left_out_of_an_arrangement_known_plans_stand_for(epsilon: float, share: float) -> None:
    """Against all cuts and assignments, with results computed again; of what is known the ends are exact."""
    graph, arrangement = layers(count=2, width=64), Arrangement(2, "1f1b", 2)
    search = StageSearch(Problem(graph, mp.Machine.preset("p100x4")), recomputable(graph), epsilon, 1)
    every = best(all_pipelines(search, graph, arrangement))
    # Plans that are a little better or worse than what is there, on one half of it.
    some = [(round(memory * share), round(ticks * (2.0 - share))) for memory, ticks in every[::2]]
    known = best({*some})
    columns = np.array([memory for memory, _ in known]), np.array([ticks for _, ticks in known])
    found = [(point.memory, point.ticks) for point in search.points(arrangement, columns)]
    together = [*found, *known]
    assert min(memory for memory, _ in together) == min(memory for memory, _ in [*every, *known])
    assert min(ticks for _, ticks in together) == min(ticks for _, ticks in [*every, *known])
    for memory, ticks in every:
        assert any(m <= (1.0 + epsilon) * memory and t <= (1.0 + epsilon) * ticks for m, t in together)


def all_pipelines(search: StageSearch, graph: mp.Graph, arrangement: Arrangement) -> set[tuple[int, int]]:
    """Memory and ticks of what no other beats, for all cuts, and all assignments of every stage."""
    every = set[tuple[int, int]]()
    for cuts in combinations(cuts_of(graph), arrangement.stages - 1):
        bounds, cells = (0, *cuts, len(graph.nodes)), []
        for stage, own in enumerate(arrangement.turns()):
            group = search.group(arrangement.stages, stage, pattern_of(graph, bounds))
            model = search.model(bounds[stage], bounds[stage + 1], group, own)
            # Of what has no weights all homes are the same.
            homes = [size.shape[1] if np.ptp(size, axis=1).any() else 1 for size, _ in model.own]
            sizes, count = (*model.sizes, *homes), len(homes)
            rows = np.indices(sizes).reshape(len(sizes), -1).T
            memory, ticks = model.totals(rows[:, :count], rows[:, count:])
            cells.append(best(set(zip(memory.tolist(), ticks.tolist(), strict=True))))
        for points in product(*cells):
            every.add((max(memory for memory, _ in points), max(ticks for _, ticks in points)))
    return every


@pytest.mark.parametrize("name", ["cpu:4x1", "p100x4"])
def test_no_plan_without_stages_is_lost_to_one_that_only_the_model_takes_for_better(name: str) -> None:
    """Nothing overlaps in the model, and much does in the simulation."""
    graph, machine = layers(3, 16, 64), mp.Machine.preset(name)
    whole = mp.search(graph, machine, strategy="pareto", objective="pareto")
    both = mp.search(graph, machine, strategy="pareto", objective="pareto", space=["stages"])
    assert len(whole) <= 32, "all of them are simulated again"
    for point in whole:
        assert any(
            other.step_s <= point.step_s and other.peak_memory_bytes <= point.peak_memory_bytes for other in both
        ), [(p.step_s, p.peak_memory_bytes) for p in (*whole, *both)]


def test_pipelines_of_a_frontier_run_with_the_losses_of_one_processor() -> None:
    """Law 1, for the leanest and the fastest pipeline of two stages of two processors, each with its own weights."""
    import torch

    graph, machine = layers(), mp.Machine.cpu(4)
    search = StageSearch(Problem(graph, machine), (False,) * len(graph.nodes), 0.01, 1)
    points = search.points(Arrangement(2, "1f1b", 4))
    plans = [search.plan(point, "pareto") for point in (points[0], points[-1])]
    torch.manual_seed(0)
    batch = {"x": torch.randn(8, 12), "y": torch.randint(0, 4, (8,))}
    losses = []
    for plan in (mp.search(graph, mp.Machine.cpu(1)), *plans):
        plan.validate(graph, mp.Machine.cpu(1) if not losses else machine)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1, momentum=0.9), world=World.solo(processors=4)) as trainer:
            losses.append([float(trainer.step(**batch)) for _ in range(3)])
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)


def test_what_counts_steps_for_a_buffer_is_not_computed_again_where_stages_take_turns() -> None:
    """Captured batch norms count their steps, once in a step; plans that compute that again are refused."""
    import torch
    from torch import nn

    module = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU())))
    zeros = (torch.zeros(8, 12),)
    graph = mp.from_torch(module, zeros, loss=nn.functional.mse_loss, targets=zeros)
    local = apply_semantics(graph, {"batch_norm": "local_stats"})
    search = StageSearch(Problem(local, mp.Machine.cpu(2)), (True,) * len(local.nodes), 0.01, 1)
    for count in (1, 2):
        point = search.points(Arrangement(count, "1f1b", 4))[0]
        plan = search.plan(point, "pareto")
        again = [name for name, each in plan.operators if each.recompute]
        assert again, "the leanest computes something again"
        plan.order(local)
        assert not [name for name in again if name.endswith(".add")]


def by_samples(graph: mp.Graph) -> tuple[int, ...]:
    """Of each operator the number of the choice that cuts samples in four and nothing else."""
    space = Space.of(graph, 4)
    choices = [full_splits(space, number) for number in range(len(space.names))]
    return tuple(
        next(place for place, choice in enumerate(own) if choice.degrees == (4, *(1,) * (len(choice.degrees) - 1)))
        for own in choices
    )


@pytest.mark.parametrize("home", range(HOMES_IN_PARTS))
def test_every_home_of_micro_batches_is_a_plan_that_runs(home: int) -> None:
    """Law 1: the losses of one processor, and the homes of ZeRO's stages, by what a plan says of them."""
    import torch

    graph, machine = layers(count=2), mp.Machine.cpu(4)
    search = StageSearch(Problem(graph, machine), (False,) * len(graph.nodes), 0.01, 1)
    found = Found(0, 0, by_samples(graph.with_batch(4)), (home,) * len(graph.nodes))
    plan = search.plan(Staged(0, 0, Arrangement(1, "1f1b", 2), ((0, len(graph.nodes), found),)), "pareto")
    said = {(lives.copy, lives.sums, lives.replicas) for _, lives in plan.weights}
    assert said == {
        {
            SPREAD: ("kept", "use", 1),
            WHERE_USED: ("kept", "use", 4),
            PASSING: ("pass", "home", 1),
            SUMMED: ("kept", "home", 1),
            GATHERED: ("pass", "use", 1),
        }[home]
    }
    torch.manual_seed(0)
    batch = {"x": torch.randn(8, 12), "y": torch.randint(0, 4, (8,))}
    losses = []
    for each in (mp.search(graph, mp.Machine.cpu(1)), plan):
        with mp.Trainer(graph, each, optimizer=mp.SGD(lr=0.1, momentum=0.9), world=World.solo(processors=4)) as trainer:
            losses.append([float(trainer.step(**batch)) for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_homes_of_micro_batches_trade_what_is_sent_for_what_is_whole() -> None:
    """By hand for a layer of 12 x 12 floats and a bias, whose samples four processors have, in two micro-batches."""
    graph, machine = layers(count=2), mp.Machine.preset("p100x4")
    search = StageSearch(Problem(graph, machine), (False,) * len(graph.nodes), 0.01, 1)
    turns = Turns(2, 2.0, 1)
    memory, ticks = (
        axis[by_samples(graph.with_batch(4))[0]] for axis in search.model(0, 1, StageGroup((0, 1, 2, 3)), turns).own[0]
    )
    whole = 4 * (12 * 12 + 12)
    # Value, sum of gradients and velocity: whole, or a quarter.
    rest = memory[SPREAD] - (2 * whole + whole // 4)
    assert [int(each - rest) * 4 // whole for each in memory] == [9, 12, 3, 6, 6]
    assert ticks[SUMMED] > ticks[SPREAD]
    assert ticks[PASSING] - ticks[GATHERED] == ticks[SUMMED] - ticks[SPREAD]  # gradients go home twice
    assert ticks[GATHERED] > ticks[SPREAD]
    assert search.model(0, 1, StageGroup((0, 1, 2, 3)), Turns(1, 2.0, 1)).own[0][0].shape[1] == HOMES


def test_a_search_with_stages_has_pipelines_among_its_models_points() -> None:
    graph, machine = layers(count=3, batch=16), mp.Machine.preset("p100x4")
    strategy = Pareto()
    state = strategy.init(Problem(graph, machine, space=("stages",)))
    while state.left or state.solution is None:
        state = strategy.step(state)
    assert any(isinstance(point, Staged) for point in state.points)
    memory, ticks = [point.memory for point in state.points], [point.ticks for point in state.points]
    assert memory == sorted(memory)
    assert ticks == sorted(ticks, reverse=True)
    while not strategy.terminate(state):
        state = strategy.step(state)
    found = strategy.frontier(state)
    own = len(state.solution.points) if state.solution is not None else 0
    cut = sum(isinstance(point, Staged) for point in state.points)
    assert len(state.simulated) == min(32, own) + min(64 - min(32, own), cut)
    assert any(point.plan.pipeline is not None for point in state.simulated)
    for point in found:
        point.plan.validate(graph, machine)
