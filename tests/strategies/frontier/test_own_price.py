"""Prices of all choices at once: those of each choice by itself, to the last bit, of operators and of neighbours."""

from __future__ import annotations

import numpy as np
import pytest

import maniple as mp
from maniple.models import model
from maniple.regions.columns.boxes import AXES, HIGH, LOW
from maniple.runtime.schedule.launch import Launch
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.frontier.additive_memory import AdditiveMemory
from maniple.strategies.frontier.additive_model import Terms, additive_model
from maniple.strategies.frontier.arrangement import Arrangement
from maniple.strategies.frontier.cube import cube_splits
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.own_price import OwnPrices, Turns, single_price
from maniple.strategies.frontier.stage_search import StageSearch
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.additive_cost import AdditiveCost
from maniple.zoo.catalogue import entry

pytestmark = pytest.mark.simulator


def small(name: str, batch: int = 8) -> mp.Graph:
    """A model of the zoo at its reduced size."""
    return model(name, batch, **entry(name).reduced)


def composed() -> mp.Graph:
    """Operators that are composed of others where a factor is split that they exchange, a mask, and a shared weight."""
    graph = mp.Graph("composed")
    x, y = graph.input("x", (8, 24)), graph.input("y", (8,), dtype="int64")
    weight = graph.parameter("weight", (24, 24))
    hidden = graph.dropout(graph.linear(x, 24, weight=weight), 0.25)
    hidden = graph.layer_norm(graph.add(hidden, graph.linear(graph.relu(hidden), 24, weight=weight)), 24)
    graph.loss(graph.cross_entropy(graph.softmax(hidden, 1), y))
    return graph


CASES = [
    ("gpt", "p100x4"),
    ("lenet", "k80x6"),
    ("rnnlm", "p100x4"),
    ("digits_cnn", "cpu:4"),
    ("composed", "p100x8"),
    ("composed", "cpu:4"),
    ("composed", "cube"),
    ("composed", "muon"),
]


def costs_of(name: str, machine: str) -> tuple[AdditiveCost, AdditiveCost]:
    """The additive cost of a model, by single choices and at once."""
    graph = composed() if name == "composed" else mp.models.digits_cnn(8) if name == "digits_cnn" else small(name)
    found = (
        mp.Machine.cpu(4)
        if machine == "cpu:4"
        else mp.Machine.preset({"cube": "p100x8", "muon": "p100x4"}.get(machine, machine))
    )
    optimizer = None
    if machine == "muon":
        optimizer = mp.optim.Muon(lr=0.1, groups={mp.optim.non_matrices(graph): mp.optim.AdamW(lr=0.1)})
    problem, space = Problem(graph, found, optimizer=optimizer), Space.of(graph, len(found.processors))
    splits = cube_splits if machine == "cube" else full_splits
    choices = [splits(space, number) for number in range(len(space.names))]
    return AdditiveCost(problem, space, choices), AdditiveCost(problem, space, choices, at_once=True)


@pytest.mark.parametrize(("name", "machine"), CASES)
def test_all_at_once_is_one_by_one(name: str, machine: str) -> None:
    single, whole = costs_of(name, machine)
    memory = AdditiveMemory(whole.tables)
    prices, alone = OwnPrices(whole, memory), AdditiveMemory(single.tables)
    seen = set[int]()
    for number, choices in enumerate(whole.operators.choices):
        if whole.kind(number) in seen:
            continue
        seen.add(whole.kind(number))
        for one, other in zip(prices.price(number), single_price(single, alone, number), strict=True):
            np.testing.assert_array_equal(one, other)
        again = single_price(single, alone, number, again=True)
        np.testing.assert_array_equal(prices.sizes(number, again=True), again[0])
        np.testing.assert_array_equal(whole.tables.again_ns(number), [single.again_ns(number, c) for c in choices])
    for writer, reader in single.edges:
        np.testing.assert_array_equal(whole.edge(writer, reader), single.edge(writer, reader))
        np.testing.assert_array_equal(whole.edge_again(writer, reader), single.edge_again(writer, reader))
        np.testing.assert_array_equal(memory.edge_bytes(writer, reader), copies(single, writer, reader))
        operands = [operand for _, operand, _ in single.operators.ends(writer, reader)]
        back = [single.reads_back(writer, reader, choice) for choice in single.operators.choices[reader]]
        np.testing.assert_array_equal(whole.tables.reads_back(reader, operands), back)


