"""Machines that a launch is given: they have the ranks and processors that are launched, or say what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

import maniple as mp
from maniple.process.error import RequestError
from maniple.runtime.cluster.launcher import LaunchRequest
from maniple.runtime.cluster.run import command
from maniple.runtime.machine.machine_part import Host, Memory, Processor
from maniple.runtime.machine.world_machine import host_machine, load_given_machine


def saved(folder: Path, machine: mp.Machine) -> Path:
    machine.save(folder / "here.toml")
    return folder / "here.toml"


def mixed() -> mp.Machine:
    """One rank with a CPU and a GPU."""
    memories = (Memory(0, 0, 0, 1 << 20, 1e9), Memory(1, 0, 0, 1 << 20, 1e9))
    processors = (Processor(0, "cpu", 0, 1, 1e9, "p0"), Processor(1, "gpu", 1, 1, 1e9, "g0"))
    return mp.Machine("mixed", (Host(0, "here"),), memories, processors)


def test_a_machine_that_fits_the_launch_is_taken(tmp_path: Path) -> None:
    machine = mp.Machine.cpu(2, ranks=3)
    assert load_given_machine(saved(tmp_path, machine), 3, 2, "cpu") == machine
    assert load_given_machine(saved(tmp_path, mixed()), 1, 2, "null") == mixed()


@pytest.mark.parametrize(
    ("machine", "ranks", "processors", "device", "told"),
    [
        (mp.Machine.cpu(1, ranks=2), 3, 1, "cpu", "it has 2 ranks, and 3 are launched"),
        (mp.Machine.cpu(2, ranks=2), 2, 1, "cpu", "rank 0 has 2 processors, and --processors says 1"),
        (mp.Machine.cpu(1, ranks=2), 2, 1, "null", "rank 0 has 0 processors of kind gpu, and --device says null"),
        (mixed(), 1, 2, "cpu", "rank 0 has 1 processors of kind gpu, and --device says cpu"),
    ],
)
def test_a_machine_that_does_not_fit_is_refused_before_the_launch(
    tmp_path: Path, machine: mp.Machine, ranks: int, processors: int, device: str, told: str
) -> None:
    path = saved(tmp_path, machine)
    script = tmp_path / "script.py"
    script.touch()
    with pytest.raises(RequestError, match=told):
        LaunchRequest((str(script),), nodes=ranks, processors=processors, device=device, machine=path)


def test_every_rank_is_told_where_the_machine_is(tmp_path: Path) -> None:
    path = saved(tmp_path, mp.Machine.cpu(1, ranks=2))
    script = tmp_path / "script.py"
    script.touch()
    request = LaunchRequest((str(script),), nodes=2, machine=path)
    assert [command(request, rank)[1]["MANIPLE_MACHINE"] for rank in range(2)] == [str(path)] * 2


def test_a_world_that_was_given_a_machine_is_it(tmp_path: Path) -> None:
    from dataclasses import replace

    from maniple.testing import local_worlds

    (world,) = local_worlds(1)
    machine = mp.Machine.cpu(1, name="mine")
    assert host_machine(replace(world, machine=str(saved(tmp_path, machine)))) == machine
