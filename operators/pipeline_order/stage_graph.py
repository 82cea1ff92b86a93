"""The stages of a pipeline: which lane has which, and which reads what another computes.

A *lane* is a group of processors that do one action at a time. In a chain each stage reads from the one before it:

    chain(4)          lane 0: 0      lane 1: 1      lane 2: 2      lane 3: 3
    looped(2, 2)      lane 0: 0 2    lane 1: 1 3    a chain that goes round twice
    folded(2)         lane 0: 0 3    lane 1: 1 2    a chain that goes there and back, as a V
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from maniple.process.error import RequestError

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class StageGraph:
    """Stages, their lanes and what they read.

    Args:
        lanes: the stages of each lane, ascending.
        reads: for each stage those that it reads from; all have smaller numbers.
    """

    lanes: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        placed = sorted(stage for lane in self.lanes for stage in lane)
        if placed != list(range(len(self.reads))) or not all(self.lanes):
            raise RequestError(
                f"stages: expected each of 0 to {len(self.reads) - 1} in one lane and a stage in every lane, got "
                f"{self.lanes}"
            )
        for stage, sources in enumerate(self.reads):
            if wrong := [source for source in sources if not 0 <= source < stage]:
                raise RequestError(
                    f"stages: stage {stage} reads from stage {wrong[0]}; stages are numbered so that each reads from "
                    "smaller ones only"
                )

    @classmethod
    def chain(cls, stages: int) -> StageGraph:
        """Stages one after the other, each in a lane of its own."""
        return cls(tuple((stage,) for stage in range(stages)), _in_a_row(stages))

    @classmethod
    def looped(cls, lanes: int, chunks: int) -> StageGraph:
        """A chain that goes round all lanes, as often as there are chunks."""
        return cls(tuple(tuple(range(lane, lanes * chunks, lanes)) for lane in range(lanes)), _in_a_row(lanes * chunks))

    @classmethod
    def folded(cls, lanes: int) -> StageGraph:
        """A chain that goes to the last lane and back."""
        return cls(tuple((lane, 2 * lanes - 1 - lane) for lane in range(lanes)), _in_a_row(2 * lanes))

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.reads)

    @property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each stage those that read from it."""
        return tuple(
            tuple(reader for reader, sources in enumerate(self.reads) if stage in sources)
            for stage in range(self.stages)
        )

    @property
    def heights(self) -> tuple[int, ...]:
        """For each stage how many stages the longest way from it to the end has, itself included; in a chain p - i."""
        heights = [1] * self.stages
        for stage in reversed(range(self.stages)):
            for source in self.reads[stage]:
                heights[source] = max(heights[source], heights[stage] + 1)
        return tuple(heights)

    def single(self, order: str) -> tuple[int, ...]:
        """The stage of each lane.

        Args:
            order: the name of an order that has one stage in a lane, for the message.

        Raises:
            RequestError: a lane has several.
        """
        for number, lane in enumerate(self.lanes):
            if len(lane) != 1:
                raise RequestError(
                    f"order {order!r} has one stage in a lane; lane {number} has stages "
                    f"{', '.join(map(str, lane))}: interleaved_1f1b, looped_bfs, zb_h1, v_half and v_zb have several"
                )
        return tuple(lane[0] for lane in self.lanes)

    def chunks(self, order: str) -> int:
        """How often a chain goes round all lanes.

        Raises:
            RequestError: it does not, and `order` has no other form.
        """
        chunks = len(self.lanes[0])
        if self != StageGraph.looped(len(self.lanes), chunks):
            raise RequestError(
                f"order {order!r} has a chain of stages that goes round all lanes: of {self.stages} stages on "
                f"{len(self.lanes)} lanes, stage s on lane s mod {len(self.lanes)}, reading from stage s - 1; got "
                f"lanes {self.lanes}, which read {self.reads}"
            )
        return chunks

    def check_fold(self, order: str) -> None:
        """Refuse stages that do not go to the last lane and back.

        Raises:
            RequestError: they do not.
        """
        lanes = len(self.lanes)
        if self != StageGraph.folded(lanes):
            raise RequestError(
                f"order {order!r} has a chain of {2 * lanes} stages that goes to the last of {lanes} lanes and back: "
                f"lane i has stages i and {2 * lanes - 1} - i; got lanes {self.lanes}, which read {self.reads}"
            )


def _in_a_row(stages: int) -> tuple[tuple[int, ...], ...]:
    return tuple((stage - 1,) if stage else () for stage in range(stages))
