"""Random plans: legal, reproducible, and wide enough to find what the named strategies never try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.random_plan import RandomPlan

if TYPE_CHECKING:
    from pathlib import Path

    from maniple.operators.graph.graph import Graph

SEEDS = range(200)


def draw(graph: Graph, machine: Machine, seed: int) -> Plan:
    """The plan of a seed."""
    return RandomPlan().plan(Problem(graph, machine, seed=seed))


@pytest.mark.parametrize("preset", ["cpu:2x1", "cpu:3", "cpu:2x2"])
def test_two_hundred_seeds_reach_everything(preset: str, digits: Graph, tmp_path: Path) -> None:
    machine = Machine.preset(preset)
    count = len(machine.processors)
    used: dict[str, set[int]] = {node.name: set() for node in digits.nodes}
    split: set[tuple[str, str]] = set()
    uneven, replicas, crowded, homes_split, homes_replicated = set(), set(), 0, 0, 0
    for seed in SEEDS:
        plan = draw(digits, machine, seed)
        plan.validate(digits, machine)
        assert plan == draw(digits, machine, seed)
        assert plan.seed == seed
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan
        for node in digits.nodes:
            operator = plan.operator(node.name)
            assert len(operator.processors) <= 2 * count
            used[node.name].update(operator.processors)
            for factor in digits.bound(node).factors:
                degree = operator.degree(factor.name)
                if degree > 1:
                    split.add((node.name, factor.name))
                if factor.extent % degree:
                    uneven.add(node.name)
            if operator.replicas > 1:
                replicas.add(node.name)
            crowded += operator.replicas == 1 and len(set(operator.processors)) < len(operator.processors)
        for _, home in plan.weights:
            homes_split += max(home.degrees) > 1
            homes_replicated += home.replicas > 1
    everything = set(range(count))
    assert all(processors == everything for processors in used.values())
    splittable = {
        (node.name, factor.name)
        for node in digits.nodes
        for factor in digits.bound(node).factors
        if factor.splittable and factor.extent > 1
    }
    assert split == splittable
    # Degrees up to 2 P that do not divide an extent: 3 with two processors already.
    assert uneven == set(used)
    assert replicas == set(used)
    assert crowded > len(SEEDS)
    assert homes_split > len(SEEDS)
    assert homes_replicated > len(SEEDS)


def test_different_seeds_give_different_plans(digits: Graph) -> None:
    machine = Machine.preset("cpu:2x1")
    plans = {draw(digits, machine, seed).operators for seed in SEEDS}
    assert len(plans) == len(SEEDS)


def test_the_draw_is_the_same_in_every_process(digits: Graph) -> None:
    # Drawn in another process: nothing may depend on the order of sets or on hashes of strings.
    plan = draw(digits, Machine.preset("cpu:2x1"), 0)
    assert [(split, replicas, processors) for _, split, replicas, processors in plan.table()] == [
        ("y=2", "1", "0 1"),
        ("y=3", "1", "0 1 1"),
        ("o=3", "1", "0 0 0"),
        ("c=3", "1", "1 0 1"),
        ("whole", "1", "1"),
        ("b=3", "1", "0 1 0"),
        ("whole", "1", "1"),
        ("whole", "1", "1"),
        ("k=3", "1", "0 0 1"),
        ("whole", "2", "0 1"),
    ]


def test_one_processor_is_enough(digits: Graph) -> None:
    machine = Machine.preset("cpu:1")
    for seed in SEEDS:
        draw(digits, machine, seed).validate(digits, machine)
