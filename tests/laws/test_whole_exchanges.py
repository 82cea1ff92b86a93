"""Laws 1 to 3 where a fabric makes exchanges whole: the results of one processor, the bytes predicted, one order."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from levelled import levelled, paired
from lockstep_fabric import Hub, LockstepFabric, StreamFabric
from thread_ranks import run_on_worlds
from trained_networks import NETWORKS, SHORT, Training, judged, trained

import maniple as mp
from maniple.mappers.default import DefaultMapper
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.session.session import Session
from maniple.runtime.transports.fabric import Fabric
from maniple.runtime.transports.gloo_fabric import GlooFabric
from maniple.testing import local_worlds

ROWS, COLUMNS = 13, 3


def joined(worlds: list[World], hub: Hub | None, strict: type[LockstepFabric] = LockstepFabric) -> list[World]:
    """Worlds whose transports have a fabric beside them: a strict one of this process, or Gloo."""
    for world in worlds:
        assert world.transport is not None
        fabric: Fabric = GlooFabric(world.rank, "127.0.0.1", print) if hub is None else strict(hub, world.rank)
        world.transport.fabric = fabric
    return worlds


def on_all(
    machine: mp.Machine, folder: Path, hub: Hub | None, strategy: str = "data_parallel", *, shared: bool = False
) -> list[Training]:
    """What ranks find that are a machine, with a fabric between them, and shared memory within its hosts or not."""
    machine.save(file := folder / "machine.toml")
    network = NETWORKS["mlp13"]

    def body(world: World) -> Training:
        plan = mp.search(network.graph("float64"), host_machine(world), strategy=strategy, seed=3)
        return trained(network, "float64", plan, world, SHORT)

    ranks, hosts = len(machine.memories), len(machine.hosts)
    worlds = joined(local_worlds(ranks, hosts, shuffle=1, shared=shared, hosts=hosts), hub)
    try:
        return run_on_worlds([replace(world, machine=str(file)) for world in worlds], body)
    finally:
        for world in worlds:
            if world.transport is not None and world.transport.fabric is not None:
                world.transport.fabric.close()


def check_order(hub: Hub) -> None:
    """All members of a group have begun its calls in one order, with the same arguments."""
    assert not hub.mixed
    groups = {call.group for calls in hub.begun.values() for call in calls}
    for group in groups:
        orders = [[call for call in hub.begun[rank] if call.group == group] for rank in group]
        assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize(
    ("machine", "strategy", "shared", "size"),
    [
        (levelled(2, 2), "data_parallel", True, 2),  # a leader of each host
        (levelled(3, 2), "data_parallel", False, 3),
        (levelled(2, 3), "random", True, 2),
        (paired(4), "data_parallel", False, 4),  # in a tree, and cut into pieces
        (paired(5), "data_parallel", False, 5),  # round a ring
        (mp.Machine.preset("cpu:3x1"), "expert", False, 3),  # direct
    ],
    ids=lambda value: value.name if isinstance(value, mp.Machine) else "",
)
def test_training_is_that_of_one_processor_and_moves_the_bytes_predicted(
    tmp_path: Path, machine: mp.Machine, strategy: str, shared: bool, size: int
) -> None:
    """The fabric folds in another order than the schedule: equal to 1e-10, equal bits on all ranks and in every run."""
    hubs = [Hub(1), Hub(2)]
    first, again = (on_all(machine, tmp_path, hub, strategy, shared=shared) for hub in hubs)
    alone = judged("mlp13", "float64", SHORT)
    for hub in hubs:
        check_order(hub)
        assert size in {len(call.group) for calls in hub.begun.values() for call in calls}
    for training, other in zip(first, again, strict=True):
        assert training.losses == other.losses == first[0].losses
        assert training.moved == other.moved
        assert all(predicted == measured > 0 for predicted, measured in training.moved)
        for key, value in training.parameters.items():
            assert torch.equal(value, other.parameters[key]), key
            assert torch.equal(value, first[0].parameters[key]), key
            assert torch.allclose(value, alone.parameters[key], rtol=0, atol=1e-10), key


def test_so_is_training_through_gloo(tmp_path: Path) -> None:
    machine = levelled(2, 2)
    found = [on_all(machine, tmp_path, None, shared=shared) for shared in (False, True)]
    alone = judged("mlp13", "float64", SHORT)
    for trainings in found:
        for training in trainings:
            assert training.losses == found[0][0].losses
            assert all(predicted == measured > 0 for predicted, measured in training.moved)
            for key, value in alone.parameters.items():
                assert torch.allclose(training.parameters[key], value, rtol=0, atol=1e-10), key


@pytest.mark.parametrize("ranks", [2, 3])
def test_exchanges_of_devices_are_made_in_their_streams(ranks: int) -> None:
    """Null devices, whose streams begin late, and a fabric that keeps a stream from going on, as NCCL does."""
    network, hub = NETWORKS["mlp13"], Hub(6)
    alone = judged("mlp13", "float64", SHORT)

    def body(world: World) -> Training:
        plan = mp.search(network.graph("float64"), host_machine(world), strategy="data_parallel", seed=3)
        return trained(network, "float64", plan, world, SHORT)

    found = run_on_worlds(joined(local_worlds(ranks, device="null"), hub, StreamFabric), body)
    check_order(hub)
    assert {call.group for calls in hub.begun.values() for call in calls} == {tuple(range(ranks))}
    for training in found:
        assert training.losses == found[0].losses
        assert all(predicted == measured > 0 for predicted, measured in training.moved)
        for key, value in training.parameters.items():
            assert torch.allclose(value, alone.parameters[key], rtol=0, atol=1e-10), key


@pytest.mark.parametrize(("device", "fabric"), [("cpu", StreamFabric), ("null", LockstepFabric)])
def test_a_fabric_is_asked_for_its_own_kind_of_memory_alone(device: str, fabric: type[LockstepFabric]) -> None:
    network, hub = NETWORKS["mlp13"], Hub(7)

    def body(world: World) -> float:
        plan = mp.search(network.graph("float64"), host_machine(world), strategy="data_parallel", seed=3)
        with mp.Trainer(network.graph("float64"), plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            return trainer.step(**network.samples(0, network.batch, "float64"))

    run_on_worlds(joined(local_worlds(2, device=device), hub, fabric), body)
    assert not hub.begun


@pytest.mark.parametrize("strategy", ["data_parallel", "expert", "random"])
def test_the_memory_of_rows_that_are_put_together_is_planned(strategy: str) -> None:
    """What the allocator gave out is what was to be known before, also where a row lies in memory of its own."""
    network, hub = NETWORKS["mlp13"], Hub(4)
    graph = network.graph("float64")

    def body(world: World) -> tuple[int, int, int]:
        plan = mp.search(graph, host_machine(world), strategy=strategy, seed=3)
        trainer = mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), world=world)
        (memory,) = RankRuntime.of(world).memories.values()
        replay = trainer._load("step", graph.batch).replay
        need = sum(replay.needs().values())
        for seed in range(2):
            trainer.step(**network.samples(seed, network.batch, "float64"))
        assert sum(replay.needs().values()) == need
        return need, memory.allocated_bytes(), need - sum(replay._storage.needs().values())

    found = run_on_worlds(joined(local_worlds(3), hub), body)
    assert any(calls for calls in hub.begun.values())
    assert all(need == allocated for need, allocated, _ in found)
    assert any(rows for _, _, rows in found)


@mp.task
def scale(by: int, tile: mp.ReadWrite) -> None:
    """Make a tile another."""
    tile *= by
    tile += 1


@mp.task
def add(by: int, whole: mp.Read, sums: mp.ReduceSum) -> None:
    """Add something of each element, of each point another."""
    sums += whole * by


@mp.task
def least(whole: mp.Read, low: mp.ReduceMin) -> None:
    """Keep the least."""
    low.copy_(torch.minimum(low, whole))


def exchanges(world: World) -> tuple[list[torch.Tensor], list[str]]:
    """All kinds of exchanges, twice over; what came of them, and how the schedule says that they went."""
    session = Session(RankRuntime.of(world), mp.Machine.detect(world), DefaultMapper())
    x, sums, low = (session.region((ROWS, COLUMNS), "int64", name) for name in ("x", "sums", "low"))
    one = session.region((ROWS,), "int64", "one")
    session.write(x, torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS))
    session.write(one, torch.arange(ROWS))
    tiles = mp.blocks((3, 1))
    for _ in range(3):
        with session.trace("all kinds"):
            session.index_launch(scale, tiles.colors, 3, x[tiles])
            session.fill(sums, 0)
            session.index_launch(add, 3, 2, x, sums)  # x: an all-gather
            session.index_launch(scale, tiles.colors, 1, sums[tiles])  # a reduce-scatter
            session.fill(low, 1 << 40)
            session.index_launch(least, 3, sums, low)
            session.index_launch(add, 3, 1, low, sums)  # low: an all-reduce
            session.launch(scale, 5, one)
            session.fill(sums, 0)
            session.index_launch(add, 3, 1, x, sums)
    trace = next(iter(session.tracing.traces.values()))
    plans = {plan for loaded in trace._loaded for plan in loaded.replay.schedule.plans.values()}
    return [session.read(region) for region in (x, sums, low, one)], sorted(plans)


def test_every_kind_of_exchange_gives_what_tiles_give() -> None:
    """Whole numbers, whose sums are the same in every order; rows that do not divide evenly among the ranks."""
    expected = run_on_worlds(local_worlds(3), exchanges)
    for hub in (Hub(5), None):
        worlds = joined(local_worlds(3), hub)
        try:
            found = run_on_worlds(worlds, exchanges)
        finally:
            for world in worlds:
                if world.transport is not None and world.transport.fabric is not None:
                    world.transport.fabric.close()
        for (values, _), (others, _) in zip(found, expected, strict=True):
            assert all(torch.equal(value, other) for value, other in zip(values, others, strict=True))
        if hub is not None:
            check_order(hub)
            kinds = {call.kind for calls in hub.begun.values() for call in calls}
            assert kinds >= {"all_reduce", "reduce_scatter", "all_gather"}
            assert found[0][1] == ["lockstep", "lockstep, folded in its own order"]


@mp.task
def contribute(row: mp.ReduceSum) -> None:
    """Add to all of a row."""
    row += 1


@mp.task
def look(row: mp.Read) -> float:
    """Sum a row up."""
    return float(row.sum())


@pytest.mark.parametrize("shared", [False, True])
def test_an_all_reduce_in_levels_and_pieces_does_not_wait_for_itself(tmp_path: Path, shared: bool) -> None:
    """One call stands for all pieces, and tiles of the first piece come before those of the last that it waits for."""
    elements = 1 << 18
    slow = levelled(2, 2)  # between hosts: so folds within them go on meanwhile
    links = tuple(replace(link, bandwidth=1.25e8 if link.target == "network" else 1e11) for link in slow.links)
    memories = tuple(replace(memory, bandwidth=1e10) for memory in slow.memories)
    replace(slow, links=links, memories=memories).save(file := tmp_path / "machine.toml")
    hub = Hub(3)

    def body(world: World) -> tuple[list[float], set[str]]:
        session = Session(RankRuntime.of(world), mp.Machine.detect(world), DefaultMapper())
        row, found = session.region((elements,), name="row"), []
        for _ in range(4):
            with session.trace("all-reduce"):
                session.fill(row, 0.0)
                session.index_launch(contribute, 4, row)
                seen = session.index_launch(look, 4, row)
            found.append(float(seen.reduce("+")))
        trace = session.tracing.traces["all-reduce"]
        return found, {plan for loaded in trace._loaded for plan in loaded.replay.schedule.plans.values()}

    worlds = joined(local_worlds(4, 2, shared=shared, hosts=2), hub)
    for values, plans in run_on_worlds([replace(world, machine=str(file)) for world in worlds], body):
        assert values == [16.0 * elements] * 4
        assert all(re.fullmatch(r"levels.*, \d+ pieces, between hosts lockstep, .*", plan) for plan in plans)
        assert plans
    check_order(hub)
