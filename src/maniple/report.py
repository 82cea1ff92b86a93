"""Reports: how right the prediction of a step was, and which term of its time was not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.execution.run_measurement import gather_bytes, gather_events
from maniple.runtime.observe.decomposition import Terms, decompose, whole_step
from maniple.runtime.observe.timeline import Timeline, events_of_run
from maniple.table import align

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.control.world import World
    from maniple.runtime.execution.run import Run
    from maniple.runtime.machine.machine import Machine
    from maniple.step_log import LoggedStep, StepLog

__all__: list[str] = []

TOLERANCE = 0.1
"""The share of the predicted step time by which the measured one may differ before a term is blamed."""


@final
@dataclass(frozen=True, slots=True)
class StepPrediction:
    """What a simulation says of a step.

    Args:
        step_s: its seconds.
        terms: what they go into, by rank.
        bound_s: seconds below which no plan can go; None where none is known.
        costs: what tasks were taken to take.
    """

    step_s: float
    terms: tuple[Terms, ...]
    bound_s: float | None
    costs: str


@final
@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of the memories of one rank in a step.

    Args:
        predicted: by the plan of what lives where.
        measured: None where it is not.
    """

    predicted: int
    measured: int | None


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Predicted and measured, of the steps that a trainer has taken at its graph's own batch.

    Args:
        graph: its name.
        strategy: what made the plan.
        costs: what tasks were taken to take: ``analytic``, ``measured``, or a file.
        steps: how many were taken.
        others: how many more, of smaller batches or checked, that count for nothing here.
        predicted_s: seconds of a step.
        measured_s: the median of all steps at `rank`, each from the end of the one before.
        rank: the rank that is told of: the one that is busy longest.
        step: the number of the step that is told of: of those whose times are kept, nearest to the median of rank 0.
        predicted: what the predicted seconds go into at the rank; they add up to `predicted_s`.
        measured: what the seconds of the step went into there; they add up to what it took.
        predicted_bytes: that leave a memory for another in the last step.
        measured_bytes: the same as counted; None where so much ran since that the count is gone.
        memory: of each rank.
        bound_s: seconds below which no plan can go; None where none is known.
    """

    graph: str
    strategy: str
    costs: str
    steps: int
    others: int
    predicted_s: float
    measured_s: float
    rank: int
    step: int
    predicted: Terms
    measured: Terms
    predicted_bytes: int
    measured_bytes: int | None
    memory: tuple[RankMemory, ...]
    bound_s: float | None

    @property
    def ratio(self) -> float:
        """Measured over predicted step time."""
        return self.measured_s / self.predicted_s

    @property
    def cause(self) -> str | None:
        """The term that made measured and predicted differ most, if they differ by more than a tenth."""
        if abs(self.ratio - 1) <= TOLERANCE:
            return None
        sign = 1 if self.ratio > 1 else -1
        return max(self._differences(), key=lambda term: sign * self._differences()[term])

    def _differences(self) -> dict[str, float]:
        """Measured less predicted seconds, by term."""
        return {term: getattr(self.measured, term) - getattr(self.predicted, term) for term in _TERMS}

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {**asdict(self), "ratio": self.ratio, "cause": self.cause}

    def __str__(self) -> str:
        """The report as a table."""
        many = f"{self.steps} steps" if self.steps > 1 else "1 step"
        rest = f" and {self.others} that are not counted" if self.others else ""
        lines = [f"report of {self.graph} under {self.strategy}, {many}{rest}, costs {self.costs}", ""]
        return "\n".join([*lines, align(self._rows()), "", *self._sentences()])

    def _rows(self) -> list[tuple[str, ...]]:
        counted = "unknown" if self.measured_bytes is None else f"{self.measured_bytes:,}"
        rows: list[tuple[str, ...]] = [
            ("", "predicted", "measured", ""),
            ("step", _ms(self.predicted_s), _ms(self.measured_s), f"median of {self.steps}"),
        ]
        for term in _TERMS:
            about = f"of step {self.step} at rank {self.rank}: {_ms(self.measured.step_s)}" if term == _TERMS[0] else ""
            rows.append((f"  {term}", _ms(getattr(self.predicted, term)), _ms(getattr(self.measured, term)), about))
        rows.append(("bytes", f"{self.predicted_bytes:,}", counted, "moved in the last step"))
        alike: dict[RankMemory, list[int]] = {}
        for rank, memory in enumerate(self.memory):
            alike.setdefault(memory, []).append(rank)
        for memory, ranks in alike.items():
            held = "not measured" if memory.measured is None else f"{memory.measured:,}"
            rows.append(
                (
                    "memory",
                    f"{memory.predicted:,}",
                    held,
                    f"bytes at {'ranks' if len(ranks) > 1 else 'rank'} {_ranks(ranks)}",
                )
            )
        return rows

    def _sentences(self) -> list[str]:
        more = f"{abs(self.ratio - 1):.1%} {'more' if self.ratio > 1 else 'less'} than predicted"
        told = f"a step took {more}"
        if self.cause is not None:
            told += f"; most of it is {_CALLED[self.cause]}: {1e3 * self._differences()[self.cause]:+.3f} ms"
        bound = "no bound is known for measured costs"
        if self.bound_s is not None:
            bound = f"no plan is faster than {_ms(self.bound_s)} as predicted"
        return [told, bound]


_TERMS = tuple(field.name for field in fields(Terms))
_CALLED = {term: term for term in _TERMS} | {"program": "the program between steps"}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _ranks(numbers: list[int]) -> str:
    from maniple.operators.plan.plan_table import ranges

    return ranges(numbers)


def predict_step(
    graph: Graph, machine: Machine, plan: Plan, optimizer: AbstractOptimizer, costs: str | None
) -> StepPrediction:
    """Simulate a step, and say what it goes into at each rank.

    Args:
        graph: the graph.
        machine: the machine.
        plan: the plan.
        optimizer: what updates the weights.
        costs: what tasks take; None: what the plan was found with.

    Raises:
        RequestError: see `costs.costs_of`.
    """
    from maniple.costs import ANALYTIC, costs_of_plan
    from maniple.operators.plan.version_semantics import NO_REPORT, refuse_versions
    from maniple.search_loop import COSTS
    from maniple.strategies.bound import lower_bound_s
    from maniple.strategies.simulation.simulation import Simulation

    refuse_versions(dict(plan.semantics), NO_REPORT)
    chosen = costs or str(dict(dict(plan.explanation).get("", ())).get(COSTS, ANALYTIC))
    tasks = costs_of_plan(chosen, graph, machine, plan)
    simulation = Simulation(graph, machine, plan, tasks, optimizer)
    step = simulation.makespan_ns
    ranks = range(1 + max(memory.rank for memory in machine.memories))
    ends = [event for rank in ranks for event in whole_step(rank, 1, 0, 0, step)]
    timeline = simulation.timeline()
    timeline = Timeline((*ends[::2], *timeline.events, *ends[1::2]), timeline.nodes)
    terms = tuple(decompose(timeline, rank) for rank in ranks)
    return StepPrediction(step / 1e9, terms, lower_bound_s(graph, machine) if tasks is None else None, chosen)


def make_report(
    world: World,
    graph: Graph,
    machine: Machine,
    plan: Plan,
    optimizer: AbstractOptimizer,
    log: StepLog,
    last: Run,
    costs: str | None = None,
    memory: Mapping[int, Mapping[str, int]] | None = None,
) -> Report:
    """Put together what every rank measured; every rank must ask, and gets the same.

    Args:
        world: the ranks.
        graph: the trainer's.
        machine: what it runs on.
        plan: how.
        optimizer: what updates its weights.
        log: its steps here; at least one of the graph's own batch.
        last: its last step.
        costs: what tasks take; None: what the plan was found with.
        memory: of each rank the bytes that are `predicted` and, where they are, `measured`; None: those predicted by
            the schedule.

    Raises:
        RequestError: no whole batch was trained on, or see `costs.costs_of`.
    """
    if not log.kept:
        raise RequestError(f"no step of {graph.batch} samples has run yet; call step with a whole batch first")
    found = _predict_once(world, graph, machine, plan, optimizer, costs)
    told = log.kept[_gather(world, log.typical())[0]]
    medians = _gather(world, log.median_ns())
    timeline = _gather_step(world, told)
    measured = [decompose(timeline, rank) for rank in range(world.size)]
    rank = max(range(world.size), key=lambda one: measured[one].compute + measured[one].folds + measured[one].copies)
    return Report(
        graph=graph.name,
        strategy=plan.strategy,
        costs=found.costs,
        steps=len(log.periods_ns),
        others=log.others,
        predicted_s=found.step_s,
        measured_s=medians[rank] / 1e9,
        rank=rank,
        step=told.number,
        predicted=found.terms[rank],
        measured=measured[rank],
        predicted_bytes=last.replay.schedule.total_bytes,
        measured_bytes=_count_bytes(world, last),
        memory=_memory(world, last, memory),
        bound_s=found.bound_s,
    )


def _predict_once(
    world: World, graph: Graph, machine: Machine, plan: Plan, optimizer: AbstractOptimizer, costs: str | None
) -> StepPrediction:
    """What rank 0 predicts, told to all: caches of measurements differ, and one simulation is enough."""
    said = ""
    if world.rank == 0:
        try:
            said = json.dumps(asdict(predict_step(graph, machine, plan, optimizer, costs)))
        except RequestError as error:
            said = json.dumps({"refused": str(error)})
    told = json.loads(world.control.gather(said.encode())[0])
    if "refused" in told:
        raise RequestError(told["refused"])
    terms = tuple(Terms(**each) for each in told["terms"])
    return StepPrediction(told["step_s"], terms, told["bound_s"], told["costs"])


def _gather(world: World, value: int) -> list[int]:
    """A whole number of every rank."""
    return [int(part) for part in world.control.gather(str(value).encode())]


def _gather_step(world: World, told: LoggedStep) -> Timeline:
    """A step as it was at all ranks, on one clock."""
    schedule = told.replay.schedule
    rows = [row for row in range(len(schedule)) if told.replay.here(row)]
    mine = (
        *events_of_run(schedule, told.times, world.rank, told.run, rows),
        *whole_step(world.rank, told.run, told.before_ns, told.begun_ns, told.ended_ns),
    )
    return Timeline(gather_events(world, mine), ())


def _count_bytes(world: World, last: Run) -> int | None:
    """The bytes that all ranks counted in the last step; None where one has forgotten them."""
    try:
        return gather_bytes(world, last.number)
    except RequestError:
        return None


def _memory(world: World, last: Run, memory: Mapping[int, Mapping[str, int]] | None) -> tuple[RankMemory, ...]:
    """Of each rank, what was measured; or what a step needs by its schedule alone."""
    if memory is None:
        return tuple(RankMemory(size, None) for size in _gather(world, sum(last.replay.needs().values())))
    return tuple(RankMemory(memory[rank]["predicted"], memory[rank].get("measured")) for rank in range(world.size))
