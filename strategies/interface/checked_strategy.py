"""A strategy of another package, held to the interface: what it forgets, mistakes or raises is told at once.

    method                             has to give        otherwise
    init, step, with_items, next_round a state            a forgotten return
    terminate                          True or False      a search that never ends, or ends before it began
    progress                           a Progress         a missing attribute, far from here
    result, alternatives, frontier     a Plan; Plans; ... likewise
    items                              a tuple            likewise
    (any)                              no exception       a traceback through the search loop

Strategies of this package are driven as they are: the type checker has read them.
"""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

from maniple.operators.plan.plan import Plan
from maniple.process.error import ManipleError, RequestError
from maniple.strategies.interface.parallel_search import AbstractParallelStrategy, WorkItem
from maniple.strategies.interface.plan_frontier import Frontier
from maniple.strategies.interface.strategy import (
    AbstractDirectStrategy,
    AbstractStrategy,
    Problem,
    Progress,
    StrategyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

Kind = TypeVar("Kind")


def make_checked(name: str, strategy: type[AbstractStrategy[Any]]) -> AbstractStrategy[Any]:
    """A strategy of a class, checked unless the class is this package's.

    Raises:
        StrategyError: the class cannot be called without arguments, or its ``__init__`` raises.
    """
    if strategy.__module__.split(".")[0] == __name__.split(".", maxsplit=1)[0]:
        return strategy()
    own = _call(name, "__init__", strategy)
    checked = CheckedStrategy(name, own)
    return CheckedParallelStrategy(name, own, checked) if isinstance(own, AbstractParallelStrategy) else checked


def class_of(strategy: AbstractStrategy[Any]) -> type[AbstractStrategy[Any]]:
    """The class of a strategy that ``make_checked`` gave, as its author wrote it."""
    if isinstance(strategy, CheckedStrategy | CheckedParallelStrategy):
        return type(strategy.own)
    return type(strategy)


@final
class CheckedStrategy(AbstractStrategy[Any]):
    """A strategy whose every answer is looked at.

    Args:
        asked: the name under which it was asked for.
        own: the strategy.
    """

    name: ClassVar[str] = "checked"
    needs_budget: ClassVar[bool] = False

    def __init__(self, asked: str, own: AbstractStrategy[Any]) -> None:
        self._asked, self.own = asked, own
        self._problem: Problem | None = None
        # Whoever drives it asks the strategy, not its class.
        self.name = own.name  # type: ignore[misc]
        self.needs_budget = own.needs_budget  # type: ignore[misc]
        self.objectives = own.objectives  # type: ignore[misc]
        self.pipelines, self.spaces = own.pipelines, own.spaces  # type: ignore[misc]
        self.inside_stages = own.inside_stages  # type: ignore[misc]

    def load_compiled(self) -> None:
        """Compile what the search calls."""
        _call(self._asked, "load_compiled", self.own.load_compiled)

    def init(self, problem: Problem) -> object:
        """The state before the first step."""
        self._problem = problem
        return _state(self._asked, "init", self.own.init, problem)

    def step(self, state: object) -> object:
        """The state after one more step."""
        method = "plan" if isinstance(self.own, AbstractDirectStrategy) else "step"
        return _state(self._asked, method, self.own.step, state)

    def terminate(self, state: object) -> bool:
        """Whether further steps would change nothing."""
        return _expected(bool, "True or False", self._asked, "terminate", self.own.terminate, state)

    def progress(self, state: object) -> Progress:
        """How far a state has come."""
        return _expected(Progress, "a Progress", self._asked, "progress", self.own.progress, state)

    def result(self, state: object) -> Plan:
        """The best plan that the state holds, if it is one of the problem.

        Raises:
            StrategyError: it is no plan, or cannot run.
        """
        plan = _expected(Plan, "a Plan", self._asked, "result", self.own.result, state)
        self._validate(plan)
        return plan

    def frontier(self, state: object) -> Frontier:
        """Every best trade that the state holds."""
        found = _expected(Frontier, "a Frontier", self._asked, "frontier", self.own.frontier, state)
        for point in found:
            self._validate(point.plan)
        return found

    def alternatives(self, state: object) -> tuple[Plan, ...]:
        """Plans beside the result."""
        plans = _expected(tuple, "a tuple of Plans", self._asked, "alternatives", self.own.alternatives, state)
        for plan in plans:
            if not isinstance(plan, Plan):
                raise _mistake(self._asked, "alternatives", "a tuple of Plans", f"one that holds {_describe(plan)}")
            self._validate(plan)
        return plans

    def _validate(self, plan: Plan) -> None:
        if self._problem is None:
            return
        try:
            plan.validate(self._problem.graph, self._problem.machine)
        except RequestError as error:
            raise StrategyError(f"strategy {self._asked!r}: its plan cannot run: {error}") from error


@final
class CheckedParallelStrategy(AbstractParallelStrategy[Any]):
    """A strategy in rounds of work items, whose every answer is looked at.

    Args:
        asked: the name under which it was asked for.
        own: the strategy.
        checked: what looks at its other answers.
    """

    name: ClassVar[str] = "checked"

    def __init__(self, asked: str, own: AbstractParallelStrategy[Any], checked: CheckedStrategy) -> None:
        self._asked, self.own, self._checked = asked, own, checked
        self.name, self.width = own.name, own.width  # type: ignore[misc]
        self.needs_budget, self.objectives = own.needs_budget, own.objectives  # type: ignore[misc]
        self.pipelines, self.spaces = own.pipelines, own.spaces  # type: ignore[misc]
        self.inside_stages = own.inside_stages  # type: ignore[misc]

    def load_compiled(self) -> None:
        """Compile what the search calls."""
        self._checked.load_compiled()

    def init(self, problem: Problem) -> object:
        """The state before the first step."""
        return self._checked.init(problem)

    def terminate(self, state: object) -> bool:
        """Whether further steps would change nothing."""
        return self._checked.terminate(state)

    def progress(self, state: object) -> Progress:
        """How far a state has come."""
        return self._checked.progress(state)

    def result(self, state: object) -> Plan:
        """The best plan that the state holds, if it is one of the problem."""
        return self._checked.result(state)

    def frontier(self, state: object) -> Frontier:
        """Every best trade that the state holds."""
        return self._checked.frontier(state)

    def alternatives(self, state: object) -> tuple[Plan, ...]:
        """Plans beside the result."""
        return self._checked.alternatives(state)

    def items(self, state: object) -> tuple[WorkItem, ...]:
        """The items of the present round."""
        return _expected(tuple, "a tuple of work items", self._asked, "items", self.own.items, state)

    def with_items(self, state: object, items: tuple[WorkItem, ...]) -> object:
        """The state whose present round has come as far as these items."""
        return _state(self._asked, "with_items", self.own.with_items, state, items)

    def before(self, state: object) -> int:
        """How many proposals were made before the present round."""
        return _expected(int, "a number", self._asked, "before", self.own.before, state)

    def next_round(self, state: object) -> object:
        """The state after a round."""
        return _state(self._asked, "next_round", self.own.next_round, state)

    def bench(self, problem: Problem) -> Any:
        """A workbench."""
        return _call(self._asked, "bench", self.own.bench, problem)

    def bench_of(self, state: object) -> Any:
        """The workbench of the process that the state is in."""
        return _call(self._asked, "bench_of", self.own.bench_of, state)

    def advance(self, item: WorkItem, bench: Any) -> WorkItem:
        """An item after one more step."""
        found = _call(self._asked, "step", self.own.advance, item, bench)
        if found is None:
            raise _mistake(self._asked, "step", "a work item", "None")
        return found

    def unpack(self, plain: list[Any]) -> WorkItem:
        """The item that its ``pack`` gave."""
        found = _call(self._asked, "unpack", self.own.unpack, plain)
        if found is None:
            raise _mistake(self._asked, "unpack", "a work item", "None")
        return found


def _state(asked: str, method: str, call: Callable[..., object], *arguments: object) -> object:
    found = _call(asked, method, call, *arguments)
    if found is None:
        raise _mistake(asked, method, "a state", "None")
    return found


def _expected(kind: type[Kind], said: str, asked: str, method: str, call: Callable[..., Kind], state: object) -> Kind:
    found = _call(asked, method, call, state)
    if not isinstance(found, kind):
        raise _mistake(asked, method, said, _describe(found))
    return found


def _call(asked: str, method: str, call: Callable[..., Kind], *arguments: object) -> Kind:
    """What a method gives; what it raises by accident is told with the strategy's name and the place."""
    try:
        return call(*arguments)
    except ManipleError:
        raise
    except Exception as error:
        frame = extract_tb(error.__traceback__)[-1]
        raised = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        place = f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
        raise StrategyError(f"strategy {asked!r}: {method}() raised {raised} ({place}); mend it there") from error


def _mistake(asked: str, method: str, expected: str, got: str) -> StrategyError:
    forgotten = "; is a return missing?" if got == "None" else "; docs/how-to/strategy.md says what each method gives"
    return StrategyError(f"strategy {asked!r}: {method}() gave {got}; expected {expected}{forgotten}")


def _describe(found: object) -> str:
    return "None" if found is None else f"a value of type {type(found).__name__}"
