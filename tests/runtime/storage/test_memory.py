"""The memory of a rank: instances that last grow and keep their values."""

from __future__ import annotations

import torch

from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.memory import Memory

REGION = LogicalRegion(3, "w", Rect((0, 0), (8, 4)), "float32")
OTHER = LogicalRegion(4, "b", Rect((0,), (8,)), "int64")


def test_an_instance_that_has_room_stays_where_it_is() -> None:
    memory = Memory(0)
    view = memory.view(REGION, Rect((2, 0), (6, 4)))
    view.fill_(7.0)
    assert memory.view(REGION, Rect((3, 1), (5, 2))).tolist() == [[7.0], [7.0]]
    assert memory.version == 0
    covered, storage = memory.keep(REGION, Rect((4, 0), (5, 1)))
    assert covered == Rect((2, 0), (6, 4))
    assert storage.data_ptr() == view.data_ptr()


def test_an_instance_that_grows_keeps_its_values_and_says_that_it_moved() -> None:
    memory = Memory(0)
    memory.view(REGION, Rect((2, 1), (4, 3))).fill_(7.0)
    covered, storage = memory.keep(REGION, Rect((0, 2), (1, 4)))
    assert covered == Rect((0, 1), (4, 4))
    expected = torch.zeros((4, 3))
    expected[2:4, 0:2] = 7.0
    assert torch.equal(storage, expected)
    assert memory.version == 1


def test_regions_do_not_share_storage_and_are_dropped_one_by_one() -> None:
    memory = Memory(0)
    memory.view(REGION, REGION.bounds).fill_(1.0)
    memory.view(OTHER, OTHER.bounds).fill_(2)
    assert memory.kept_bytes() == 8 * 4 * 4 + 8 * 8
    memory.drop(REGION)
    memory.drop(REGION)
    assert memory.kept_bytes() == 64
    assert memory.view(OTHER, OTHER.bounds).tolist() == [2] * 8
    assert memory.view(REGION, REGION.bounds).sum().item() == 0.0


def test_allocated_storage_has_the_shape_and_type_of_its_region() -> None:
    memory = Memory(0)
    storage = memory.allocate(OTHER, Rect((2,), (5,)))
    assert (storage.shape, storage.dtype) == ((3,), torch.int64)
    assert memory.kept_bytes() == 0
