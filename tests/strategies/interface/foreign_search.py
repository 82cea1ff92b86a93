"""A search as another package would bring it: whole or split by sample, for every operator, each way tried once."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import maniple as mp

NEVER = 1 << 62


@dataclass(frozen=True)
class Stretch:
    """Some ways in a row; a way is a bit for each operator.

    Args:
        first: the first of them.
        most: how many they are.
        proposals: how many have been tried.
        best: (nanoseconds, way) of the fastest.
        pids: the processes that have tried some.
    """

    first: int
    most: int
    proposals: int = 0
    best: tuple[int, int] = (NEVER, 0)
    pids: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        return self.proposals >= self.most

    def step(self, bench: mp.plugins.Problem) -> Stretch:
        way = self.first + self.proposals
        plan = written(bench, way)
        found = mp.plugins.Simulation(bench.graph, bench.machine, plan).makespan_ns
        pids = tuple({*self.pids, os.getpid()})
        return replace(self, proposals=self.proposals + 1, best=min(self.best, (found, way)), pids=pids)

    def pack(self) -> list[Any]:
        return [self.first, self.most, self.proposals, *self.best, list(self.pids)]


@dataclass(frozen=True)
class Tried:
    """The state: the stretches of this round, how many ways were tried before it, and the fastest of those."""

    problem: mp.plugins.Problem
    stretches: tuple[Stretch, ...]
    before: int = 0
    best: tuple[int, int] = (NEVER, 0)

    @property
    def found(self) -> tuple[int, int]:
        return min(self.best, *(stretch.best for stretch in self.stretches)) if self.stretches else self.best


def written(problem: mp.plugins.Problem, way: int) -> mp.Plan:
    """The plan of a way."""
    graph, machine = problem.graph, problem.machine
    operators = tuple(
        (
            node.name,
            mp.plugins.split_sample(graph, node, machine) if way >> bit & 1 else mp.plugins.whole(graph, node, 0),
        )
        for bit, node in enumerate(graph.nodes)
    )
    return mp.plugins.complete(problem, Bits.name, operators)


class Bits(mp.plugins.ParallelStrategy[Tried]):
    """Tries every way, in rounds of four stretches."""

    name = "bits"
    stretch = 4
    pids: ClassVar[set[int]] = set()
    """The processes whose stretches came back to this one."""

    def init(self, problem: mp.plugins.Problem) -> Tried:
        return self.next_round(Tried(problem, ()))

    def items(self, state: Tried) -> tuple[Stretch, ...]:
        return state.stretches

    def with_items(self, state: Tried, items: tuple[Any, ...]) -> Tried:
        for item in items:
            self.pids.update(item.pids)
        return replace(state, stretches=items)

    def before(self, state: Tried) -> int:
        return state.before

    def next_round(self, state: Tried) -> Tried:
        before = state.before + sum(stretch.proposals for stretch in state.stretches)
        firsts = range(before, min(before + 4 * self.stretch, 1 << len(state.problem.graph.nodes)), self.stretch)
        return Tried(state.problem, tuple(Stretch(first, self.stretch) for first in firsts), before, state.found)

    def bench(self, problem: mp.plugins.Problem) -> mp.plugins.Problem:
        return problem

    def bench_of(self, state: Tried) -> mp.plugins.Problem:
        return state.problem

    def unpack(self, plain: list[Any]) -> Stretch:
        first, most, proposals, found, way, pids = plain
        return Stretch(first, most, proposals, (found, way), tuple(pids))

    def terminate(self, state: Tried) -> bool:
        return not state.stretches

    def progress(self, state: Tried) -> mp.plugins.Progress:
        made = state.before + sum(stretch.proposals for stretch in state.stretches)
        return mp.plugins.Progress(made, best_s=state.found[0] * 1e-9 if made else None)

    def result(self, state: Tried) -> mp.Plan:
        return written(state.problem, state.found[1])
