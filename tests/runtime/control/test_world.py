"""Worlds: this process alone, and ranks as threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from maniple.process.inventory import available_cores
from maniple.runtime.control.control import SoloControl
from maniple.runtime.control.world import World
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.world_machine import host_machine
from maniple.testing import local_worlds


def test_a_world_alone() -> None:
    world = World.solo()
    assert (world.rank, world.size, world.node, world.nodes, world.processors) == (0, 1, 0, 1, 1)
    assert world.cores == available_cores()
    assert world.transport is None
    assert isinstance(world.control, SoloControl)
    assert not world.launched
    assert world.place() == "node 0 (rank 0)"


def test_processors_alone_share_the_cores() -> None:
    assert World.solo(processors=10**6).cores == 1
    assert World.solo(processors=2, cores=3).cores == 3


def test_a_world_alone_has_the_processors_that_a_plan_names() -> None:
    world = World.solo(processors=2, cores=1)
    assert len(host_machine(world).processors) == 2
    assert len(host_machine(world, [0, 4]).processors) == 5
    assert len(host_machine(world, [0]).processors) == 2
    assert {processor.memory for processor in host_machine(world, [3]).processors} == {0}


def test_a_launched_world_has_the_processors_it_was_launched_with() -> None:
    (world,) = local_worlds(1, processors=2)
    assert len(host_machine(world, [7]).processors) == 2


def test_every_rank_sees_the_same_machine() -> None:
    worlds = local_worlds(2, processors=2)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(host_machine, worlds)
    assert isinstance(first, Machine)
    assert first == second
    assert [processor.memory for processor in first.processors] == [0, 0, 1, 1]


def test_worlds_are_equal_only_to_themselves() -> None:
    first, second = World.solo(), World.solo()
    assert first != second
    assert len({first, second, first}) == 2
