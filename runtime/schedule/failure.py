"""What the program sees when something that it launched went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.process.error import RequestError, RunError

if TYPE_CHECKING:
    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.validity import UnwrittenRead
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


class TaskFailed(RunError):  # noqa: N818  (says what happened; ManipleError names the family)
    """The body of a task raised; the body's exception is chained. It is `here` where that task ran."""

    def again(self) -> TaskFailed:
        """Give it as a new exception, to be raised once more: the traceback of one that is raised again grows."""
        made = type(self)(*self.args)
        made.__cause__, made.here = self.__cause__, self.here
        return made

    @classmethod
    def of(cls, schedule: Schedule, row: int, place: str, error: BaseException) -> TaskFailed:
        """Describe the failure of a row: its task, where it ran, the regions that it used, and the cause."""
        uses = ", ".join(
            f"{schedule.regions[schedule.instances[access.instance].region].name}{access.rect}"
            for access in schedule.accesses(row)
        )
        launch = schedule.launches[schedule.launch[row]]
        source = f", launched at {launch.provenance}" if launch.provenance else ""
        failure = cls(
            f"task {schedule.label(row)} failed on {place}: {type(error).__name__}: {error} "
            f"(uses {uses or 'nothing'}{source})"
        )
        failure.__cause__ = error
        return failure

    @classmethod
    def of_launch(cls, launch: Launch, point: int, place: str, error: BaseException) -> TaskFailed:
        """Describe the failure of one task of a dynamic launch."""
        uses = ", ".join(
            f"{requirement.privilege} {requirement.region.name}{requirement.rects[point]}"
            for requirement in launch.requirements
        )
        failure = cls(
            f"task {launch.label(point)} failed on {place}: {type(error).__name__}: {error} "
            f"(uses {uses or 'nothing'}, launched at {launch.provenance})"
        )
        failure.__cause__ = error
        return failure


class PoisonedRegion(RunError):  # noqa: N818  (says what is wrong; ManipleError names the family)
    """A task or the program would read what a failed task was to write; the failure is chained."""

    @classmethod
    def of(cls, launch: Launch, region: LogicalRegion, space: IndexSpace, cause: BaseException) -> PoisonedRegion:
        """Name the task, the region, the elements and the first cause."""
        reader = f"launch {launch.name}" if launch.provenance else "the program"
        return cls(
            f"{reader} reads {region.name}{space}, which was not written because {cause}; "
            "fill or write it whole, or make the region again"
        )


class UnwrittenRegion(RequestError):  # noqa: N818  (says what is wrong; ManipleError names the family)
    """A task would read what nothing has written."""

    @classmethod
    def of(cls, launch: Launch, region: LogicalRegion, error: UnwrittenRead) -> UnwrittenRegion:
        """Name the task, the region and the elements."""
        return cls(f"launch {launch.name} reads {region.name}{error.rect}, which nothing has written; fill or write it")
