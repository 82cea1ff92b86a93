"""The command `maniple fit`: whether a step fits in the memories of a machine."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.process.error import RequestError
from maniple.search_command import MOMENTUM, OPTIMIZER_HELP
from maniple.table import align, shown_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.fit import Fit, LargestBatch, MemoryUse
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

STRATEGY = "data_parallel"
BUDGET_S = 10.0


@click.command()
@click.argument("source", metavar="MODEL")
@click.option("--machine", "machine_name", required=True, help="Preset, such as cpu:4 or p100x16, or a TOML file.")
@click.option("--plan", "path", type=click.Path(path_type=Path), help="A plan.  [default: what --strategy finds]")
@click.option("--strategy", help=f"A strategy of `maniple list strategies`.  [default: {STRATEGY}]")
@click.option("--batch", type=int, help="Samples of a step, over all processors.  [default: the model's own]")
@click.option("--optimizer", "updated", default=MOMENTUM, show_default=True, help=OPTIMIZER_HELP)
@click.option("--memory", help="What each memory holds, such as 16GiB.  [default: what the machine says]")
@click.option("--budget", type=float, help="Seconds, for strategies that search.  [default: 10, without --proposals]")
@click.option("--proposals", type=int, help="Changes to evaluate, for strategies that search.")
@click.option("--seed", type=int, default=0, show_default=True, help="Where all chance comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fit(
    source: str,
    machine_name: str,
    path: Path | None,
    strategy: str | None,
    batch: int | None,
    updated: str,
    memory: str | None,
    budget: float | None,
    proposals: int | None,
    seed: int,
    as_json: bool,  # noqa: FBT001  (click passes flags by name)
) -> int:
    """Say whether a training step of MODEL fits in memory, what takes the room, and the largest batch that fits.

    Exit status 0 where it fits, 1 where it does not. What bodies allocate while they run is measured when a step is
    loaded, and is not counted here.
    """
    from maniple.fit import fit as examined
    from maniple.fit import largest_batch
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer_text import check_optimizer_name, optimizer_named
    from maniple.request import amount, machine_of, model_of

    if path is not None and strategy is not None:
        raise RequestError("--plan and --strategy: expected one of them; leave out --strategy to examine the plan")
    check_optimizer_name(updated)
    machine = machine_of(machine_name, None if memory is None else amount("--memory", memory))
    graph = model_of(source, batch)
    optimizer = optimizer_named(updated, graph)
    if path is None:
        make = _strategy(strategy or STRATEGY, machine, budget, proposals, seed, optimizer)
    else:
        make = Plan.load(path).for_graph
    plan = make(graph)
    found = examined(graph, machine, plan, optimizer)
    sizes = largest_batch(partial(model_of, source), machine, make, found, optimizer)
    named = plan.strategy if path is None else str(path)
    click.echo(json.dumps(_document(found, sizes)) if as_json else _text(source, machine_name, named, found, sizes))
    return 0 if found.fits else 1


def _strategy(
    name: str,
    machine: Machine,
    budget: float | None,
    proposals: int | None,
    seed: int,
    optimizer: AbstractOptimizer,
) -> Callable[[Graph], Plan]:
    """Makes the plan for each batch; a strategy that searches is asked once, and its plan is cut as it is then."""
    from maniple.search_loop import search
    from maniple.strategies.interface.registry import STRATEGIES

    if not STRATEGIES.lookup(name).needs_budget:
        direct = partial(search, strategy=name, seed=seed, optimizer=optimizer)
        return lambda graph: _search_unlimited(direct, graph, machine)
    limit = BUDGET_S if budget is None and proposals is None else budget
    asked = partial(search, strategy=name, budget=limit, proposals=proposals, seed=seed, optimizer=optimizer)
    plans: list[Plan] = []

    def make(graph: Graph) -> Plan:
        if not plans:
            plans.append(_search_unlimited(asked, graph, machine))
        return plans[0].for_graph(graph)

    return make


def _search_unlimited(search: Callable[[Graph, Machine], Plan], graph: Graph, machine: Machine) -> Plan:
    """What a search finds; where nothing that it tries fits, what it finds on a machine with memory without end."""
    try:
        return search(graph, machine)
    except RequestError:
        memories = tuple(replace(memory, capacity_bytes=1 << 60) for memory in machine.memories)
        return search(graph, replace(machine, memories=memories))


def _document(found: Fit, sizes: LargestBatch) -> dict[str, object]:
    return {
        "fits": found.fits,
        "batch": found.batch,
        "largest_batch": sizes.samples,
        "largest_batch_note": sizes.note,
        "step_s": found.step_s,
        "memories": [memory.to_json() for memory in found.memories],
    }


def _text(source: str, machine: str, plan: str, found: Fit, sizes: LargestBatch) -> str:
    short = [memory for memory in found.memories if not memory.fits]
    verdict = "fits" if found.fits else f"does not fit in {len(short)} of {len(found.memories)} memories"
    lines = [
        f"{source} on {machine} under {plan}, {found.batch} samples a step: {verdict}",
        "",
        _table(found.memories),
        "",
        f"step {found.step_s * 1e3:.3f} ms predicted",
    ]
    largest = "no batch fits" if sizes.samples is None else f"largest batch that fits: {sizes.samples}"
    return "\n".join([*lines, f"{largest}; {sizes.note}" if sizes.note else largest])


def _table(memories: Sequence[MemoryUse]) -> str:
    """What each memory holds and needs, memories of one use together, turned so that any number of kinds fits."""
    from maniple.operators.plan.plan_table import ranges

    alike: dict[tuple[str, ...], list[int]] = {}
    for memory in memories:
        kinds = [f"{size:,}" for _, size in memory.kinds]
        sizes = f"{memory.capacity_bytes:,}", f"{memory.needed_bytes:,}", f"{memory.peak_bytes:,}"
        alike.setdefault((*sizes, *kinds, memory.peak_operator), []).append(memory.memory)
    heads = ("holds", "needs", "at its peak", *(f"  {kind}" for kind, _ in memories[0].kinds), "peak set by")
    columns = [("memory", *heads), *((ranges(numbers), *cells) for cells, numbers in alike.items())]
    return align(list(zip(*columns, strict=True)), shown_width())
