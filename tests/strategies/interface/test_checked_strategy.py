"""Strategies of other packages that forget, mistake or raise: told at once, by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import maniple as mp
from maniple.plugins import (
    DirectStrategy,
    OperatorPlan,
    Problem,
    Progress,
    Strategy,
    StrategyError,
    complete,
    split_sample,
)
from maniple.strategies.interface.checked_strategy import make_checked
from maniple.strategies.interface.registry import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple import Plan

ROOT = Path(__file__).resolve().parents[3]
MACHINE = mp.Machine.cpu(2)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STRATEGIES, "_registered", {})


def network() -> mp.Graph:
    g = mp.Graph("g")
    x, y = g.input("x", (8, 2)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(x, 4), y))
    return g


def configurations(problem: Problem) -> tuple[tuple[str, OperatorPlan], ...]:
    return tuple((node.name, split_sample(problem.graph, node, problem.machine)) for node in problem.graph.nodes)


def direct(answer: Callable[[Problem], Any]) -> type[DirectStrategy]:
    class Mine(DirectStrategy):
        name = "mine"

        def plan(self, problem: Problem) -> Plan:
            return answer(problem)  # type: ignore[no-any-return]

    return Mine


def right(problem: Problem) -> Plan:
    return complete(problem, "mine", configurations(problem))


def elsewhere(problem: Problem) -> Plan:
    """A plan whose last operator runs on a processor that there is not."""
    plan = right(problem)
    name, configuration = plan.operators[-1]
    return replace(plan, operators=(*plan.operators[:-1], (name, replace(configuration, processors=(0, 7)))))


def nothing(problem: Problem) -> None:
    configurations(problem)


def number(problem: Problem) -> Plan:
    return complete(problem, "mine", (("linear", 2),))  # type: ignore[arg-type]


def raises(problem: Problem) -> Plan:
    raise ZeroDivisionError(f"no {problem.seed}")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            nothing,
            r"plan\(\) gave None; expected a Plan: end it with `return complete",
        ),
        (lambda problem: dict(configurations(problem)), r"plan\(\) gave a value of type dict; expected a Plan"),
        (lambda p: complete(p, "mine", configurations(p)[1:]), r"operator 'linear' has no configuration; complete\(\)"),
        (
            lambda p: complete(p, "mine", (("liner", configurations(p)[0][1]),)),
            r"no operator 'liner'; did you mean 'linear'",
        ),
        (number, r"operator 'linear': expected an OperatorPlan, .* type int"),
        (
            elsewhere,
            r"its plan cannot run: plan: operators\.cross_entropy\.processors\[1\]: processor 7 does not exist",
        ),
        (
            lambda problem: replace(right(problem), operators=()),
            r"its plan cannot run: plan: operators\.linear: missing",
        ),
        (raises, r"plan\(\) raised ZeroDivisionError: no 0 \(test_checked_strategy\.py, line \d+, in raises\)"),
    ],
)
def test_a_direct_strategy_is_told_what_it_did_wrong(answer: Callable[[Problem], Any], message: str) -> None:
    mp.register_strategy("mine", direct(answer))
    with pytest.raises(StrategyError, match="^strategy 'mine': .*" + message):
        mp.search(network(), MACHINE, strategy="mine")


def test_a_right_one_is_left_alone() -> None:
    mp.register_strategy("mine", direct(right))
    graph = network()
    assert mp.search(graph, MACHINE, strategy="mine") == right(Problem(graph, MACHINE))


class Searching(Strategy[int]):
    """A search whose methods are replaced below; its state counts steps."""

    name = "searching"
    needs_budget = False

    def init(self, problem: Problem) -> int:
        self.problem = problem
        return 0

    def step(self, state: int) -> int:
        return state + 1

    def terminate(self, state: int) -> bool:
        return state == 3

    def progress(self, state: int) -> Progress:
        return Progress(state)

    def result(self, state: int) -> Plan:
        assert state == 3
        return right(self.problem)


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("init", None, r"init\(\) gave None; expected a state; is a return missing\?"),
        ("step", None, r"step\(\) gave None; expected a state"),
        ("terminate", None, r"terminate\(\) gave None; expected True or False"),
        ("terminate", 1, r"terminate\(\) gave a value of type int; expected True or False; docs/how-to/strategy\.md"),
        ("progress", 0.5, r"progress\(\) gave a value of type float; expected a Progress"),
        ("result", {}, r"result\(\) gave a value of type dict; expected a Plan"),
    ],
)
def test_a_search_is_told_which_method_gave_what(method: str, answer: object, message: str) -> None:
    wrong = type("Searching", (Searching,), {method: lambda self, _: answer, "__module__": "theirs"})
    mp.register_strategy("wrong", wrong)
    with pytest.raises(StrategyError, match="^strategy 'wrong': " + message):
        mp.search(network(), MACHINE, strategy="wrong")


def test_alternatives_are_plans() -> None:
    wrong = type("Searching", (Searching,), {"alternatives": lambda self, _: ("plan",), "__module__": "theirs"})
    strategy = make_checked("wrong", wrong)
    with pytest.raises(
        StrategyError, match=r"alternatives\(\) gave one that holds a value of type str; expected a tuple"
    ):
        strategy.alternatives(strategy.init(Problem(network(), MACHINE)))


def test_a_search_that_is_right_gives_its_plan() -> None:
    mp.register_strategy("searching", Searching)
    seen: list[int] = []
    plan = mp.search(
        network(), MACHINE, strategy="searching", watch=lambda progress, _: seen.append(progress.proposals)
    )
    assert seen == [1, 2, 3]
    assert plan.strategy == "mine"


def test_a_class_that_wants_arguments_is_named() -> None:
    class Wanting(Searching):
        def __init__(self, depth: int) -> None:
            self.depth = depth

    mp.register_strategy("wanting", Wanting)
    with pytest.raises(
        StrategyError, match=r"'wanting': __init__\(\) raised TypeError: .* missing 1 required .*'depth'"
    ):
        mp.search(network(), MACHINE, strategy="wanting")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            int,
            r"got <class 'int'>; derive it from mp\.plugins\.DirectStrategy and define name and plan",
        ),
        (Searching(), r"give the class itself, Searching: each use makes its own"),
        (type("Empty", (Strategy,), {}), "which lacks init, result, step, terminate, name, needs_budget"),
        (type("Nameless", (DirectStrategy,), {"plan": right}), r"which lacks name; derive it from"),
    ],
)
def test_what_cannot_be_registered_is_told_what_it_lacks(given: Any, message: str) -> None:
    with pytest.raises(mp.RequestError, match="strategy 'new': expected a class that completes Strategy, .*" + message):
        mp.register_strategy("new", given)


def test_a_class_in_place_of_a_name_is_refused() -> None:
    with pytest.raises(mp.RequestError, match=r"strategy: expected a name, got <class .*Searching'>; register yours"):
        mp.search(network(), MACHINE, strategy=Searching)  # type: ignore[arg-type]


def test_the_page_names_what_a_strategy_is_made_of() -> None:
    page = (ROOT / "docs" / "how-to" / "strategy.md").read_text(encoding="utf-8")
    names = ("DirectStrategy", "ParallelStrategy", "mp.plugins.Strategy", "complete", "configure")
    assert [name for name in names if name not in page] == []


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs" / "how-to" / "strategy.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "custom_strategy.py").read_text(encoding="utf-8")
    shown = page.split("```python\nclass Heavy(")[1].split("```")[0]
    assert f"class Heavy({shown.rstrip()}" in example
