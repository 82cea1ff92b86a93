"""Pipelines without a flush train as plain torch with lists of weights: versions, predictions, ramp and drain."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from chained_stages import BATCH, OPTIMIZERS, apart, batches, chain, flowing, listed, pairs
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.operators.pipeline_order.version_rule import RULES
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.strategies.simulation.simulation import Simulation

WITHIN = 1e-10
STEPS = 30


def check(
    rule: str,
    optimizer: str,
    stages: int,
    ranks: int,
    *,
    shared: bool = False,
    split: int = 1,
    size: int = BATCH,
    order: str = "asynchronous",
) -> None:
    """Losses and parameters of 30 mini-batches, ramp and drain among them, are those of plain torch on every rank."""
    graph, given = chain(stages, size), batches(STEPS, size)
    plan = flowing(graph, stages, rule, split, size, order)

    def body(world: World) -> tuple[dict[str, torch.Tensor], list[float], dict[str, torch.Tensor]]:
        with mp.Trainer(graph, plan, optimizer=OPTIMIZERS[optimizer][0], seed=1, world=world) as trainer:
            first = trainer.parameters()
            losses = list(trainer.run({"x": x, "y": y} for x, y in given))
            return first, losses, trainer.parameters()

    for first, losses, last in run_on_ranks(ranks, body, processors=stages * split // ranks, shared=shared):
        wanted, had = listed(first, given, rule, optimizer)
        assert max(abs(one - other) for one, other in zip(losses, wanted, strict=True)) < WITHIN
        assert apart(pairs(last), [own[-1] for own in had]) < WITHIN
        assert [len(own) for own in had] == [1 + STEPS] * stages


@pytest.mark.parametrize(
    ("rule", "optimizer", "stages"),
    [
        ("latest", "momentum", 3),
        ("stash", "adam", 4),
        ("vertical_sync", "momentum", 4),
        ("spectrain", "momentum", 4),
        ("nesterov", "adam", 3),
        ("2bw", "momentum", 4),
        ("2bw", "adam", 3),
    ],
)
def test_one_process_trains_as_lists_of_weights_do(rule: str, optimizer: str, stages: int) -> None:
    check(rule, optimizer, stages, 1)


@pytest.mark.parametrize(
    ("rule", "optimizer", "ranks", "shared"),
    [
        ("latest", "adam", 4, True),
        ("stash", "momentum", 4, True),
        ("stash", "adam", 2, False),
        ("vertical_sync", "adam", 4, False),
        ("spectrain", "adam", 4, True),
        ("spectrain", "momentum", 2, False),
        ("nesterov", "momentum", 4, True),
        ("2bw", "adam", 4, True),
        ("2bw", "momentum", 2, False),
    ],
)
def test_ranks_train_as_lists_of_weights_do(rule: str, optimizer: str, ranks: int, shared: bool) -> None:
    check(rule, optimizer, 4, ranks, shared=shared)


def test_stages_whose_samples_are_split_train_as_lists_of_weights_do() -> None:
    check("stash", "momentum", 2, 2, shared=True, split=2)
    check("spectrain", "momentum", 2, 4, split=2)
    check("2bw", "adam", 2, 4, split=2)


@pytest.mark.parametrize(("stages", "size"), [(2, 7), (3, 6), (4, 12)])
def test_any_number_of_micro_batches_is_one_update_late(stages: int, size: int) -> None:
    """As many as samples, more than stages, divisors of which regions are used again, and primes."""
    check("2bw", "momentum", stages, 1, size=size)


@pytest.mark.parametrize(("stages", "size", "ranks"), [(2, 3, 1), (3, 5, 3), (4, 5, 1), (4, 12, 2)])
def test_it_is_so_with_more_in_flight(stages: int, size: int, ranks: int) -> None:
    """One more than stages, and as many as there can be; primes, divisors, and stages of one rank and of several."""
    check("2bw", "adam", stages, ranks, size=size, shared=ranks == stages, order="asynchronous_early")


def test_rules_differ() -> None:
    """What the law above says of one rule it says of no other."""
    chance = torch.Generator().manual_seed(1)
    first = {
        f"{stage} {name}": torch.randn(shape, generator=chance, dtype=torch.float64) / 2
        for stage in range(3)
        for name, shape in (("weight", (5, 5)), ("bias", (5,)))
    }
    losses = {rule: listed(first, batches(8), rule, "momentum")[0] for rule in (*RULES, "spectrain", "nesterov")}
    for one, other in combinations(losses, 2):
        assert max(abs(a - b) for a, b in zip(losses[one], losses[other], strict=True)) > 1e-6, (one, other)


def test_what_is_read_under_way_is_the_newest_and_nothing_is_drained() -> None:
    """With a loss in hand of three stages, the first has had two updates less than the last; the run goes on."""
    graph, given = chain(3), batches(12)
    with mp.Trainer(graph, flowing(graph, 3, "stash"), optimizer=OPTIMIZERS["momentum"][0], seed=1) as trainer:
        first = trainer.parameters()
        losses, read, scores = [], [], []
        for loss in trainer.run({"x": x, "y": y} for x, y in given):
            losses.append(loss)
            if len(losses) in {1, 4}:
                read.append(pairs(trainer.parameters()))
                scores.append(trainer.evaluate(x=given[0][0])["scores"])
        last = pairs(trainer.parameters())
    wanted, had = listed(first, given, "stash", "momentum")
    assert max(abs(one - other) for one, other in zip(losses, wanted, strict=True)) < WITHIN
    assert apart(last, [own[-1] for own in had]) < WITHIN
    for found, score, losses_taken in zip(read, scores, (1, 4), strict=True):
        submitted = losses_taken + 3  # the run of the batch itself, and one for each stage
        newest = [own[submitted - 2 + stage] for stage, own in enumerate(had)]
        assert apart(found, newest) < WITHIN
        h = given[0][0]
        for weight, bias in newest:
            h = torch.relu(h @ weight.T + bias)
        assert torch.allclose(score, h, rtol=0, atol=WITHIN)


def test_a_step_drains_and_so_does_another_batch_size() -> None:
    """Alone in the pipeline a batch sees all updates before it; sizes do not mix."""
    graph = chain(3)
    sizes = [*batches(4), *batches(3, size=BATCH - 1)]
    with mp.Trainer(graph, flowing(graph, 3, "latest"), optimizer=OPTIMIZERS["descent"][0], seed=1) as trainer:
        first = trainer.parameters()
        alone = [trainer.step(x=x, y=y) for x, y in sizes[:1]]
        with pytest.warns(UserWarning, match=r"stages wait, .* trainer\.run\(batches\) keeps them at work"):
            alone += [trainer.step(x=x, y=y) for x, y in sizes[1:2]]
        losses = list(trainer.run({"x": x, "y": y} for x, y in sizes))
        last = trainer.parameters()
    now, wanted = first, []
    for part in ([sizes[0]], [sizes[1]], sizes[:4], sizes[4:]):
        found, had = listed(now, part, "latest", "descent")
        wanted += found
        now = {f"{stage}{place}": value for stage, own in enumerate(had) for place, value in enumerate(own[-1])}
    assert max(abs(one - other) for one, other in zip([*alone, *losses], wanted, strict=True)) < WITHIN
    assert apart(pairs(last), pairs(now)) < WITHIN


@pytest.mark.parametrize(
    ("rule", "kept"), [("latest", (1, 1, 1, 1)), ("stash", (4, 3, 2, 1)), ("vertical_sync", (4, 4, 4, 4))]
)
def test_no_more_versions_are_kept_than_the_rule_needs(rule: str, kept: tuple[int, ...]) -> None:
    """Of four stages, a rank each: versions of a weight, and mini-batches in flight, as PipeDream's table has them.

    A bias, which backward does not read, has those that forward reads. The bytes are those that were allocated.
    """
    graph = chain(4)
    plan = flowing(graph, 4, rule)

    def body(world: World) -> tuple[dict[str, int], int, int]:
        with mp.Trainer(graph, plan, optimizer=OPTIMIZERS["momentum"][0], seed=1, world=world) as trainer:
            list(trainer.run({"x": x, "y": y} for x, y in batches(6)))
            rings = [ring for ring in trainer.schedule.rings if ring.memory == world.rank]
            places = {ring.regions[0].name: len(ring.regions) for ring in rings}
            memory = trainer._runtime.memories[world.rank]
            held = [memory.lasting_instance(region) for ring in rings for region in ring.regions]
            return (
                places,
                sum(found is not None for found in held),
                len({found[1].data_ptr() for found in held if found}),
            )

    for stage, (places, held, different) in enumerate(run_on_ranks(4, body)):
        mark = f"_{stage}" if stage else ""
        assert places.get(f"linear{mark}.weight", 1) == kept[stage]
        bias = 1 + stage if rule == "vertical_sync" else 1
        assert places.get(f"linear{mark}.bias", 1) == bias
        inputs = f"relu_{stage - 1}" if stage > 1 else "relu" if stage else "x"
        assert places.get(inputs, 1) == 4 - stage, "mini-batches in flight at a stage"
        assert held == different == sum(places.values())


def allocated(rule: str, batch: int, width: int, parts: int = 0) -> tuple[list[int], list[int]]:
    """The bytes that the allocator gave each of four ranks for a run, a stage each, and those that are simulated."""
    graph = chain(4, batch, width)
    plan, optimizer = flowing(graph, 4, rule, parts=parts), OPTIMIZERS["momentum"][0]

    def body(world: World) -> tuple[int, Machine]:
        with mp.Trainer(graph, plan, optimizer=optimizer, seed=1, world=world) as trainer:
            list(trainer.run({"x": x, "y": y} for x, y in batches(6, batch, width)))
            memories = RankRuntime.of(world).memories.values()
            return sum(memory.allocated_bytes() for memory in memories), trainer.machine

    found = run_on_ranks(4, body)
    return [size for size, _ in found], list(
        Simulation(graph, found[0][1], plan, optimizer=optimizer).predict().memory_bytes
    )


def test_the_bytes_of_each_stage_are_those_of_the_table() -> None:
    """Measured by the allocator: versions of weights, and what is kept of each mini-batch in flight.

    of a stage    0    1    2    3
    latest        what the others are above
    stash         3 W  2 W  1 W  0        versions beyond the newest, of a weight of W bytes
    vertical_sync 3 W  3 W  3 W  3 W      and as many of a bias as forward reads
    more samples  2*4  2*3  2*2  2*1      input and result of each mini-batch in flight, p - i of them
                  + 2  + 3  + 3  + 1      what lives within a run
    """
    width, batch = 64, 16
    weight, bias = width * width * 8, width * 8
    found = {rule: allocated(rule, batch, width) for rule in ("latest", "stash", "vertical_sync", "spectrain")}
    for measured, simulated in found.values():
        assert measured == simulated
    latest = found["latest"][0]

    def more(rule: str) -> list[int]:
        return [one - other for one, other in zip(found[rule][0], latest, strict=True)]

    assert more("stash") == [3 * weight, 2 * weight, weight, 0]
    assert more("vertical_sync") == [3 * weight + stage * bias for stage in range(4)]
    assert all(extra <= weight + 8 * bias for extra in more("spectrain")), "no more than a predicted copy"
    larger, _ = allocated("latest", 2 * batch, width)
    samples = [(one - other) / (batch * width * 8) for one, other in zip(larger, latest, strict=True)]
    assert samples == [2 * 4 + 2, 2 * 3 + 3, 2 * 2 + 3, 2 * 1 + 1]


def test_2bw_has_two_versions_and_as_many_micro_batches_in_flight_as_stages_follow() -> None:
    """Of four stages and twelve micro-batches, by the allocator.

    A weight that is larger costs each stage four times what it is more: two versions, a gradient and a momentum, and so
    does a bias. A micro-batch with a sample more costs a stage i, by stage

        4 3 2 1    what it gives, which relu's backward reads: p - i in flight
        4 4 3 2    what it was given: of stage i - 1 as many as that has in flight
        3 4 4 4    what lives within a turn
    """
    found = [allocated("2bw", batch, width, 12) for batch, width in ((12, 64), (24, 64), (12, 128))]
    for measured, simulated in found:
        assert measured == simulated
    (base, _), (larger, _), (wider, _) = found
    samples = [(one - other) / (64 * 8) for one, other in zip(larger, base, strict=True)]
    assert [int(each) for each in samples] == [4 + 4 + 3, 3 + 4 + 4, 2 + 3 + 4, 1 + 2 + 4]
    weights = 8 * (128 * 128 - 64 * 64) + 8 * (128 - 64)
    more = [one - other - 64 * 8 * count for one, other, count in zip(wider, base, map(int, samples), strict=True)]
    assert [round(each / weights, 2) for each in more] == [4, 4, 4, 4]
