"""Decision logs: every answer of a mapper as a line of JSON, and a mapper that reads them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from maniple.mappers.default import DefaultMapper
from maniple.process import environment
from maniple.process.error import RequestError
from maniple.runtime.program.mapper import CopyView, LaunchView, Mapper, TaskMapping, TaskOptions, TaskView, TunableView

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from maniple.runtime.program.mapper import TaskProfile

__all__ = ["LoggingMapper", "ReplayMapper"]


View = LaunchView | TaskView | CopyView | TunableView
T = TypeVar("T")


def _where(callback: str, view: View) -> dict[str, object]:
    """Say which question it is, in values that JSON has."""
    asked: Any = view
    if callback in {"select_processor", "map_task", "order"}:
        return {"callback": callback, "launch": asked.launch.name, "point": list(asked.color)}
    if callback == "select_sources":
        return {"callback": callback, "region": asked.region, "target": asked.target}
    key = "tunable" if callback == "select_tunable" else "launch"
    return {"callback": callback, key: asked.name}


@final
class LoggingMapper(Mapper):
    """Asks another mapper, and writes every decision as a line of JSON.

    Every rank hears the same answers, so rank 0 writes them alone.

        {"callback": "select_processor", "launch": "axpy", "point": [1], "answer": 1}

    Args:
        path: the file, made anew.
        mapper: whom to ask; the default mapper if nobody is named.
    """

    def __init__(self, path: str | os.PathLike[str], mapper: Mapper | None = None) -> None:
        self._mapper = DefaultMapper() if mapper is None else mapper
        self._path = None if environment.own_rank() else Path(path)
        if self._path is not None:
            try:
                self._path.write_text("", encoding="utf-8")
            except OSError as error:
                msg = f"{path}: cannot be written ({error.strerror}); choose a folder that exists"
                raise RequestError(msg) from error

    def _log(self, callback: str, view: View, answer: T) -> T:
        """Write an answer down, and give it."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**_where(callback, view), "answer": _plain(answer)}) + "\n")
        return answer

    def task_options(self, launch: LaunchView) -> TaskOptions:
        """Ask, and write the answer down."""
        return self._log("task_options", launch, self._mapper.task_options(launch))

    def memoize(self, launch: LaunchView) -> bool:
        """Ask, and write the answer down."""
        return self._log("memoize", launch, self._mapper.memoize(launch))

    def shard(self, launch: LaunchView) -> Sequence[int]:
        """Ask, and write the answer down."""
        return self._log("shard", launch, self._mapper.shard(launch))

    def select_processor(self, task: TaskView) -> int:
        """Ask, and write the answer down."""
        return self._log("select_processor", task, self._mapper.select_processor(task))

    def map_task(self, task: TaskView) -> TaskMapping:
        """Ask, and write the answer down."""
        return self._log("map_task", task, self._mapper.map_task(task))

    def order(self, task: TaskView) -> int:
        """Ask, and write the answer down."""
        return self._log("order", task, self._mapper.order(task))

    def select_sources(self, copy: CopyView) -> Sequence[int]:
        """Ask, and write the answer down."""
        return self._log("select_sources", copy, self._mapper.select_sources(copy))

    def select_tunable(self, tunable: TunableView) -> bool | float | str:
        """Ask, and write the answer down."""
        return self._log("select_tunable", tunable, self._mapper.select_tunable(tunable))

    def report_profiling(self, profile: tuple[TaskProfile, ...]) -> None:
        """Hand measurements on."""
        self._mapper.report_profiling(profile)


def _plain(answer: Any) -> object:
    """Give an answer in values that JSON has."""
    if isinstance(answer, TaskOptions):
        return {"check": answer.check, "profile": answer.profile}
    if isinstance(answer, TaskMapping):
        layouts = [None if order is None else list(order) for order in answer.layouts]
        return {"variant": answer.variant, "memory": answer.memory, "layouts": layouts}
    return list(answer) if isinstance(answer, tuple | list) else answer


@final
class ReplayMapper(Mapper):
    """Gives the answers of a decision log, in order.

    Args:
        path: what `LoggingMapper` wrote.

    Raises:
        RequestError: the program asks something else than was logged, or more.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = str(path)
        try:
            self._lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise RequestError(f"{path}: cannot be read ({error}); write one with the mapper logging:{path}") from error
        self._line = 0

    def _next(self, callback: str, view: View) -> Any:
        """Take the next answer."""
        asked = _where(callback, view)
        if self._line == len(self._lines):
            msg = f"{self._name}: ended after {self._line} decisions; the program asks {json.dumps(asked)}"
            raise RequestError(msg)
        text = self._lines[self._line]
        self._line += 1
        place = f"{self._name}: line {self._line}"
        try:
            logged = json.loads(text)
            answer = logged.pop("answer")
        except (ValueError, AttributeError, KeyError) as error:
            raise RequestError(f"{place}: expected a decision, got {text[:60]!r}; log the program again") from error
        if logged != asked:
            raise RequestError(
                f"{place}: the log answers {json.dumps(logged)}, the program asks {json.dumps(asked)}; "
                "replay a log with the program and machine that wrote it"
            )
        return answer

    def task_options(self, launch: LaunchView) -> TaskOptions:
        """Give the logged answer."""
        return TaskOptions(**self._next("task_options", launch))

    def memoize(self, launch: LaunchView) -> bool:
        """Give the logged answer."""
        return bool(self._next("memoize", launch))

    def shard(self, launch: LaunchView) -> Sequence[int]:
        """Give the logged answer."""
        return list(self._next("shard", launch))

    def select_processor(self, task: TaskView) -> int:
        """Give the logged answer."""
        return int(self._next("select_processor", task))

    def map_task(self, task: TaskView) -> TaskMapping:
        """Give the logged answer."""
        found = self._next("map_task", task)
        layouts = tuple(None if order is None else tuple(order) for order in found["layouts"])
        return TaskMapping(found["variant"], found["memory"], layouts)

    def order(self, task: TaskView) -> int:
        """Give the logged answer."""
        return int(self._next("order", task))

    def select_sources(self, copy: CopyView) -> Sequence[int]:
        """Give the logged answer."""
        return list(self._next("select_sources", copy))

    def select_tunable(self, tunable: TunableView) -> bool | float | str:
        """Give the logged answer."""
        found: bool | float | str = self._next("select_tunable", tunable)
        return found
