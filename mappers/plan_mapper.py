"""The plan mapper: every task where its plan says, and no task that no plan knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.program.mapper import Mapper, TaskOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.program.mapper import LaunchView, TaskView

__all__ = ["PlanMapper"]


@final
class PlanMapper(Mapper):
    """Follows the plan to the letter.

    Raises:
        RequestError: a launch has no plan.
    """

    def task_options(self, launch: LaunchView) -> TaskOptions:
        """Keep the answers: they depend on the launch alone."""
        del launch
        return TaskOptions(keep=True)

    def shard(self, launch: LaunchView) -> Sequence[int]:
        """Give the ranks of the plan's processors."""
        return [launch.machine.rank_of(processor) for processor in _require_suggestion(launch)]

    def select_processor(self, task: TaskView) -> int:
        """Give the plan's processor."""
        return _require_suggestion(task.launch)[task.index]


def _require_suggestion(launch: LaunchView) -> tuple[int, ...]:
    if launch.suggested is None:
        msg = f"mapper 'plan' cannot place {launch.name}: no plan covers it; use the mapper 'default' for such launches"
        raise RequestError(msg)
    return launch.suggested
