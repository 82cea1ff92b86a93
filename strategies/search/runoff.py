"""Runoffs: which plan of a search is taken, once the tasks of all that come near were timed side by side.

A search compares plans by what their tasks took when these were measured, in different minutes; and of many plans, the
one that looks fastest is one whose measurements were lucky (the optimizer's curse: J. Smith, R. Winkler, Management
Science 52(3), 2006). So the tasks of those that come near are timed again, in turn, and decide.

    plan            searched with   side by side   passes
    soap            42.7 ms         47.8 ms        56.0 48.5 47.8 47.0 46.1    slower in all but one
    optcnn          43.1 ms         46.2 ms        57.0 47.2 46.2 44.9 45.3    as fast; moves 20 MB
    data_parallel   47.0 ms         45.9 ms        57.2 46.9 45.9 45.1 45.4    the fastest; moves 7 MB: taken
    expert          49.5 ms         48.6 ms        59.8 49.1 48.6 48.0 48.4    slower in all
    spatial         64.1 ms                                                    does not come near

What slows a computer down for a while slows all plans of that pass. So it is counted in how many passes a plan is
slower than the fastest: in all, or all but one, and it is slower; else it is as fast. Of those that are, the one that
moves the fewest bytes is taken: what is moved is waited for, and where what tasks take varies, ranks wait for each
other longer than a simulation says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.operators.plan.plan import Predicted
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.search.memory_fit import allocated_beyond, needed_bytes
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.operators.plan.plan import Plan, Term
    from maniple.strategies.cost_model.cost_model import CostModel, Repeated
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

STEP_S_OF = "step_s of "
"""How terms of explanations begin that tell of a strategy's plan."""
NEAR = 1.3
"""Plans come near that are predicted to take at most so many times what the fastest does: FlexFlow's own bound of what
its simulator is off by (Jia et al., SysML 2019, figure 11) is 30 %."""


def finalists(problem: Problem, plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """The plans that come near the fastest, each once, by what a search knows; data parallelism if it is among them.

    Data parallelism is what others are compared with, so its tasks are to be timed as theirs are.

    Args:
        problem: what was searched.
        plans: of its graph and machine; of equal ones the first is one, and those that the runtime has no room for are
            none.
    """
    return tuple(plan for _, plan in _near(problem, plans))


def rivals(problem: Problem, plans: Iterable[Plan], most: int) -> tuple[Plan, ...]:
    """Data parallelism and the fastest of the plans that come near, as they are simulated; none where it stands alone.

    It takes part whether a strategy came to it or not: what others are compared with. Where stages, an order or a
    number of micro-batches were asked for, or weights of other steps are read, nothing is compared with it.

    Args:
        problem: what was searched.
        plans: see `finalists`.
        most: how many take part.
    """
    asked = (problem.order, problem.micro_batches, problem.inside, problem.weights)
    if any(one is not None for one in asked):
        return ()
    common = DataParallel().plan(problem)
    near = sorted(_near(problem, (common, *plans)), key=lambda one: one[0].makespan_ns)
    if not any(plan is common for _, plan in near):
        return ()  # the runtime has no room for it
    first = [(simulation, plan) for simulation, plan in near if plan is common]
    others = [(simulation, plan) for simulation, plan in near if plan is not common][: most - 1]
    told = [
        replace(
            plan, predicted=Predicted(simulation.makespan_ns / 1e9, max(needed_bytes(simulation)), simulation.bytes)
        )
        for simulation, plan in (*first, *others)
    ]
    return tuple(told) if others else ()


def _near(problem: Problem, plans: Iterable[Plan]) -> list[tuple[Simulation, Plan]]:
    """The plans that come near the fastest, each once and as simulated; data parallelism if it is among them."""
    distinct: dict[object, Plan] = {}
    for plan in plans:
        distinct.setdefault((plan.operators, plan.weights, plan.semantics, plan.stages, plan.pipeline), plan)
    simulated = [(_simulate(problem, plan, problem.costs), plan) for plan in distinct.values()]
    fitting = [(one, plan) for one, plan in simulated if max(allocated_beyond(one)) <= 0]
    fastest = min((one.makespan_ns for one, _ in fitting), default=0)
    return [
        (one, plan) for one, plan in fitting if one.makespan_ns <= NEAR * fastest or plan.strategy == DataParallel.name
    ]


def decide(problem: Problem, costs: Repeated, result: Plan, plans: Sequence[Plan]) -> Plan:
    """What a search gives: its result, or another of the plans; with the table of these, and of no others.

    Args:
        problem: what was searched.
        costs: what the tasks of the plans take, side by side.
        result: by what they took before.
        plans: the finalists, told apart by their strategies.
    """
    middle = [_simulate(problem, plan, costs.middle) for plan in plans]
    passes = [[_simulate(problem, plan, once).makespan_ns for once in costs.passes] for plan in plans]
    fastest = min(range(len(plans)), key=lambda number: middle[number].makespan_ns)
    equal = [number for number in range(len(plans)) if number == fastest or not slower(passes[number], passes[fastest])]
    number = min(equal, key=lambda number: (middle[number].bytes, middle[number].makespan_ns))
    terms: dict[str, Term] = {"found by": plans[number].strategy}
    terms |= {f"{STEP_S_OF}{plan.strategy}": one.makespan_ns / 1e9 for plan, one in zip(plans, middle, strict=True)}
    predicted = Predicted(middle[number].makespan_ns / 1e9, max(needed_bytes(middle[number])))
    return retold(result, plans[number], terms, predicted)


def retold(result: Plan, taken: Plan, terms: Mapping[str, Term], predicted: Predicted) -> Plan:
    """The plan that is taken, with what the result says of the search and what a runoff says of all that took part.

    Args:
        result: what was found before it.
        taken: the plan that it came to.
        terms: what it says; what the result says of other plans was timed in other minutes, and goes.
        predicted: what the plan is expected to take.
    """
    told = {term: value for term, value in dict(result.explanation).get("", ()) if not term.startswith(STEP_S_OF)}
    own = tuple((name, each) for name, each in taken.explanation if name)
    return replace(
        taken,
        strategy=result.strategy,
        seed=result.seed,
        explanation=(("", tuple({**told, **terms}.items())), *own),
        predicted=predicted,
    )


def slower(passes: Sequence[int], fastest: Sequence[int]) -> bool:
    """Whether a plan took longer than another in all passes, or all but one."""
    return sum(one > other for one, other in zip(passes, fastest, strict=True)) >= len(passes) - 1


def _simulate(problem: Problem, plan: Plan, costs: CostModel | None) -> Simulation:
    """A step of the problem under a plan."""
    return Simulation(problem.graph, problem.machine, plan, costs, problem.optimizer)
