"""Seeding: the named plans that searches begin with, simulated, and the plan that a search ends with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from maniple.operators.plan.plan import Plan, Predicted
from maniple.operators.plan.weight_home import default_homes
from maniple.process.error import RequestError
from maniple.strategies.interface.space import Space
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.named.expert import Expert
from maniple.strategies.named.model_parallel import ModelParallel
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.alternation import alternations
from maniple.strategies.soap.evaluation import UNFIT, Evaluation
from maniple.strategies.soap.hybrid import hybrids
from maniple.strategies.soap.layering import layerings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from maniple.operators.plan.plan import Term
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.interface.space import Choice
    from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

SEEDS = (DataParallel, Expert, ModelParallel)
FOLLOWS = 0.7
"""The probability with which an operator of a random plan is cut as one before it."""
INSIDE = "inside the given stages"
"""What the seed is called of a search inside the stages of a plan: the plan."""
PASSED = "faster plans without room"
"""What the explanation calls the number of plans that fit by the estimate and not by the runtime's own plan."""


class Seeding(NamedTuple):
    """What a search begins with.

    Args:
        space: what can be chosen.
        evaluation: a simulation that stands at the last of the seeds that was simulated.
        here: the choices of that seed.
        costs: (cost, name, choices) of the seeds, the fastest first.
    """

    space: Space
    evaluation: Evaluation
    here: Choices
    costs: tuple[tuple[float, str, Choices], ...]


def seeding(problem: Problem) -> Seeding:
    """The seeds of a problem, simulated; those whose configurations the space lacks are left out."""
    evaluation = first_evaluation(problem)
    space, costs = evaluation.space, [(evaluation.cost, first_name(problem), evaluation.choices)]
    for strategy in () if problem.inside is not None else SEEDS[1:]:
        choices = choices_of(space, strategy().plan(problem))
        if choices is not None:
            costs.append((evaluation.move_to(choices), strategy.name, choices))
    return Seeding(space, evaluation, costs[-1][2], tuple(sorted(costs, key=lambda seed: seed[:2])))


def all_seeds(problem: Problem) -> tuple[AbstractDirectStrategy, ...]:
    """What makes the plans that a search simulates first: the named ones, then layerings, or hybrids and alternations.

    Inside the stages of a plan there is none beside that plan.
    """
    if problem.inside is not None:
        return ()
    named = tuple(strategy() for strategy in SEEDS)
    layered = layerings(problem)
    return (*named, *layered) if layered else (*named, *hybrids(problem.machine), *alternations(problem))


def first_evaluation(problem: Problem) -> Evaluation:
    """A simulation of the first seed, which every space holds.

    Raises:
        RequestError: it is the plan inside whose stages the search is to stay, and no choice of the space.
    """
    plan = SEEDS[0]().plan(problem) if problem.inside is None else _at_home(problem, problem.inside)
    space = Space.of(problem.graph, len(problem.machine.processors), problem.inside)
    choices = choices_of(space, plan)
    if choices is None:
        if problem.inside is not None:
            raise _no_choice(space, plan)
        raise RequestError(f"{SEEDS[0].name}: its plan is not one that a search can begin with; report this")
    return Evaluation(
        Simulation(problem.graph, problem.machine, plan, problem.costs, problem.optimizer), space, choices
    )


def _at_home(problem: Problem, plan: Plan) -> Plan:
    """The plan with the default home of each weight: they follow operators, which a search changes."""
    graph, machine = problem.graph, problem.machine
    homes = dict(default_homes(graph, plan.operators, machine, problem.optimizer))
    named = tuple((name, replace(homes[name], copy=old.copy, sums=old.sums)) for name, old in plan.weights)
    return replace(plan, weights=named)


def first_name(problem: Problem) -> str:
    """What the first seed is called."""
    return SEEDS[0].name if problem.inside is None else INSIDE


def _no_choice(space: Space, plan: Plan) -> RequestError:
    """Say which operator of a plan a search inside its stages cannot begin with."""
    pairs = zip(space.names, space.operators, strict=True)
    name, own = next((name, own) for name, own in pairs if own.choice(plan.operator(name)) is None)
    found = plan.operator(name)
    return RequestError(
        f"inside: operator {name} has {found.split()} on processors {' '.join(map(str, found.processors))}; a search "
        "begins with operators each of whose tasks has a processor of its own, in steps of one length around the "
        f"stage's processors {' '.join(map(str, own.within))}; place it so"
    )


def choices_of(space: Space, plan: Plan) -> Choices | None:
    """The choices that a plan is, or None where one of its operators is no choice of the space."""
    found = [own.choice(plan.operator(name)) for name, own in zip(space.names, space.operators, strict=True)]
    return tuple(choice for choice in found if choice is not None) if None not in found else None


def draw(space: Space, chance: Random) -> Choices:
    """A random plan: an operator is mostly cut as the first before it that it shares a tensor with, else drawn."""
    found: list[Choice] = []
    for number, own in enumerate(space.operators):
        first = space.neighbours[number][0] if space.neighbours[number] else number
        follows = first < number and chance.random() < FOLLOWS
        found.append((space.carry(number, 0, found[first]) if follows else None) or own.draw(chance))
    return tuple(found)


def found_plan(
    strategy: str,
    problem: Problem,
    evaluation: Evaluation,
    candidates: Sequence[tuple[float, Choices]],
    told: tuple[tuple[str, Term], ...],
    bound_s: float | None = None,
) -> Plan:
    """The fastest plan that a search found and the runtime has room for. The evaluation stands where it stood before.

    Searches go by an estimate of the memory, so the fastest may have no room after all: then it is passed over.

    Args:
        strategy: the search.
        problem: what was searched.
        evaluation: of the search.
        candidates: (step time, choices), the fastest first.
        told: what the plan explains.
        bound_s: seconds below which no plan can go, where the search knows that.

    Raises:
        RequestError: no plan that was tried fits in memory, or the runtime has no room for any of these after all.
    """
    here = evaluation.choices
    fitting = [candidate for candidate in candidates if candidate[0] < UNFIT]
    for passed, (cost, choices) in enumerate(fitting):
        evaluation.move_to(choices)
        if evaluation.is_allocated():
            plan, memory_bytes = evaluation.plan(), evaluation.memory_bytes
            evaluation.move_to(here)
            if passed:
                told = (*told, (PASSED, passed))
            predicted = Predicted(cost, memory_bytes, None, bound_s)
            return replace(plan, strategy=strategy, seed=problem.seed, explanation=(("", told),), predicted=predicted)
    least = evaluation.least
    evaluation.move_to(here)
    evaluation.least = least  # wherever it stood, which is not always where the search has come
    raise nothing_fits(strategy, evaluation, problem.machine)


def nothing_fits(name: str, evaluation: Evaluation, machine: Machine) -> RequestError:
    """Say how much too large the plan is that needs the least memory of all that were tried, and what fills it.

    Args:
        name: the strategy.
        evaluation: has seen a plan that does not fit, and none that does.
        machine: the machine.
    """
    if evaluation.least is None:
        return RequestError(f"{name}: no plan was tried yet; call step() first")
    excess, memory, choices = evaluation.least
    here = evaluation.choices
    evaluation.move_to(choices)
    operator, size = evaluation.largest(memory)
    evaluation.move_to(here)
    held = machine.memories[memory].capacity_bytes
    return RequestError(
        f"no plan that was tried fits in memory: the least needs {held + excess} bytes in memory {memory}, which holds "
        f"{held}; operator {operator} stands in the way with {size} bytes there; search longer, use a smaller batch, "
        "or a machine with more memory"
    )
