"""What weights of several stages cost: each element sent by itself."""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.operators.plan.weight_home import users_of
from maniple.runtime.schedule.network import Network
from maniple.strategies.frontier.own_price import Turns
from maniple.strategies.frontier.stage_group import Processors
from maniple.strategies.frontier.stage_search import StageSearch
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.placed_operators import PlacedOperators

ITEM, STATES = 4, 1
Mask = npt.NDArray[np.bool_]


class Used(NamedTuple):
    """Who has which elements of a weight, by processor: at home, where it is used, and where its gradient is made."""

    home: dict[int, Mask]
    uses: dict[int, Mask]
    gives: dict[int, Mask]


def tied(users: int, batch: int, width: int) -> mp.Graph:
    """Layers of one weight."""
    graph = mp.Graph("tied")
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    weight = graph.parameter("weight", (width, width))
    for _ in range(users):
        x = graph.relu(graph.linear(x, width, weight=weight, bias=False))
    graph.loss(graph.cross_entropy(x, y))
    return graph


def weight_of(graph: mp.Graph) -> int:
    return next(tensor.id for tensor in graph.parameters if tensor.name == "weight")


def masks(graph: mp.Graph, blocks: list[tuple[int, npt.NDArray[np.int64]]]) -> dict[int, Mask]:
    """By processor the elements of some blocks."""
    found: dict[int, Mask] = {}
    for processor, bounds in blocks:
        mask = found.setdefault(processor, np.zeros(graph.tensors[weight_of(graph)].shape, dtype=bool))
        mask[tuple(slice(low, high) for low, high in bounds)] = True
    return found


