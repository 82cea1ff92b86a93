"""Footprints: what a body sees of a sparse argument, and what it may change by it.

The space is {[1:2], [3:5]}: the bounds are [1:5], of which the second element is not the body's own.
"""

from __future__ import annotations

import pytest
import torch

from maniple.process.error import RequestError
from maniple.regions.index_space import RectSet
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.footprint import SparseArgument, index_space, label, whole

SPACE = RectSet.of([Rect((1,), (2,)), Rect((3,), (5,))])


def instance() -> torch.Tensor:
    return torch.tensor([10.0, 20.0, 30.0, 40.0])


def argument(view: torch.Tensor, privilege: Privilege, *, blank: bool = True) -> SparseArgument:
    return SparseArgument(view, SPACE, privilege, blank=blank)


def test_an_argument_knows_its_elements_and_another_tensor_is_refused() -> None:
    assert index_space(argument(instance(), READ).array) == SPACE
    assert index_space(label(torch.zeros(4), Rect((1,), (5,)))) == Rect((1,), (5,))
    with pytest.raises(RequestError, match=r"a tensor of shape \(4,\) is no argument of a task"):
        index_space(torch.zeros(4))


def test_a_body_that_reads_sees_its_own_elements_and_nothing_between_them() -> None:
    found = argument(instance(), READ)
    found.load()
    assert found.array[torch.tensor([0, 2, 3])].tolist() == [10.0, 30.0, 40.0]
    assert torch.isnan(found.array[1])


def test_blank_whole_numbers_are_zero() -> None:
    found = argument(torch.tensor([1, 2, 3, 4]), READ)
    found.load()
    assert found.array.tolist() == [1, 0, 3, 4]


def test_what_a_body_does_between_its_elements_is_nobodys_concern() -> None:
    view = instance()
    found = argument(view, READ_WRITE)
    found.load()
    found.array += 1.0
    found.array[1] = 99.0
    found.store()
    assert view.tolist() == [11.0, 20.0, 31.0, 41.0]


def test_a_body_that_only_reads_changes_nothing() -> None:
    view = instance()
    found = argument(view, READ)
    found.load()
    found.array.zero_()
    found.store()
    assert view.tolist() == instance().tolist()


def test_a_body_that_discards_sees_no_old_value() -> None:
    found = argument(instance(), WRITE_DISCARD)
    found.load()
    assert torch.isnan(found.array).all()


def test_what_is_taken_whole_has_zeros_where_there_is_no_element() -> None:
    assert whole(instance(), SPACE).tolist() == [10.0, 0.0, 30.0, 40.0]
    assert whole(instance(), Rect((1,), (5,))).tolist() == instance().tolist()
