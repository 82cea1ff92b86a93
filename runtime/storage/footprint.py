"""Footprints: the elements that a task's body may use, and the array in which it sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from maniple.process.error import RequestError
from maniple.regions.index_space import RectSet
from maniple.runtime.storage.copy_kernels import positions, to_host

if TYPE_CHECKING:
    from maniple.regions.index_space import IndexSpace
    from maniple.regions.privilege import Privilege

__all__: list[str] = []

# What a view is called that knows which elements it shows.
_SPACE: Final = "maniple_index_space"


def index_space(view: torch.Tensor) -> IndexSpace:
    """Give the index space that a task's argument shows: element 0 of the array is the first index of its bounds.

    ``x[mp.index_space(x).positions()]`` are the task's own elements: in one row if the space is sparse, else all of x.

    Args:
        view: an argument of the task's body, as it was given to it.

    Raises:
        RequestError: the tensor is no argument of a task.
    """
    found: IndexSpace | None = getattr(view, _SPACE, None)
    if found is None:
        msg = f"a tensor of shape {tuple(view.shape)} is no argument of a task; ask for the index space of an argument"
        raise RequestError(msg)
    return found


def label(view: torch.Tensor, space: IndexSpace) -> torch.Tensor:
    """Say of a view which elements it shows."""
    setattr(view, _SPACE, space)
    return view


class SparseArgument:
    """The array in which a body sees elements of a sparse index space: the bounds, where only these are its own.

    A body that writes gets a copy, so that what it does to elements between its own is nobody else's concern.

    Args:
        view: the bounds of the elements in an instance that other tasks use too.
        space: the elements.
        privilege: what the body does with them.
        blank: whether to have NaN (or zero, in whole numbers) in the copy where an element is not the body's own.
    """

    def __init__(self, view: torch.Tensor, space: RectSet, privilege: Privilege, *, blank: bool) -> None:
        self._index = positions(space)
        self._view = view
        self._privilege = privilege
        self._blank = torch.nan if view.dtype.is_floating_point else 0
        self.array = label(torch.full_like(view, self._blank) if blank else torch.empty_like(view), space)

    def load(self) -> None:
        """Bring the elements into the copy."""
        if self._privilege.reads:
            self.array[self._index] = self._view[self._index]

    def store(self) -> None:
        """Take the elements back from the copy."""
        if self._privilege.writes:
            self._view[self._index] = self.array[self._index]


def whole(view: torch.Tensor, space: IndexSpace) -> torch.Tensor:
    """Copy the bounds of an index space to the host, with zeros where it has no element."""
    if not isinstance(space, RectSet):
        return to_host(view)
    index = positions(space)
    copied = torch.zeros_like(view)
    copied[index] = view[index]
    return to_host(copied)
