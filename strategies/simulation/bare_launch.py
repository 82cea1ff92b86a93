"""Bare launches: what the runtime would launch for an arrival, an assignment or a fetch, without a body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.regions import privilege
from maniple.regions.columns.boxes import HIGH, LOW
from maniple.regions.columns.validity import READ, READ_WRITE, WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Launch, Point, Requirement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.simulation.plan_free_step import PlanFreeStep, RegionKey

__all__: list[str] = []

PRIVILEGES = {READ: privilege.READ, READ_WRITE: privilege.READ_WRITE, WRITE_DISCARD: privilege.WRITE_DISCARD}


def bare_launch(
    plan_free: PlanFreeStep,
    forms: dict[int, OperatorForm],
    name: str,
    points: Callable[[], Sequence[Point]],
    used: Boxes,
    regions: tuple[tuple[RegionKey, int], ...],
    port: str = "",
) -> Launch:
    """A launch without a body.

    Args:
        plan_free: of the step.
        forms: the form of each operator.
        name: of the launch.
        points: gives its points.
        used: what each of them uses.
        regions: of these regions, and how.
        port: see `Launch`.
    """
    requirements = []
    for key, access in regions:
        region = plan_free.region(key, forms)
        axes = region.bounds.ndim
        rects = tuple(
            Rect(tuple(row[LOW : LOW + axes].tolist()), tuple(row[HIGH : HIGH + axes].tolist())) for row in used
        )
        requirements.append(Requirement(region, PRIVILEGES[access], rects))
    return Launch(name, tuple(points()), tuple(requirements), port=port)


def replicas(processors: Column) -> list[Point]:
    """One point, again on each processor."""
    return [Point((), processor, replica) for replica, processor in enumerate(processors.tolist())]


def numbered(processors: Column) -> list[Point]:
    """A point of its own on each processor."""
    return [Point((number,), processor) for number, processor in enumerate(processors.tolist())]