def used_by(search: StageSearch, graph: mp.Graph, number: int, choice: int, stages: list[Processors]) -> Used:
    """Whose which elements are if all stages use a weight as an operator under a choice does on the first of them."""
    operators = search.terms(stages[0], Turns()).cost.operators
    node = graph.nodes[number]
    plan = operators.plan(number, operators.choices[number][choice])
    tiles, processors = users_of(graph.bound(node), node.operands.index(weight_of(graph)), plan)
    mine = [(p, tile) for tile, row in zip(tiles, processors.tolist(), strict=True) for p in row]
    uses = [(other[stages[0].index(p)], tile) for p, tile in mine for other in stages]
    first = [(row[0], tile) for tile, row in zip(tiles, processors.tolist(), strict=True)]  # replicas make it, too
    gives = [(other[stages[0].index(p)], tile) for p, tile in first for other in stages]
    everyone = sorted(p for stage in stages for p in stage)
    width = graph.tensors[weight_of(graph)].shape[0]
    sizes = [width // len(everyone) + (part < width % len(everyone)) for part in range(len(everyone))]
    edges = [sum(sizes[:part]) for part in range(len(everyone) + 1)]
    rows = [(p, np.array([[low, high], [0, width]])) for p, low, high in zip(everyone, edges, edges[1:], strict=False)]
    return Used(masks(graph, rows), masks(graph, uses), masks(graph, gives))


def moved_ns(machine: mp.Machine, given: dict[int, Mask], wanted: dict[int, Mask]) -> float:
    """What the busiest link needs if each element goes from each that gives it to each that wants it, by itself."""
    carried, latency = defaultdict[int, int](int), 0.0
    for one, there in given.items():
        for other, here in wanted.items():
            shared = int((there & here).sum())
            if one == other or not shared:
                continue
            route = machine.routes.route(machine.memory_of(one), machine.memory_of(other))
            latency = max(latency, sum(machine.routes.rate(link)[0] for link in route))
            for link in route:
                carried[link] += ITEM * shared
    busiest = max((size / machine.routes.rate(link)[1] for link, size in carried.items()), default=0.0)
    return 1e9 * (busiest + latency)


def folded_ns(machine: mp.Machine, given: dict[int, Mask], wanted: dict[int, Mask]) -> float:
    """What those take that add up what more than one gave them."""
    most, begun, rooflines = 0.0, 0.0, Network.of(machine).rooflines
    for one, here in wanted.items():
        come = sum(int((there & here).sum()) for there in given.values())
        if come > here.sum():
            most = max(most, 1e9 * ITEM * (come + int(here.sum())) / rooflines.bandwidth[one])
            begun = max(begun, 1e9 * rooflines.launch_s[one])
    return most + begun


def bytes_at(used: Used, processor: int) -> int:
    """A weight's value, its gradient, and its state, at one processor."""
    home, uses, gives = (each.get(processor, np.zeros((1, 1), dtype=bool)) for each in used)
    hull = 1
    for axis in range(2):
        there = np.flatnonzero((home | uses).any(axis=1 - axis))
        hull *= int(there[-1] - there[0] + 1)
    return ITEM * (hull + int(gives.sum()) + STATES * int(home.sum()))


def update_ns(operators: PlacedOperators, graph: mp.Graph, used: Used, number: int, choice: int) -> float:
    """The slowest task of its update at that home."""
    from maniple.operators.rules.configuration import WeightPlan

    width = graph.tensors[weight_of(graph)].shape[0]
    owners = sorted(used.home)[: min(width, len(used.home))]
    home = operators.home_boxes(weight_of(graph), WeightPlan((len(owners), 1), tuple(owners)))
    own = operators.choices[number][choice]
    return float(operators.added_update_ns(weight_of(graph), number, own, home).max())


@settings(max_examples=25)
@given(
    st.sampled_from(["p100x8", "p100x4"]),
    st.lists(st.integers(0, 3), min_size=2, max_size=4, unique=True),
    st.integers(1, 2),
    st.sampled_from([8, 24, 40]),
    st.data(),
)
def test_a_weight_of_several_stages_costs_what_all_its_elements_do(
    name: str, stages: list[int], users: int, width: int, data: st.DataObject
) -> None:
    """Law: the oracle sends every element by itself, and knows nothing of cuts, shares or hulls of boxes."""
    graph, machine = tied(users * len(stages), 8, width), mp.Machine.preset(name)
    each = len(machine.processors) // 4
    own, *others = [tuple(range(stage * each, (stage + 1) * each)) for stage in stages]
    search = StageSearch(Problem(graph, machine), (False,) * len(graph.nodes), 0.0, 1)
    terms = search.terms(own, Turns())
    number = next(node.id for node in graph.nodes if node.operator.name == "linear")
    choice = data.draw(st.integers(0, len(terms.cost.operators.choices[number]) - 1))
    size, ticks = search.weight(weight_of(graph), own, tuple(others), Turns()).price(number, users)

    every = used_by(search, graph, number, choice, [own, *others])
    operators, sharing = terms.cost.operators, users * len(stages)
    moved = moved_ns(machine, every.home, every.uses) + moved_ns(machine, every.gives, every.home)
    moved += folded_ns(machine, every.gives, every.home) + update_ns(operators, graph, every, number, choice)
    alone = terms.prices.spread_ns(number, [weight_of(graph)])[choice]
    np.testing.assert_allclose(ticks[choice], moved / users - alone, rtol=1e-9, atol=1.0)

    settled = operators.home(weight_of(graph), (number,), (operators.choices[number][choice],))
    blocks = [(p, b) for p, b in zip(settled.home.processors.tolist(), settled.home.blocks, strict=True)]
    before = every._replace(home=masks(graph, blocks))
    more = [bytes_at(every, p) / users - bytes_at(before, p) / sharing for p in own]
    assert size[choice] == np.ceil(max(more))


def test_elements_are_those_of_the_whole_weight_once_at_home() -> None:
    """The oracle's own: a wrong one would agree with nothing."""
    graph, machine = tied(3, 8, 24), mp.Machine.preset("p100x8")
    search = StageSearch(Problem(graph, machine), (False,) * len(graph.nodes), 0.0, 1)
    every = used_by(search, graph, graph.nodes[0].id, 0, [(0, 1), (4, 5), (6, 7)])
    assert sum(mask.astype(int) for mask in every.home.values()).min() == 1
    assert sum(int(mask.sum()) for mask in every.home.values()) == prod(graph.tensors[weight_of(graph)].shape)
    assert {*every.uses} == {0, 1, 4, 5, 6, 7}
