"""The parallelization configuration of one operator, one weight and one stage: the parts of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, Self, cast, final, get_args

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.process.file_entry import Entry

__all__: list[str] = []

Copy = Literal["kept", "step", "pass"]
"""How long a memory keeps what it reads of a weight besides its home; see `WeightPlan`."""
Sums = Literal["use", "home"]
"""Where the gradients of micro-batches add up."""


@final
@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """How one operator is cut into point tasks, and where they run.

    The points are row-major over the degrees. The processors are point-major with the replicas of a point next to
    each other: for degrees b=2 and 2 replicas

        point (b)   0        1
        replica     0   1    0   1
        processors  p0  p1   p2  p3

    Args:
        degrees: (factor, degree) for every factor of the operator's rule, in the rule's order.
        processors: a processor for every replica of every point.
        replicas: how many processors compute each point.
        recompute: whether its results are computed again for backward, and not kept from forward until then.

    Raises:
        RequestError: the number of processors is not the number of replicas of points.
    """

    degrees: tuple[tuple[str, int], ...]
    processors: tuple[int, ...]
    replicas: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        """Check that there is a processor for every replica of every point."""
        _check_layout([degree for _, degree in self.degrees], self.replicas, self.processors)

    @property
    def points(self) -> int:
        """How many point tasks the operator is cut into, replicas not counted."""
        return prod(degree for _, degree in self.degrees)

    def degree(self, factor: str) -> int:
        """The degree of a factor.

        Raises:
            KeyError: the rule has no such factor.
        """
        return dict(self.degrees)[factor]

    def of_point(self, point: int) -> tuple[int, ...]:
        """The processors that compute a point (its row-major number), replica 0 first."""
        return self.processors[point * self.replicas : (point + 1) * self.replicas]

    def split(self) -> str:
        """The factors that are split, such as ``b=2 o=4``; ``whole`` when none is."""
        return " ".join(f"{factor}={degree}" for factor, degree in self.degrees if degree > 1) or "whole"

    def to_json(self) -> dict[str, object]:
        """The configuration as plain data, every key present."""
        return {
            "degrees": dict(self.degrees),
            "replicas": self.replicas,
            "processors": list(self.processors),
            "recompute": self.recompute,
        }

    @classmethod
    def from_json(cls, entry: Entry) -> Self:
        """The configuration that an entry of a plan file describes.

        Raises:
            RequestError: the entry is wrong; the message names the place.
        """
        table = entry.table(("degrees", "replicas", "processors", "recompute"))
        degrees = tuple((factor, degree.integer(1)) for factor, degree in table["degrees"].items())
        replicas = table["replicas"].integer(1)
        processors = tuple(processor.integer(0) for processor in table["processors"].elements())
        _check_entry(table["processors"], prod(degree for _, degree in degrees), replicas, processors)
        return cls(degrees, processors, replicas, table["recompute"].boolean())


@final
@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The home of one weight: where its value, gradient and optimizer state live between uses, and are updated.

    Args:
        degrees: into how many blocks each dimension of the parameter is cut.
        processors: a processor for every replica of every block, laid out as in ``OperatorPlan``; its memory holds
            the block and it runs the block's update.
        replicas: how many processors hold and update each block.
        copy: how long what a memory reads of the weight is there: ``kept`` beside the home from step to step; apart
            from it for a ``step``, from first use to last; or for a ``pass``: let go after its last use forward and
            gathered again for backward, of each micro-batch by itself.
        sums: where the gradients of micro-batches add up: whole where they are computed (``use``), or at ``home``.

    Raises:
        RequestError: the number of processors is not the number of replicas of blocks.
    """

    degrees: tuple[int, ...]
    processors: tuple[int, ...]
    replicas: int = 1
    copy: Copy = "kept"
    sums: Sums = "use"

    def __post_init__(self) -> None:
        """Check that there is a processor for every replica of every block."""
        _check_layout(self.degrees, self.replicas, self.processors)

    @property
    def is_cut(self) -> bool:
        """Whether the weight lives in several blocks."""
        return prod(self.degrees) > 1

    def to_json(self) -> dict[str, object]:
        """The home as plain data, every key present."""
        return {
            "degrees": list(self.degrees),
            "replicas": self.replicas,
            "processors": list(self.processors),
            "copy": self.copy,
            "sums": self.sums,
        }

    @classmethod
    def from_json(cls, entry: Entry) -> Self:
        """The home that an entry of a plan file describes.

        Raises:
            RequestError: the entry is wrong; the message names the place.
        """
        table = entry.table(("degrees", "replicas", "processors", "copy", "sums"))
        degrees = tuple(degree.integer(1) for degree in table["degrees"].elements())
        replicas = table["replicas"].integer(1)
        processors = tuple(processor.integer(0) for processor in table["processors"].elements())
        _check_entry(table["processors"], prod(degrees), replicas, processors)
        copy, sums = table["copy"].choice(get_args(Copy)), table["sums"].choice(get_args(Sums))
        return cls(degrees, processors, replicas, cast("Copy", copy), cast("Sums", sums))


