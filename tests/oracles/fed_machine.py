"""Machines of GPUs as calibrating them leaves them: peaks by type, what hosts take, and a device that two share."""

from __future__ import annotations

from dataclasses import replace

from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Feed

FEED = Feed(eager_s=9e-6, run_s=250e-6, staging=10e9, upload=50e9, download=40e9)
PEAKS = (("float64", 20e12), ("bfloat16", 500e12))


def fed(name: str = "h100x3") -> Machine:
    """A preset of GPUs whose first two processors are one device, with tasks of 2 us."""
    machine = Machine.preset(name)
    processors = tuple(
        replace(each, launch_s=2e-6, feed=FEED, peaks=PEAKS, device=7 if each.id < 2 else None)
        for each in machine.processors
    )
    return replace(machine, name=f"fed {name}", processors=processors)
