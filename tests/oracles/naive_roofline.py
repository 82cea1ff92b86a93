"""The roofline of one task, one fold and one processor at a time, as the formula has it."""

from __future__ import annotations

from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Processor
from maniple.runtime.schedule.launch import Launch
from maniple.runtime.schedule.roofline import BANDWIDTH_EFFICIENCY, DEFAULT_EFFICIENCY, EFFICIENCY


def task_ns(launch: Launch, point: int, machine: Machine) -> int:
    """The nanoseconds of one task of a launch, at least 1."""
    processor = machine.processor(launch.points[point].processor)
    touched = sum(requirement.rects[point].volume * requirement.region.itemsize for requirement in launch.requirements)
    flops = launch.flops[point] if launch.flops else 0.0
    if launch.port:
        feed = processor.feed
        come = None if feed is None else 1 / (1 / feed.staging + 1 / feed.upload)
        bus = bandwidth(machine, processor) if feed is None else come if launch.port == "in" else feed.download
        return max(1, round(1e9 * max(0.0 if feed is None else feed.eager_s, processor.launch_s + touched / bus)))
    efficiency = EFFICIENCY.get(launch.kind.partition(".")[0], DEFAULT_EFFICIENCY)
    types = {requirement.region.dtype for requirement in launch.requirements}
    narrowest = next((one for one in ("bfloat16", "float16", "float32", "float64") if one in types), "float32")
    peak = next((rate for dtype, rate in processor.peaks if dtype == narrowest), processor.flops_per_s)
    busy = max(flops / (efficiency * peak), touched / bandwidth(machine, processor))
    return max(1, round(1e9 * (processor.launch_s + busy)))


def fold_ns(touched: int, machine: Machine, processor: Processor) -> int:
    """The nanoseconds of a fold that reads and writes so many bytes, at least 1."""
    return max(1, round(1e9 * (processor.launch_s + touched / bandwidth(machine, processor))))


def bandwidth(machine: Machine, processor: Processor) -> float:
    """The bytes per second that a processor reaches: an even share of its memory's."""
    sharing = len(machine.processors_of(processor.memory))
    return BANDWIDTH_EFFICIENCY * machine.memories[processor.memory].bandwidth / sharing
