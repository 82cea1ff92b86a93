"""What `maniple partition` was asked, as values: the graph, the levels, sizes with units."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from maniple.costs import ANALYTIC, survey_costs
from maniple.process.error import RequestError, nearest
from maniple.request import amount, model_of

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import Goal
    from maniple.strategies.pipeline.stage_costs import Assumptions, Level, Order, Overlap

__all__: list[str] = []

_PROFILES = (".txt", ".json")
_NOT_FOR_PLACEMENTS = (
    "--replicate",
    "--machine",
    "--bandwidth",
    "--levels",
    "--order",
    "--micro-batches",
    "",  # --transfers means the same there
    "--synchronization",
    "--crossings",
    "--compression",
    "--synchronized",
    "--gradients",
    "--optimizer",
)


def levels_of(stages: int, machine: Machine | None, bandwidth: str | None, members: str | None) -> tuple[Level, ...]:
    """The levels that a request describes, innermost first; without bandwidth communication costs nothing.

    Raises:
        RequestError: the numbers do not fit together.
    """
    from maniple.strategies.pipeline import machine_levels
    from maniple.strategies.pipeline.stage_costs import Level

    if machine is not None:
        if bandwidth is not None or members is not None:
            raise RequestError("--machine gives bandwidths and levels itself; leave out --bandwidth and --levels")
        count = len(machine.processors)
        if stages > count:
            raise RequestError(f"--stages: expected at most the machine's {count} processors, got {stages}")
        return machine_levels.levels(machine) if stages == count else (machine_levels.flat(machine, stages),)
    counts = [stages] if members is None else [_count(part, members) for part in members.lower().split("x")]
    if math.prod(counts) != stages:
        raise RequestError(f"--levels {members}: expected a product of {stages} (--stages), got {math.prod(counts)}")
    if bandwidth is None:
        return tuple(Level(count) for count in counts)
    rates = [amount("--bandwidth", part) for part in bandwidth.split(",")]
    if len(rates) == 1:
        rates *= len(counts)
    if len(rates) != len(counts):
        raise RequestError(
            f"--bandwidth {bandwidth}: expected one number, or one for each of {len(counts)} levels, got {len(rates)}"
        )
    return tuple(Level(count, rate) for count, rate in zip(counts, rates, strict=True))


def graph_of(
    source: str, machine: Machine | None, batch: int | None, costs: str = ANALYTIC, parts: int = 1
) -> CostGraph:
    """The graph of costs of a profile file, of a model of the zoo, or of a graph that a function in a file makes.

    A model's costs are a roofline at the rates of the machine, by default of one-core CPU processors, unless others are
    asked for; they know what a micro-batch takes as it runs, where micro-batches can go through the model one by one.

    Args:
        source: a path that ends with .txt or .json, a name, or ``file.py:callable``.
        machine: whose rates count.
        batch: samples of a model's mini-batch.
        costs: what a model's tasks take, by name; see `costs_of`.
        parts: into how many micro-batches a mini-batch is cut.

    Raises:
        RequestError: there is no such source, or it is wrong, or a model has fewer samples than micro-batches.
    """
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.pipeline.operator_costs import pipeline_costs
    from maniple.strategies.pipeline.profile import read_profile

    if batch is not None and batch < 1:
        raise RequestError(f"--batch: expected at least 1 sample, got {batch}")
    if source.endswith(_PROFILES) or Path(source).is_file():
        if batch is not None:
            raise RequestError(f"{source}: a profile's costs are those of its own batch; leave out --batch")
        if costs != ANALYTIC:
            raise RequestError(f"{source}: a profile has costs of its own; leave out --costs {costs}")
        return read_profile(source)
    graph, where = model_of(source, batch, files=_PROFILES), machine or Machine.preset("cpu:1")
    if not 1 <= parts <= graph.batch:
        raise RequestError(f"--micro-batches: expected 1 to {graph.batch}, the samples of a mini-batch, got {parts}")
    measured = survey_costs(costs, graph, where, parts=(parts,) if parts > 1 else ())
    return pipeline_costs(graph, where, measured, parts=parts)


def parts_of(goal: Goal, micro_batches: int | None) -> int:
    """The number of micro-batches that is asked for, or the goal's own."""
    return micro_batches if micro_batches is not None else (8 if goal == "latency" else 1)


def refuse_stages(stages: int) -> None:
    """Refuse a number of stages below one.

    Raises:
        RequestError: it is.
    """
    if stages < 1:
        raise RequestError(f"--stages: expected at least 1, got {stages}")


def goal_of(objective: str) -> Goal:
    """The goal of that name.

    Raises:
        RequestError: there is none.
    """
    if objective == "throughput":
        return "throughput"
    if objective == "latency":
        return "latency"
    raise RequestError(f"--objective {objective!r} is no choice{nearest(objective, ('throughput', 'latency'))}")


def assumptions_of(
    goal: Goal,
    order: Order | None,
    micro_batches: int | None,
    transfers: Overlap | None,
    synchronization: Overlap | None,
    crossings: float | None,
    compression: float | None,
    synchronized: float | None,
    gradients: float | None,
    optimizer: float | None,
) -> Assumptions:
    """The assumptions of a request: what was not given has its default, which the goal decides for the first two.

    Raises:
        RequestError: a choice or number is wrong.
    """
    from maniple.strategies.pipeline.stage_costs import Assumptions

    usual = Assumptions()
    return Assumptions(
        usual.transfers if transfers is None else transfers,
        usual.synchronization if synchronization is None else synchronization,
        usual.crossings if crossings is None else crossings,
        usual.compression if compression is None else compression,
        usual.synchronized if synchronized is None else synchronized,
        usual.gradients if gradients is None else gradients,
        usual.optimizer if optimizer is None else optimizer,
        order or ("1f1b" if goal == "latency" else usual.order),
        parts_of(goal, micro_batches),
    )


def refuse_given(source: str, *options: object) -> None:
    """Refuse options that a file which states its own devices and transfer times leaves no room for.

    Args:
        source: the file.
        options: what was given for the options of ``_NOT_FOR_PLACEMENTS``, in their order.

    Raises:
        RequestError: one of them was given.
    """
    if named := [name for name, value in zip(_NOT_FOR_PLACEMENTS, options, strict=True) if name and value is not None]:
        raise RequestError(f"{source}: this file states its own devices and transfers; leave out {', '.join(named)}")


def _count(part: str, members: str) -> int:
    if not part.isdigit() or int(part) < 1:
        raise RequestError(f"--levels {members}: expected counts joined by x, such as 4x2")
    return int(part)
