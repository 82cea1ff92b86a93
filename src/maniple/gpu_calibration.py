"""What `maniple calibrate` does where processors are GPUs: the probes that it runs, the machine, and what it says."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from maniple.process.error import RunError
from maniple.runtime.devices.registry import DEVICES
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Feed
from maniple.strategies.cost_model.calibration import GpuRates, LinkFit, calibrate_gpus, fit_link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Probe = Callable[[str, int], dict[str, object]]
    """Runs a program on so many nodes, and gives what it printed."""

__all__: list[str] = []


def count_nodes(device: str) -> int:
    """Give how many nodes a machine of the GPUs here has by default: one for each.

    Args:
        device: what they are, by name in the registry.

    Raises:
        RequestError: there is no such device here, or no driver for it.
    """
    found = DEVICES.lookup(device)
    found.check()
    return max(1, len(found.memory_bytes()))


def measure_gpus(nodes: int, run: Probe) -> tuple[Machine, GpuRates, LinkFit | None]:
    """Measure a GPU, and the way between two ranks with one each; give the machine with what was found.

    Args:
        nodes: of the machine, each a rank with one processor.
        run: runs a probe.

    Raises:
        RunError: a probe gave something else than expected.
    """
    told = run("maniple.gpu_probe", 1)
    rates = _rates(told)
    if nodes == 1:
        return calibrate_gpus(Machine.from_json(told["machine"]), rates, None), rates, None
    told = run("maniple.link_probe", nodes)
    fit = fit_link([int(size) for size in _numbers(told, "bytes")], _numbers(told, "seconds"))
    return calibrate_gpus(Machine.from_json(told["machine"]), rates, fit), rates, fit


def _rates(told: dict[str, object]) -> GpuRates:
    products, feed = told.get("products"), told.get("feed")
    if not isinstance(products, dict) or not isinstance(feed, dict):
        raise RunError(f"calibrate: the probe gave {sorted(told)}, expected products and feed")
    (bandwidth,), (node_s,) = _numbers(told, "bandwidth"), _numbers(told, "node_s")
    return GpuRates({str(dtype): _numbers(products, dtype)[0] for dtype in products}, bandwidth, node_s, Feed(**feed))


def _numbers(told: Mapping[str, object], name: str) -> list[float]:
    values = told.get(name)
    found = values if isinstance(values, list) else [values]
    numbers = [float(value) for value in found if isinstance(value, int | float)]
    if len(numbers) < len(found):
        raise RunError(f"calibrate: the probe gave {values!r} for {name}, expected numbers")
    return numbers


def document(rates: GpuRates, link: dict[str, float] | None) -> dict[str, object]:
    """What was measured, as plain data.

    Args:
        rates: of a GPU.
        link: between two ranks.
    """
    return {**asdict(rates), "link": link}


def lines(rates: GpuRates, device: str) -> list[str]:
    """What was measured, to be read.

    Args:
        rates: of a GPU.
        device: what it is, by name in the registry.
    """
    products, feed = rates.products, rates.feed
    told = [f"{products[dtype] / 1e12:.1f} {dtype}" for dtype in products]
    found = [
        f"products    {', '.join(told)} Tflop/s",
        f"memory      {rates.bandwidth / 1e9:.0f} GB/s read and written in a copy",
        f"task        {rates.node_s * 1e6:.1f} us captured, {feed.eager_s * 1e6:.1f} us of the host by itself",
        f"run         {feed.run_s * 1e6:.0f} us beside its tasks",
        f"staging     {feed.staging / 1e9:.1f} GB/s into pinned memory",
        f"bus         {feed.upload / 1e9:.1f} GB/s from pinned memory to the GPU, {feed.download / 1e9:.1f} GB/s back",
    ]
    return found if device == "cuda" else [*found, f"            of a {device} device: these times mean nothing"]
