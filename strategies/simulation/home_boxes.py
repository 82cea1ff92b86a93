"""Homes of weights as compiled code reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.simulation.operator_split import boxes_of_bounds

if TYPE_CHECKING:
    from maniple.operators.plan.weight_home import WeightHome
    from maniple.regions.columns.boxes import Boxes

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class HomeBoxes:
    """A weight's home.

    Args:
        home: the home.
        blocks: by update task, what it updates.
        held: the same, labelled by memory, those of one memory together.
        place: where its tasks run and which are replicas, the same for homes that are alike.
    """

    home: WeightHome
    blocks: Boxes
    held: Boxes
    place: tuple[bytes, bytes]

    @classmethod
    def of(cls, home: WeightHome) -> HomeBoxes:
        """The boxes of a home."""
        blocks, order = boxes_of_bounds(home.blocks), np.argsort(home.memories, kind="stable")
        held = blocks[order]
        held[:, 0] = home.memories[order]
        return cls(home, blocks, held, (home.colors.tobytes(), home.processors.tobytes()))
