"""Projections: from a point of a launch domain to the colour of the tile that it uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

__all__: list[str] = []

Point = tuple[int, ...]


class Projection(ABC):
    """A rule that names a colour for every point of a launch domain: Legion's projection functor."""

    __slots__ = ()

    @abstractmethod
    def color(self, point: Point, colors: Rect) -> Point | None:
        """The colour for a point; None if the point does not use the region.

        Args:
            point: of the launch domain.
            colors: the colour space of the partition.
        """


@final
@dataclass(frozen=True, slots=True)
class Shift(Projection):
    """The colour that lies at a fixed offset from the point.

    On the colours [0:4]:

        point               0     1  2  3
        shift(-1)           none  0  1  2
        the same, periodic  3     0  1  2

    Args:
        offset: added to the point, axis by axis.
        periodic: whether colours wrap around; otherwise a point whose colour does not exist uses nothing.
    """

    offset: Point
    periodic: bool

    def color(self, point: Point, colors: Rect) -> Point | None:
        """The shifted point, wrapped if the shift is periodic."""
        if len(point) != len(self.offset) or len(point) != colors.ndim:
            raise RequestError(
                f"shift{self.offset} does not fit the point {point} of {colors}: give one number per axis"
            )
        moved = tuple(a + b for a, b in zip(point, self.offset, strict=True))
        if self.periodic:
            sides = zip(moved, colors.lo, colors.hi, strict=True)
            return tuple(low + (number - low) % (high - low) for number, low, high in sides)
        inside = all(low <= number < high for number, low, high in zip(moved, colors.lo, colors.hi, strict=True))
        return moved if inside else None


@final
@dataclass(frozen=True, slots=True)
class UserProjection(Projection):
    """The colour that a function of the program gives; the function must depend on the point alone."""

    function: Callable[[Point], Point | int | None]

    def color(self, point: Point, colors: Rect) -> Point | None:
        """What the function says."""
        chosen = self.function(point)
        if isinstance(chosen, int):
            chosen = (chosen,)
        if chosen is not None and not (isinstance(chosen, tuple) and all(isinstance(number, int) for number in chosen)):
            msg = f"the projection answered {chosen!r} for point {point}; expected a colour of {colors}, or None"
            raise RequestError(msg)
        return chosen
