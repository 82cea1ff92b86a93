"""What is made of what probes of GPUs print: a machine that takes what was measured, and words."""

from __future__ import annotations

import re

import pytest

from maniple.gpu_calibration import document, lines, measure_gpus
from maniple.process.error import RunError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.roofline import EFFICIENCY, Rooflines

FEED = {"eager_s": 9e-6, "run_s": 4e-4, "staging": 8e9, "upload": 5e10, "download": 4e10}
FOUND: dict[str, object] = {
    "products": {"float32": 5e13, "tf32": 4e14, "bfloat16": 7e14},
    "bandwidth": 3e12,
    "node_s": 1e-6,
    "feed": FEED,
}
HOPS = {"bytes": [64, 4096, 2097152], "seconds": [1e-4 + size / 1e10 for size in (64, 4096, 2097152)]}


def printed(module: str, nodes: int) -> dict[str, object]:
    """What a probe prints on so many nodes, of which each has an H100 that is joined to others by NVLink."""
    machine = {"machine": Machine.preset(f"h100x{nodes}").to_json()}
    return {**(FOUND if module == "maniple.gpu_probe" else HOPS), **machine}


def test_the_roofline_of_the_machine_reaches_what_was_measured() -> None:
    machine, rates, fit = measure_gpus(1, printed)
    reached, (processor,) = Rooflines.of(machine), machine.processors
    assert fit is None
    assert EFFICIENCY["matmul"] * processor.flops_per_s == pytest.approx(5e13)
    assert EFFICIENCY["matmul"] * reached.peaks["bfloat16"][0] == pytest.approx(7e14)
    assert reached.bandwidth[0] == pytest.approx(3e12)
    assert (processor.launch_s, reached.eager_s[0]) == (1e-6, 9e-6)
    assert processor.feed is not None
    assert document(rates, None)["feed"] == FEED
    assert lines(rates, "cuda")[0] == "products    50.0 float32, 400.0 tf32, 700.0 bfloat16 Tflop/s"
    assert "mean nothing" in lines(rates, "null")[-1]


def test_links_that_a_preset_knows_are_not_what_tiles_take() -> None:
    machine, _, fit = measure_gpus(2, printed)
    assert fit is not None
    assert (machine.links, machine.switches) == ((), ())
    assert machine.link(0, 1).latency_s == pytest.approx(1e-4)
    assert machine.link(0, 1).bandwidth == pytest.approx(1e10)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"products": 3}, "expected products and feed"),
        ({"bandwidth": "fast"}, "gave 'fast' for bandwidth, expected numbers"),
        ({"products": {"float32": None}}, "gave None for float32"),
    ],
)
def test_what_no_probe_prints_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(RunError, match=re.escape(said)):
        measure_gpus(1, lambda module, nodes: printed(module, nodes) | wrong)