@final
@dataclass(frozen=True, slots=True)
class StagePlan:
    """A group of operators that one part of the processors runs.

    Args:
        operators: their names.
    """

    operators: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The stage as plain data, every key present."""
        return {"operators": list(self.operators)}

    @classmethod
    def from_json(cls, entry: Entry) -> Self:
        """The stage that an entry of a plan file describes.

        Raises:
            RequestError: the entry is wrong; the message names the place.
        """
        table = entry.table(("operators",))
        return cls(tuple(operator.string() for operator in table["operators"].elements()))


@final
@dataclass(frozen=True, slots=True)
class Predicted:
    """What the strategy expects of a step under the plan; None where it did not say.

    Args:
        step_s: seconds of one step.
        memory_bytes: the most bytes that one memory holds.
        bytes: payload bytes that leave one memory for another.
        bound_s: seconds below which no plan for this graph and machine can go; of an exhaustive search no plan of
            those that it goes through.
    """

    step_s: float | None = None
    memory_bytes: int | None = None
    bytes: int | None = None
    bound_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """The predictions as plain data, every key present."""
        return {
            "step_s": self.step_s,
            "memory_bytes": self.memory_bytes,
            "bytes": self.bytes,
            "bound_s": self.bound_s,
        }

    @classmethod
    def from_json(cls, entry: Entry) -> Self:
        """The predictions that an entry of a plan file states.

        Raises:
            RequestError: the entry is wrong; the message names the place.
        """
        table = entry.table(("step_s", "memory_bytes", "bytes", "bound_s"))
        step, memory, moved, bound = (table[key] for key in ("step_s", "memory_bytes", "bytes", "bound_s"))
        return cls(
            None if step.is_null else step.number(0.0),
            None if memory.is_null else memory.integer(0),
            None if moved.is_null else moved.integer(0),
            None if bound.is_null else bound.number(0.0),
        )


def _check_layout(degrees: list[int] | tuple[int, ...], replicas: int, processors: tuple[int, ...]) -> None:
    if replicas < 1 or any(degree < 1 for degree in degrees):
        raise RequestError(f"expected degrees and replicas >= 1, got degrees {list(degrees)} and {replicas} replicas")
    if len(processors) != prod(degrees) * replicas:
        raise RequestError(
            f"expected {prod(degrees) * replicas} processors, one for each of {replicas} replicas of "
            f"{prod(degrees)} points, got {len(processors)}: {list(processors)}"
        )


def _check_entry(entry: Entry, points: int, replicas: int, processors: tuple[int, ...]) -> None:
    if len(processors) != points * replicas:
        raise entry.problem(
            f"{points * replicas} processors (the product of the degrees, {points}, times {replicas} replicas)",
            f", which are {len(processors)}",
        )
