"""Machines of GPUs that were found: rates, capacities and links, of facts as drivers give them; none was on a GPU."""

from __future__ import annotations

import pytest

from maniple.process.error import RunError
from maniple.process.inventory import Inventory
from maniple.runtime.machine.gpu_machine import CONTEXT_BYTES, FRAGMENTED, kind_of, rates_of
from maniple.runtime.machine.machine import BETWEEN_HOSTS, Machine
from maniple.runtime.machine.peer_link import RING_BYTES, SHARED_GPU
from maniple.runtime.machine.preset import GPU_LAUNCH_S, GPUS

H100 = ("NVIDIA H100 80GB HBM3", (9, 0, 132, 1980000, 2619000, 5120), 85_000_000_000)


def host(name: str, devices: int, *, gpu: tuple[str, tuple[int, ...], int] = H100) -> Inventory:
    called, properties, size = gpu
    return Inventory(name, 16, 1 << 37, True, (size,) * devices, (called,) * devices, (properties,) * devices)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_device_is_known_by_a_word_of_its_name(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_rates_are_the_presets_or_follow_from_properties() -> None:
    preset, by_properties = rates_of(*H100[:2]), rates_of("something else", H100[1])
    assert preset == (GPUS["h100"].flops_per_s, GPUS["h100"].memory_bandwidth, GPUS["h100"].peaks)
    assert by_properties is not None
    # 132 x 128 x 2 x 1.98 GHz; 2 x 2.619 GHz x 5120 / 8
    assert by_properties[:2] == pytest.approx(preset[:2], rel=0.01)
    ada = rates_of("NVIDIA GeForce RTX 4090", (8, 9, 128, 2520000, 10501000, 384))
    assert ada is not None
    assert ada[:2] == pytest.approx((82.6e12, 1.008e12), rel=0.01)
    assert rates_of("something else", (9, 0, 132, 0, 0, 0)) is None


def test_a_gpu_of_its_own_has_all_memory_but_a_context_and_what_lies_in_pieces() -> None:
    machine = Machine._of_gpus("cuda", [host("a", 2), host("a", 2)], [0, 1], 1)
    size = H100[2]
    left = int(size * (1 - FRAGMENTED)) - CONTEXT_BYTES - RING_BYTES
    assert [memory.capacity_bytes for memory in machine.memories] == [left] * 2
    assert {processor.launch_s for processor in machine.processors} == {GPU_LAUNCH_S}
    assert {processor.flops_per_s for processor in machine.processors} == {67e12}


def test_ranks_that_share_a_gpu_share_what_their_contexts_leave() -> None:
    machine = Machine._of_gpus("cuda", [host("a", 1), host("a", 1)], [0, 0], 1)
    share = int(H100[2] * (1 - FRAGMENTED) - 2 * (CONTEXT_BYTES + RING_BYTES)) // 2
    assert [memory.capacity_bytes for memory in machine.memories] == [share] * 2
    assert machine.links == ()
    assert (machine.within_host, machine.between_hosts) == (SHARED_GPU, BETWEEN_HOSTS)


def test_processors_that_are_dealt_one_device_say_so() -> None:
    """Three ranks on a host of two GPUs, which has the third begin again; one on another host, alone."""
    machine = Machine._of_gpus("cuda", [host("a", 2)] * 3 + [host("b", 2)], [0, 1, 2, 3], 1)
    assert [processor.device for processor in machine.processors] == [0, None, 0, None]
    assert machine.processors[0].peak("bfloat16") == 989.4e12
    assert machine.processors[0].peak("int64") == machine.processors[0].flops_per_s == 67e12


def test_gpus_of_one_kind_are_joined_as_in_the_preset() -> None:
    machine = Machine._of_gpus("cuda", [host("a", 4), host("b", 4)], [0, 1], 4)
    preset = Machine.preset("h100x16")
    assert len(machine.processors) == 8

    def way(of: Machine, source: int, target: int) -> list[tuple[float, float]]:
        return [of.routes.rate(link) for link in of.routes.route(source, target)]

    assert way(machine, 0, 1) == way(preset, 0, 1)
    assert way(machine, 0, 4) == way(preset, 0, 8)
    other = Machine._of_gpus("cuda", [host("a", 4), host("b", 4, gpu=("NVIDIA L40S", H100[1], 48 << 30))], [0, 1], 4)
    assert other.links == ()


def test_facts_go_from_rank_to_rank_and_wrong_ones_are_refused() -> None:
    mine = host("a", 2)
    assert Inventory.from_bytes(mine.to_bytes()) == mine
    with pytest.raises(RunError, match="told of 2 devices by 2 names and 1 properties"):
        Inventory.from_bytes(mine.to_bytes().replace(b"[[9, 0, 132, 1980000, 2619000, 5120], ", b"["))
