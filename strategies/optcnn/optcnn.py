"""OptCNN: the plan of least additive cost, found exactly by node and edge elimination.

After Z. Jia, S. Lin, C. R. Qi, A. Aiken, Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks
(ICML 2018). The choices of an operator are its equal splits into a number of tasks that divides the processors; they
run on the first of them. `additive_cost` says what a plan costs, `elimination` finds the least.

    step      what it does
    1 ..      makes some more of the costs of operators and of pairs of neighbours
    then      takes an operator out, one at a time
    last      gives all operators their choices, and simulates the plan
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Predicted
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.equal_split import equal_splits
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.interface.strategy import AbstractStrategy, Problem, Progress
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.optcnn.additive_cost import NS, AdditiveCost
from maniple.strategies.optcnn.elimination import Assignment, Elimination
from maniple.strategies.search.memory_fit import needed_bytes
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class OptCNNState:
    """The state of a search.

    Args:
        problem: what is searched.
        space: the graph's space.
        choices: of every operator those that are compared.
        cost: the tables of all states of a search, which only ever grow: how many are made changes no entry, and a
            state tells by its own steps, not by them, whether it has them all.
        made: how many steps have been made.
        elimination: what is left of the operators, once all tables are made.
        found: the choices of least cost, once they are known.
        plan: the plan of the choices, simulated.
    """

    problem: Problem
    space: Space
    choices: tuple[tuple[Choice, ...], ...]
    cost: AdditiveCost
    made: int = 0
    elimination: Elimination | None = None
    found: Assignment | None = None
    plan: Plan | None = None


@final
class OptCNN(AbstractStrategy[OptCNNState]):
    """Finds the plan whose operators' and edges' costs have the least sum."""

    name: ClassVar[str] = "optcnn"
    needs_budget: ClassVar[bool] = False

    def load_compiled(self) -> None:
        """Compile what the tables and the elimination call, or load it."""
        _search_small()

    def init(self, problem: Problem) -> OptCNNState:
        """The state in which no table is made yet."""
        space = Space.of(problem.graph, len(problem.machine.processors))
        choices = tuple(published_choices(space, number) for number in range(len(space.names)))
        return OptCNNState(problem, space, choices, AdditiveCost(problem, space, choices))

    def step(self, state: OptCNNState) -> OptCNNState:
        """The state after one more table, or after the elimination."""
        state = replace(state, made=state.made + 1)
        if state.elimination is not None:
            state = replace(state, elimination=(after := state.elimination.advance()))
            return _simulate_found(state, after.assignment()) if after.finished else state
        if not state.cost.fill(state.made):
            return state
        operators = [state.cost.operator(number) for number in range(len(state.choices))]
        edges = {edge: state.cost.edge(*edge) for edge in state.cost.edges}
        return replace(state, elimination=Elimination.of(operators, edges))

    def terminate(self, state: OptCNNState) -> bool:
        """Whether the plan is known."""
        return state.plan is not None

    def progress(self, state: OptCNNState) -> Progress:
        """How far a state has come: the one plan counts as one proposal."""
        done = state.plan is not None
        return Progress(int(done), int(done), state.plan.predicted.step_s if state.plan is not None else None)

    def result(self, state: OptCNNState) -> Plan:
        """The plan of least cost; where the budget ended before the tables were made, the data-parallel plan."""
        if state.plan is not None:
            return state.plan
        plan = DataParallel().plan(state.problem)
        told = (("search", "the budget ended before the costs were known: this is the data-parallel plan"),)
        return replace(plan, strategy=self.name, explanation=(("", told),))


@cache
def _search_small() -> None:
    """Search a small graph to the end, which calls all that is compiled: its operators have two neighbours each."""
    graph = Graph("small")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    before = graph.linear(x, 4)
    graph.loss(graph.cross_entropy(graph.add(before, graph.relu(graph.linear(before, 4))), y))
    strategy = OptCNN()
    state = strategy.init(Problem(graph, Machine.preset("p100x4")))
    while not strategy.terminate(state):
        state = strategy.step(state)


def published_choices(space: Space, number: int) -> tuple[Choice, ...]:
    """The choices of an operator: equal splits whose number of tasks divides the processors, on the first ones."""
    own = space.operators[number]
    found = (Choice(degrees) for degrees in equal_splits(own.factors, own.processors))
    return tuple(choice for choice in found if own.processors % choice.tasks == 0)


def _simulate_found(state: OptCNNState, found: Assignment) -> OptCNNState:
    """Simulate the plan of the choices of least cost."""
    problem = state.problem
    configurations = tuple(
        (name, own.plan(choices[place]))
        for name, own, choices, place in zip(
            state.space.names, state.space.operators, state.choices, found.choices, strict=True
        )
    )
    plan = complete(problem, OptCNN.name, configurations)
    simulation = Simulation(problem.graph, problem.machine, plan, problem.costs, problem.optimizer)
    step_s = simulation.makespan_ns * NS
    search = "the least additive cost" if found.exact else "a low additive cost; the tables to prove it are too large"
    told = (("proposals", 1), ("search", search), ("additive_cost_s", found.cost), ("simulated_s", step_s))
    plan = replace(
        plan,
        explanation=(("", (*told, ("exact", found.exact))),),
        predicted=Predicted(step_s, max(needed_bytes(simulation))),
    )
    return replace(state, found=found, plan=plan)
