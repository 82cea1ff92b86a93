"""The command `maniple simulate`: what a step under a plan would take."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.search_command import COSTS_HELP, MOMENTUM, OPTIMIZER_HELP

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.simulation.prediction import Prediction

__all__: list[str] = []

LONGEST = 20
"""So many rows of a critical path are printed."""
SHOWN = 8
"""So many links, and regions, are shown at most."""


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--model", help="Model that the plan is for.  [default: what the plan says]")
@click.option("--batch", type=int, help="Samples of a step.  [default: what the plan says, or the model's own]")
@click.option("--machine", help="Preset or TOML file.  [default: what the plan says]")
@click.option("--costs", help=f"{COSTS_HELP}  [default: what the plan says, or analytic]")
@click.option("--optimizer", help=f"{OPTIMIZER_HELP}  [default: what the plan says, or momentum]")
@click.option("--timeline", type=click.Path(path_type=Path), help="Write the simulated timeline (Chrome trace) here.")
@click.option("--draw", is_flag=True, help="Draw what the stages of a pipeline do when.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(
    plan: Path,
    model: str | None,
    batch: int | None,
    machine: str | None,
    costs: str | None,
    optimizer: str | None,
    timeline: Path | None,
    draw: bool,  # noqa: FBT001  (click passes flags by name)
    as_json: bool,  # noqa: FBT001
) -> int:
    """Predict the time, bytes and memory of a step under PLAN."""
    from maniple.costs import ANALYTIC, costs_of_plan
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer_text import optimizer_named
    from maniple.request import planned_for
    from maniple.search_loop import COSTS, OPTIMIZER
    from maniple.strategies.simulation.simulation import Simulation
    from maniple.strategies.simulation.stage_table import stage_table

    loaded = Plan.load(plan)
    graph, world = planned_for(plan, loaded, model, batch, machine)
    said = dict(dict(loaded.explanation).get("", ()))
    tasks = costs_of_plan(costs or str(said.get(COSTS, ANALYTIC)), graph, world, loaded)
    updated = optimizer_named(optimizer or str(said.get(OPTIMIZER, MOMENTUM)), graph)
    begun = time.perf_counter()
    simulation = Simulation(graph, world, loaded, tasks, updated)
    found = simulation.predict()
    taken = time.perf_counter() - begun
    if timeline is not None:
        simulation.timeline().save(timeline)
    drawn = stage_table(simulation) if draw else []
    if as_json:
        click.echo(json.dumps(_document(found, taken) | ({"drawn": drawn} if draw else {})))
    else:
        click.echo("\n".join([*drawn, _text(found, loaded, taken)]))
    return 0


def _document(found: Prediction, taken: float) -> dict[str, object]:
    return {
        "step_s": found.step_ns / 1e9,
        "ramp_s": found.ramp_ns / 1e9,
        "bytes": found.bytes,
        "peak_memory_bytes": max(found.memory_bytes),
        "rows": found.rows,
        "simulate_s": taken,
        "memory_bytes": list(found.memory_bytes),
        "memory_planned": found.planned,
        "memory_peaks": [
            {"at_s": peak.at_ns / 1e9, "bytes": peak.bytes, "lives": dict(peak.residents[:SHOWN])}
            for peak in map(found.memory.peak, range(len(found.memory_bytes)))
        ],
        "link_bytes": dict(found.link_bytes),
        "critical_path": [{"name": n, "start_s": a / 1e9, "end_s": b / 1e9} for n, a, b in found.critical_path],
        "sources": dict(found.sources),
    }


def _peak(found: Prediction) -> list[str]:
    """When the memory that needs most is fullest, and of what."""
    memory = found.memory_bytes.index(max(found.memory_bytes))
    peak = found.memory.peak(memory)
    rest = peak.residents[SHOWN:]
    lines = [f"memory {memory} is fullest at {peak.at_ns / 1e6:.3f} ms, of {peak.bytes / 1e6:.1f} MB:"]
    lines += [f"  {size / 1e6:12.3f} MB  {name}" for name, size in peak.residents[:SHOWN]]
    return [*lines, f"  {sum(size for _, size in rest) / 1e6:12.3f} MB  {len(rest)} more"] if rest else lines


def _path(found: Prediction) -> list[str]:
    """The critical path in order, of a long one the longest rows; `--json` has all."""
    path = found.critical_path
    longest = sorted(range(len(path)), key=lambda row: (path[row][1] - path[row][2], row))[:LONGEST]
    lines = ["critical path:" if len(path) <= LONGEST else f"critical path, the {LONGEST} longest of {len(path)} rows:"]
    for row in sorted(longest):
        name, start, end = path[row]
        lines.append(f"  {start / 1e6:9.3f} .. {end / 1e6:9.3f} ms  {name}")
    if len(path) > LONGEST:
        rest = sum(end - start for _, start, end in path) - sum(path[row][2] - path[row][1] for row in longest)
        lines.append(f"  {rest / 1e6:.3f} ms in the other {len(path) - LONGEST}; --json has all")
    return lines


def _text(found: Prediction, plan: Plan, taken: float) -> str:
    flows = found.ramp_ns > 0
    lines = [
        f"plan by {plan.strategy}: {found.step_ns / 1e6:.3f} ms a step, {found.bytes / 1e6:.1f} MB moved",
        *([f"without a flush, from one step to the next, after a ramp of {found.ramp_ns / 1e6:.3f} ms"] * flows),
        f"at most {max(found.memory_bytes) / 1e6:.1f} MB in one memory, "
        + ("as the runtime plans it" if found.planned else "by an estimate")
        + "; what lives at once by the simulated times, alignment included:",
        *_peak(found),
        f"{found.rows} rows in {taken:.2f} s; durations: "
        + ", ".join(f"{count} {source}" for source, count in found.sources),
        "busiest links:",
        *(
            f"  {name:24s} {size / 1e6:10.2f} MB"
            for name, size in sorted(found.link_bytes, key=lambda link: (-link[1], link[0]))[:SHOWN]
        ),
        *_path(found),
    ]
    return "\n".join(lines)
