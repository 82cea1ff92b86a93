"""Laws 1 to 3 where collectives do not go direct: the results of one processor, and the bytes of the closed forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from levelled import levelled, paired
from thread_ranks import run_on_worlds
from trained_networks import NETWORKS, OPTIMIZER, SHORT, Training, judged, trained

import maniple as mp
from maniple.models import model
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.lowering.weight import weights
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.lane import Layout
from maniple.runtime.schedule.on_demand import OnDemand
from maniple.runtime.schedule.schedule import RowKind, Schedule
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.alternation import Alternation
from maniple.testing import local_worlds


def planned(machine: mp.Machine, strategy: str = "data_parallel", name: str = "mlp13") -> tuple[Schedule, Simulation]:
    """The schedule of a step, and its simulation."""
    graph = NETWORKS[name].graph("float64")
    plan = mp.search(graph, machine, strategy=strategy, seed=3)
    return lowered(graph, machine, strategy), Simulation(graph, machine, plan, optimizer=OPTIMIZER)


def plan_of(graph: mp.Graph, machine: mp.Machine, strategy: str | Alternation) -> mp.Plan:
    """The plan that a strategy finds, by its name, or makes."""
    if isinstance(strategy, Alternation):
        return strategy.plan(Problem(graph, machine))
    return mp.search(graph, machine, strategy=strategy, seed=3)


def lowered(graph: mp.Graph, machine: mp.Machine, strategy: str | Alternation) -> Schedule:
    """The schedule of a step."""
    plan = plan_of(graph, machine, strategy)
    table = RegionTable()
    expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, OPTIMIZER, table), table)
    return lower(expansion.training_step(OPTIMIZER), FragmentCache(machine))


def on_all(
    machine: mp.Machine,
    folder: Path,
    strategy: str | Alternation,
    *,
    shared: int = 0,
    shuffle: int | None = None,
    processors: int = 1,
    device: str = "cpu",
) -> list[Training]:
    """What ranks find that are a machine, of which those of each of so many hosts share memory; of 0 hosts none do."""
    machine.save(file := folder / "machine.toml")
    network = NETWORKS["mlp13"]

    def body(world: World) -> Training:
        plan = plan_of(network.graph("float64"), host_machine(world), strategy)
        return trained(network, "float64", plan, world, SHORT)

    ranks, hosts = 1 + machine.memories[-1].rank, len(machine.hosts)
    worlds = local_worlds(
        ranks, hosts, processors, shuffle=shuffle, shared=shared > 0, hosts=shared or hosts, device=device
    )
    return run_on_worlds([replace(world, machine=str(file)) for world in worlds], body)


@pytest.mark.parametrize(
    ("machine", "strategy", "plans"),
    [
        (levelled(2, 2), "data_parallel", {"levels"}),
        (levelled(3, 2), "data_parallel", {"levels"}),
        (levelled(2, 3), "random", {"levels"}),
        (paired(4), "data_parallel", {"tree", "tree, 2 pieces"}),
        (paired(5), "data_parallel", {"ring", "ring, 2 pieces"}),
    ],
    ids=lambda value: value.name if isinstance(value, mp.Machine) else "",
)
def test_plans_give_the_losses_of_one_processor_and_the_bytes_that_were_predicted(
    tmp_path: Path, machine: mp.Machine, strategy: str, plans: set[str]
) -> None:
    """Whatever arrives first, and whichever ranks share memory, those of emulated hosts even: to the last bit."""
    hosts = len(machine.hosts)
    schedule, _ = planned(machine, strategy)
    assert set(schedule.plans.values()) == plans
    found = [
        on_all(machine, tmp_path, strategy, shared=hosts, shuffle=1),
        on_all(machine, tmp_path, strategy, shared=1),
        on_all(machine, tmp_path, strategy, shuffle=2),
    ]
    check(found)


def test_groups_side_by_side_have_a_plan_each(tmp_path: Path) -> None:
    """Samples over two hosts of two, products by turns within: a weight's parts are synchronised by two pairs of ranks.

    The pairs stand across the hosts, each with an exchange of its own; activations are exchanged within each host.
    """
    machine, strategy = levelled(2, 2), Alternation(2)
    schedule = lowered(NETWORKS["mlp13"].graph("float64"), machine, strategy)
    found: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    for row in np.flatnonzero(schedule.kind > RowKind.COPY).tolist():
        found.setdefault((int(schedule.launch[row]), schedule.label(row)), []).append(schedule.memories(row))
    apart = {tuple(groups) for groups in found.values() if len(groups) > 1}
    assert {((0, 2), (1, 3)), ((0, 1), (2, 3))} <= apart
    check([on_all(machine, tmp_path, strategy, shared=2), on_all(machine, tmp_path, strategy, shuffle=3)])


def check(found: list[list[Training]]) -> None:
    """Hold what was found against each other to the bit, and against plain torch."""
    alone = judged("mlp13", "float64", SHORT)
    for trainings in found:
        for training, first in zip(trainings, found[0], strict=True):
            assert training.losses == first.losses
            assert all(predicted == measured > 0 for predicted, measured in training.moved)
            for key, value in first.parameters.items():
                assert torch.equal(training.parameters[key], value), key
                assert torch.allclose(value, alone.parameters[key], rtol=0, atol=1e-10), key


@pytest.mark.parametrize("processors", [1, 2])
def test_so_do_devices(tmp_path: Path, processors: int) -> None:
    """A GPU of a rank of its own, or two of one rank: a hop between these never leaves the process."""
    machine = levelled(2, 2, "gpu")
    memories = tuple(replace(memory, rank=memory.id // processors) for memory in machine.memories)
    machine = replace(machine, memories=memories)
    on_cpus = on_all(levelled(2, 2), tmp_path, "data_parallel")
    on_gpus = [
        on_all(machine, tmp_path, "data_parallel", shuffle=seed, processors=processors, device="null")
        for seed in (None, 3)
    ]
    check([on_cpus[::processors], *on_gpus])


def test_so_do_devices_round_a_ring_in_pieces(tmp_path: Path) -> None:
    schedule, _ = planned(paired(5, "gpu"))
    assert set(schedule.plans.values()) == {"ring", "ring, 2 pieces"}
    on_gpus = [on_all(paired(5, "gpu"), tmp_path, "data_parallel", shuffle=seed, device="null") for seed in (None, 3)]
    check(on_gpus)


@pytest.mark.parametrize(("hosts", "members"), [(2, 2), (2, 4), (3, 2)])
def test_what_crosses_into_a_host_crosses_once(hosts: int, members: int) -> None:
    """Of n = h r memories, 2 (n - 1) times what is exchanged moves in all, and 2 (h - 1) times between hosts."""
    schedule, _ = planned(levelled(hosts, members))
    host = [memory.host for memory in schedule.machine.memories]
    for row in schedule.plans:
        size = schedule.regions[schedule.region[row]].itemsize
        times = 2 if schedule.kind[row] == RowKind.ALL_REDUCE else 1
        moved = crossing = 0
        for push in schedule.transfers(row):
            source, target = (schedule.instances[end].memory for end in (push.source, push.target))
            moved += push.rect.volume * size
            crossing += push.rect.volume * size * (host[source] != host[target])
        whole, rest = divmod(moved, times * (hosts * members - 1))
        assert not rest
        assert (moved, crossing) == (schedule.bytes[row], times * (hosts - 1) * whole)


@pytest.mark.parametrize("strategy", ["data_parallel", "random", "expert"])
@pytest.mark.parametrize(
    "machine", [levelled(2, 3), levelled(2, 2, "gpu"), paired(4), paired(5, "gpu"), mp.Machine.preset("p100x8")]
)
def test_the_simulator_runs_the_very_same_plans(machine: mp.Machine, strategy: str) -> None:
    """Bytes, and the bytes of instances in every memory, new tiles of leaders included."""
    schedule, simulation = planned(machine, strategy)
    assert schedule.total_bytes == simulation.bytes
    needs = schedule.memory_bytes()
    assert [needs[memory.id] for memory in machine.memories] == simulation.memory_bytes.tolist()


def test_the_text_of_a_schedule_names_the_plan() -> None:
    schedule, _ = planned(levelled(2, 2))
    named = [line.split("  ")[0] for line in schedule.text().splitlines() if " in levels " in line]
    assert len(named) == len(schedule.plans) > 0


@pytest.mark.parametrize("shared", [True, False])
def test_a_rank_makes_no_object_for_what_others_send_each_other(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the ranks, so twice the rows and four times the pushes: lanes find theirs in columns, and ask for none."""
    asked: list[int] = []
    get = OnDemand.__getitem__
    monkeypatch.setattr(OnDemand, "__getitem__", lambda self, number: (asked.append(1), get(self, number))[1])
    counts = []
    for ranks in (16, 32):
        schedule = lowered(model("lenet", ranks), mp.Machine.preset(f"h100x{ranks}"), "data_parallel")
        instances = schedule.instances
        temporary = np.flatnonzero((instances.memory == 0) & (instances.kind != InstanceKind.MAIN)).tolist()
        assert instances[0].memory == int(instances.memory[0])
        assert asked, "what is made is counted"
        asked.clear()
        Layout(schedule, (0,), range(8) if shared else (), () if shared else temporary).lanes()
        counts.append((len(asked), len(schedule.transfer[1])))
    (few, pushes), (many, more) = counts
    assert more > 3 * pushes
    assert many == few == 0
