"""Kept copies: blocks as they were when they were copied, in memory that is taken once."""

from __future__ import annotations

import torch

from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.devices.null_device import NullDevice
from maniple.runtime.storage.kept_copies import ALIGNMENT, KeptCopies
from maniple.runtime.storage.memory import Memory

REGION = LogicalRegion(3, "w", Rect((0, 0), (8, 5)), "float32")
OTHER = LogicalRegion(4, "b", Rect((0,), (7,)), "bfloat16")
BLOCKS = [(REGION, Rect((0, 0), (3, 5))), (REGION, Rect((3, 0), (8, 2))), (OTHER, OTHER.bounds)]


def test_copies_are_what_lasts_between_one_call_and_the_next() -> None:
    first, second = Memory(0), Memory(1)
    first.lay_out(REGION, (1, 0))
    copies = KeptCopies({first: BLOCKS, second: [(REGION, Rect((3, 2), (8, 5)))]})
    parts = [(first, *block) for block in BLOCKS] + [(second, REGION, Rect((3, 2), (8, 5)))]
    places = [copies.of(region.name, rect).data_ptr() for _, region, rect in parts]
    assert all(place % ALIGNMENT == 0 for place in (place - places[0] for place in places))
    for number in (1.0, 2.0):
        for order, (memory, region, rect) in enumerate(parts):
            memory.assign(region, rect, torch.full(rect.shape, number + 8 * order).to(getattr(torch, region.dtype)))
        copies.renew()
        for memory, region, rect in parts:
            memory.view(region, rect).add_(100.0)  # a step
        for order, (_, region, rect) in enumerate(parts):
            copy = copies.of(region.name, rect)
            assert (copy.shape, str(copy.dtype)) == (rect.shape, f"torch.{region.dtype}")
            assert torch.equal(copy.double(), torch.full(rect.shape, number + 8 * order, dtype=torch.float64))
    assert [copies.of(region.name, rect).data_ptr() for _, region, rect in parts] == places
    assert copies.of("w", BLOCKS[0][1]).stride() == (1, 3), "in the order of the instance"


def test_copies_made_in_inference_mode_are_made_again_outside_of_it() -> None:
    memory = Memory(0)
    with torch.inference_mode():
        copies = KeptCopies({memory: BLOCKS[2:]})
        copies.renew()
    memory.view(OTHER, OTHER.bounds).fill_(3.0)
    copies.renew()
    assert copies.of("b", OTHER.bounds).tolist() == [3.0] * 7


def test_what_lasts_on_a_device_is_copied_once_its_work_has_ended() -> None:
    device = NullDevice(0, 1 << 20)
    try:
        memory = Memory(0, device=device)
        copies = KeptCopies({memory: BLOCKS})
        for number in (1.0, 2.0):
            for region, rect in BLOCKS:
                memory.assign(region, rect, torch.full(rect.shape, number).to(getattr(torch, region.dtype)))
            copies.renew()
            assert all((copies.of(region.name, rect) == number).all() for region, rect in BLOCKS)
    finally:
        device.close()


def test_nothing_lives_there() -> None:
    KeptCopies({}).renew()
    KeptCopies({Memory(0): []}).renew()
