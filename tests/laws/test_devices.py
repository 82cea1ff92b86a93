"""The laws on GPU processors, over null devices: late and out of order, with memory that the host does not see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_launches_against_oracle as launched
import test_library_trains as library
import test_traces_against_oracle as traced
import torch
from device_machine import device_machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placed_program import Placed
from thread_ranks import run_on_worlds
from trained_networks import NETWORKS, SHORT, Training, trained

import maniple as mp
from maniple.mappers.registry import make_mapper
from maniple.runtime.control.world import World
from maniple.runtime.devices.host_device import HostDevice
from maniple.runtime.devices.null_device import NullDevice
from maniple.runtime.devices.registry import DEVICES
from maniple.runtime.execution import engine
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.session.session import Session
from maniple.testing import local_worlds

# (ranks, CPU processors of each, GPU processors of each)
WORLDS = ((1, 0, 1), (1, 0, 2), (1, 1, 1), (2, 0, 1), (2, 0, 2), (2, 1, 1))


@mp.task
def grow(x: mp.ReadWrite) -> None:
    x += 1


grow.variant("cuda")(grow.function)


def train(name: str, strategy: str, worlds: list[World]) -> Training:
    network, count = NETWORKS[name], sum(world.processors for world in worlds)

    def body(world: World) -> Training:
        machine = mp.Machine.cpu(1, ranks=count)
        plan = mp.search(network.graph("float64"), machine, strategy=strategy, seed=3)
        return trained(network, "float64", plan, world, SHORT)

    first, *rest = run_on_worlds(worlds, body)
    assert all(other.losses == first.losses for other in rest)
    assert all(predicted == measured for predicted, measured in first.moved)
    return first


@pytest.mark.parametrize(
    ("name", "strategy"), [("digits", "data_parallel"), ("residual", "random"), ("mlp13", "model_parallel")]
)
def test_training_on_null_devices_equals_training_on_cpus_bit_for_bit(name: str, strategy: str) -> None:
    on_cpus = train(name, strategy, local_worlds(2))
    on_devices = train(name, strategy, local_worlds(2, device="null"))
    assert on_devices.losses == on_cpus.losses
    assert on_devices.moved == on_cpus.moved
    for key, value in on_cpus.parameters.items():
        assert torch.equal(on_devices.parameters[key], value), key
    assert all(map(torch.equal, on_devices.logits, on_cpus.logits))


def test_training_on_devices_of_another_make_equals_training_on_cpus_bit_for_bit() -> None:
    DEVICES.register("host", HostDevice)
    on_cpus = train("residual", "random", local_worlds(2))
    on_devices = train("residual", "random", local_worlds(2, device="host"))
    assert on_devices.losses == on_cpus.losses
    assert on_devices.moved == on_cpus.moved
    assert all(torch.equal(on_devices.parameters[key], value) for key, value in on_cpus.parameters.items())


@pytest.mark.parametrize(("name", "strategy"), [("digits", "random"), ("residual", "data_parallel")])
def test_two_devices_of_each_rank_train_as_four_ranks_do(name: str, strategy: str) -> None:
    on_cpus = train(name, strategy, local_worlds(4, nodes=2))
    on_devices = train(name, strategy, local_worlds(2, processors=2, device="null"))
    # Two ranks fetch the loss instead of four, so sums may be folded elsewhere, and in another order.
    assert on_devices.losses == pytest.approx(on_cpus.losses, rel=0, abs=1e-12)
    for key, value in on_cpus.parameters.items():
        assert torch.allclose(on_devices.parameters[key], value, rtol=0, atol=1e-12), key


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("decoder", "random"), ("encoder", "data_parallel"), ("images", "random"), ("recurrent", "data_parallel")],
)
def test_networks_of_the_library_train_on_null_devices_as_torch_does(name: str, strategy: str) -> None:
    network = library.NETWORKS[name]

    def body(world: World) -> library.Trained:
        machine = mp.Machine.cpu(1, ranks=2)
        return library.train(network, world, mp.search(network.build(), machine, strategy=strategy, seed=3))

    library.check(network, run_on_worlds(local_worlds(2, device="null"), body))


def test_every_operator_of_first_light_was_trained_on_devices() -> None:
    graphs = [NETWORKS[name].graph("float64") for name in ("digits", "residual", "mlp13")]
    first = {"conv2d", "linear", "relu", "add", "max_pool2d", "avg_pool2d", "flatten", "reshape", "cross_entropy"}
    assert first <= {node.operator.name for graph in graphs for node in graph.nodes}


@settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))
@given(launched.cases(), st.sampled_from(WORLDS))
def test_a_program_on_devices_means_what_its_launches_mean(case: launched.Case, world: tuple[int, int, int]) -> None:
    machine = device_machine(*world)
    count = len(machine.processors)
    case = replace(
        case,
        steps=tuple(
            replace(step, places=tuple(place % count for place in step.places))
            if isinstance(step, launched.Step)
            else step
            for step in case.steps
        ),
    )
    wanted = launched.expected(case)
    worlds = local_worlds(world[0], shuffle=case.shuffle, device="null")
    for outcomes in run_on_worlds(worlds, lambda own: launched.ran(case, own, machine)):
        assert outcomes == wanted


@settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))
@given(traced.cases(), st.sampled_from(WORLDS))
def test_a_traced_program_on_devices_means_what_its_launches_mean(
    case: traced.Case, world: tuple[int, int, int]
) -> None:
    machine = device_machine(*world)
    count = len(machine.processors)

    def placed(step: object) -> object:
        if not isinstance(step, launched.Step):
            return step
        return replace(step, places=tuple(place % count for place in step.places))

    case = replace(
        case,
        traces=tuple(tuple(map(placed, steps)) for steps in case.traces),  # type: ignore[arg-type]
        program=tuple(map(placed, case.program)),  # type: ignore[arg-type]
    )
    case, wanted = traced.legal(case)
    worlds = local_worlds(world[0], shuffle=case.shuffle, device="null")
    for outcomes in run_on_worlds(worlds, lambda own: traced.ran(case, own, annotated=True, machine=machine)):
        assert outcomes == wanted


def test_pinned_rows_are_bounded_and_what_waits_for_them_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows on the way to a peer there are as many as fit, and one more, that at the head of its queue."""
    on_cpus = train("residual", "random", local_worlds(2))
    rows: list[int] = []
    movers: set[engine.CopyEngine] = set()
    stage, begin = NullDevice.stage, engine.CopyEngine._stage_what_fits

    def noted(device: NullDevice, count: int, dtype: torch.dtype) -> torch.Tensor:
        rows.append(count * dtype.itemsize)
        return stage(device, count, dtype)

    def begun(mover: engine.CopyEngine) -> None:
        movers.add(mover)
        begin(mover)

    monkeypatch.setattr(engine, "STAGED_BYTES", 64)
    monkeypatch.setattr(NullDevice, "stage", noted)
    monkeypatch.setattr(engine.CopyEngine, "_stage_what_fits", begun)
    worlds = local_worlds(2, device="null")
    on_devices = train("residual", "random", worlds)
    assert movers
    assert all(64 < mover.peak_staged <= 64 + max(rows) for mover in movers)
    assert on_devices.losses == on_cpus.losses
    assert on_devices.moved == on_cpus.moved
    assert all(torch.equal(on_devices.parameters[key], value) for key, value in on_cpus.parameters.items())


def test_rows_within_a_rank_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """From devices to memory of the host and back, through rows of at most so many bytes, or one."""
    monkeypatch.setattr(engine, "STAGED_BYTES", 64)
    (world,) = local_worlds(1, device="null")
    machine = device_machine(1, 1, 1)
    session = Session(RankRuntime.of(world), machine, make_mapper("default"))
    regions = [session.region((5,), name=f"r{number}") for number in range(8)]
    for region in regions:
        region.fill(1.0)
        session.launch(grow, region, mapper=Placed([1]))
    for region in regions:
        session.launch(grow, region, mapper=Placed([0]))
    assert [region.read().tolist() for region in regions] == [[3.0] * 5] * 8
    mover = session.runtime.resources.engine
    assert mover is not None
    assert 20 <= mover.peak_staged <= 64
    session.runtime.close()