@pytest.mark.parametrize(("name", "machine"), [("gpt", "p100x4"), ("composed", "p100x8")])
def test_terms_that_share_what_is_known_are_those_that_do_not(name: str, machine: str) -> None:
    """Other terms asked first, whose steps wait longer and have more in flight, change no term to the last bit."""
    _, whole = costs_of(name, machine)
    may = (True,) * len(whole.operators.choices)
    turns, others = Turns(4, 5.5, 2), Turns(4, 7.0, 4)
    alone, first = Terms(whole, may, turns), Terms(whole, may, others)
    shared = Terms(whole, may, turns, first)
    for terms in (first, shared, alone):
        for number in range(len(may)):
            terms.own(number)
        for pair in whole.edges:
            terms.edge(pair)
    for number in range(len(may)):
        for one, other, more in zip(alone.own(number), shared.own(number), first.own(number), strict=True):
            np.testing.assert_array_equal(one, other)
            assert (one <= more).all()
    for pair in whole.edges:
        for one, other in zip(alone.edge(pair), shared.edge(pair), strict=True):
            np.testing.assert_array_equal(one, other)


def copies(cost: AdditiveCost, writer: int, reader: int) -> np.ndarray:
    """The oracle: by how many bytes the largest hull of what is made grows to hold what is read, pair by pair."""
    operators = cost.operators

    def hull(
        number: int, choice: mp.strategies.interface.space.Choice, end: tuple[str, str, int]
    ) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for use in operators.place(number, choice).of(end):
            if end[1] == "result" and use.shape.access == 0:
                continue
            for processor, box in zip(use.processors.tolist(), use.shape.boxes.tolist(), strict=True):
                own = found.setdefault(int(operators.memory_of[processor]), [*box[LOW:HIGH], *box[HIGH:]])
                own[:AXES] = map(min, own[:AXES], box[LOW:HIGH])
                own[AXES:] = map(max, own[AXES:], box[HIGH:])
        return found

    def volume(found: list[int]) -> int:
        return int(np.prod([high - low for low, high in zip(found[:AXES], found[AXES:], strict=True)]))

    total = np.zeros((len(operators.choices[writer]), len(operators.choices[reader])), dtype=np.int64)
    for result, operand, _ in operators.ends(writer, reader):
        itemsize = operators.layout_at(writer, ("value", "result", result))[1]
        made = [hull(writer, choice, ("value", "result", result)) for choice in operators.choices[writer]]
        read = [hull(reader, choice, ("value", "operand", operand)) for choice in operators.choices[reader]]
        for (a, mine), (b, theirs) in ((left, right) for left in enumerate(made) for right in enumerate(read)):
            more = [0]
            for memory, needed in theirs.items():
                own = mine.get(memory)
                both = (
                    needed
                    if own is None
                    else [*map(min, own[:AXES], needed[:AXES]), *map(max, own[AXES:], needed[AXES:])]
                )
                more.append(volume(both) - (0 if own is None else volume(own)))
            total[a, b] += itemsize * max(more)
    return total


class Asked:
    """The roofline as a cost model that may run what it is asked about: each choice by itself."""

    def __init__(self, machine: mp.Machine) -> None:
        self.own = Analytic(machine)

    def task_ns(self, launch: Launch) -> np.ndarray:
        return self.own.task_ns(launch)

    def tasks_ns(self, tasks: LaunchTasks) -> np.ndarray:
        assert len(tasks.launch().points) == len(tasks.processors)
        return self.own.tasks_ns(tasks)

    def sources(self, tasks: LaunchTasks) -> tuple[str, ...]:
        return ("measured",) * len(tasks.processors)


def test_costs_that_run_launches_are_asked_choice_by_choice_and_for_no_stages() -> None:
    graph, machine = composed(), mp.Machine.preset("p100x4")
    space = Space.of(graph, 4)
    choices = tuple(full_splits(space, number) for number in range(len(space.names)))
    asked, whole = (
        additive_model(Problem(graph, machine, costs=costs), space, choices)[0] for costs in (Asked(machine), None)
    )
    for one, other in zip((*asked.own, *asked.edges.values()), (*whole.own, *whole.edges.values()), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
    problem = Problem(graph, machine, costs=Asked(machine), space=("stages",))
    search = StageSearch(problem, (False,) * len(graph.nodes), 0.01, 1)
    with pytest.raises(mp.RequestError, match="stages are searched for by the roofline's costs"):
        search.points(Arrangement(2, "1f1b", 2))
