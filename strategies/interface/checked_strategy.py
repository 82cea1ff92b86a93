"""A strategy of another package, held to the interface: what it forgets, mistakes or raises is told at once.

    method                        has to give        otherwise
    init, step                    a state            a forgotten return
    terminate                     True or False      a search that never ends, or ends before it began
    progress                      a Progress         a missing attribute, far from here
    result, alternatives          a Plan; Plans      likewise
    (any)                         no exception       a traceback through the driver

Strategies of this package are driven as they are: the type checker has read them.
"""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

from maniple.operators.plan.plan import Plan
from maniple.regions.error import ManipleError, RequestError
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


def made(name: str, strategy: type[AbstractStrategy[Any]]) -> AbstractStrategy[Any]:
    """A strategy of a class, checked unless the class is this package's.

    Raises:
        StrategyError: the class cannot be called without arguments, or its ``__init__`` raises.
    """
    if strategy.__module__.split(".")[0] == __name__.split(".", maxsplit=1)[0]:
        return strategy()
    return CheckedStrategy(name, _called(name, "__init__", strategy))


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
        self._asked, self._own = asked, own
        self._problem: Problem | None = None
        # Whoever drives it asks the strategy, not its class.
        self.name = own.name  # type: ignore[misc]
        self.needs_budget = own.needs_budget  # type: ignore[misc]

    def load_compiled(self) -> None:
        """Compile what the search calls."""
        _called(self._asked, "load_compiled", self._own.load_compiled)

    def init(self, problem: Problem) -> object:
        """The state before the first step."""
        self._problem = problem
        return self._state("init", self._own.init, problem)

    def step(self, state: object) -> object:
        """The state after one more step."""
        method = "plan" if isinstance(self._own, AbstractDirectStrategy) else "step"
        return self._state(method, self._own.step, state)

    def terminate(self, state: object) -> bool:
        """Whether further steps would change nothing."""
        return self._expect(bool, "True or False", "terminate", self._own.terminate, state)

    def progress(self, state: object) -> Progress:
        """How far a state has come."""
        return self._expect(Progress, "a Progress", "progress", self._own.progress, state)

    def result(self, state: object) -> Plan:
        """The best plan that the state holds, if it is one of the problem.

        Raises:
            StrategyError: it is no plan, or cannot run.
        """
        plan = self._expect(Plan, "a Plan", "result", self._own.result, state)
        self._validate(plan)
        return plan

    def alternatives(self, state: object) -> tuple[Plan, ...]:
        """Plans beside the result."""
        plans = self._expect(tuple, "a tuple of Plans", "alternatives", self._own.alternatives, state)
        for plan in plans:
            if not isinstance(plan, Plan):
                raise _mistaken(self._asked, "alternatives", "a tuple of Plans", f"one that holds {_told(plan)}")
            self._validate(plan)
        return plans

    def _validate(self, plan: Plan) -> None:
        if self._problem is None:
            return
        try:
            plan.validate(self._problem.graph, self._problem.machine)
        except RequestError as error:
            raise StrategyError(f"strategy {self._asked!r}: its plan cannot run: {error}") from error

    def _state(self, method: str, call: Callable[..., object], *arguments: object) -> object:
        found = _called(self._asked, method, call, *arguments)
        if found is None:
            raise _mistaken(self._asked, method, "a state", "None")
        return found

    def _expect(self, kind: type[Kind], said: str, method: str, call: Callable[..., Kind], state: object) -> Kind:
        found = _called(self._asked, method, call, state)
        if not isinstance(found, kind):
            raise _mistaken(self._asked, method, said, _told(found))
        return found


def _called(asked: str, method: str, call: Callable[..., Kind], *arguments: object) -> Kind:
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


def _mistaken(asked: str, method: str, expected: str, got: str) -> StrategyError:
    forgotten = "; is a return missing?" if got == "None" else "; docs/how-to/strategy.md says what each method gives"
    return StrategyError(f"strategy {asked!r}: {method}() gave {got}; expected {expected}{forgotten}")


def _told(found: object) -> str:
    return "None" if found is None else f"a value of type {type(found).__name__}"
