"""The command `maniple simulate`: what a step under a plan would take."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.regions.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.plan import Plan
    from maniple.strategies.simulation.prediction import Prediction

__all__: list[str] = []

SHOWN_LINKS = 8


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--model", help="Model that the plan is for.  [default: what the plan says]")
@click.option("--batch", type=int, help="Samples of a step.  [default: what the plan says, or the model's own]")
@click.option("--machine", help="Preset or TOML file.  [default: what the plan says]")
@click.option("--costs", type=click.Path(path_type=Path), help="File of measured tasks to use.")
@click.option("--timeline", type=click.Path(path_type=Path), help="Write the simulated timeline (Chrome trace) here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(
    plan: Path,
    model: str | None,
    batch: int | None,
    machine: str | None,
    costs: Path | None,
    timeline: Path | None,
    as_json: bool,  # noqa: FBT001  (click passes flags by name)
) -> int:
    """Predict the time, bytes and memory of a step under PLAN."""
    from maniple.operators.plan import Plan
    from maniple.request import machine_of, model_of
    from maniple.strategies.cost_model.measured import Measured, read_measurements
    from maniple.strategies.simulation.simulation import Simulation

    loaded = Plan.load(plan)
    said = dict(dict(loaded.explanation).get("", ()))
    size = batch if batch is not None else said.get("batch")
    graph = model_of(_named("model", model, said, plan), int(str(size)) if size is not None else None)
    world = machine_of(_named("machine", machine, said, plan))
    measured = None if costs is None else Measured(world, read_measurements(costs), measuring=False)
    begun = time.perf_counter()
    found = Simulation(graph, world, loaded, measured).predict()
    taken = time.perf_counter() - begun
    if timeline is not None:
        found.timeline.save(timeline)
    click.echo(json.dumps(_document(found, taken)) if as_json else _text(found, loaded, taken))
    return 0


def _named(what: str, given: str | None, said: Mapping[str, object], plan: Path) -> str:
    name = given or said.get(what)
    if not isinstance(name, str):
        raise RequestError(f"{plan}: the plan does not say which {what} it is for; name it with --{what}")
    return name


def _document(found: Prediction, taken: float) -> dict[str, object]:
    return {
        "step_s": found.step_ns / 1e9,
        "bytes": found.bytes,
        "peak_memory_bytes": max(found.memory_bytes),
        "rows": found.rows,
        "simulate_s": taken,
        "memory_bytes": list(found.memory_bytes),
        "memory_planned": found.planned,
        "link_bytes": dict(found.link_bytes),
        "critical_path": [{"name": n, "start_s": a / 1e9, "end_s": b / 1e9} for n, a, b in found.critical_path],
        "sources": dict(found.sources),
    }


def _text(found: Prediction, plan: Plan, taken: float) -> str:
    lines = [
        f"plan by {plan.strategy}: {found.step_ns / 1e6:.3f} ms a step, {found.bytes / 1e6:.1f} MB moved",
        f"at most {max(found.memory_bytes) / 1e6:.1f} MB in one memory",
        f"{found.rows} rows in {taken:.2f} s; durations: "
        + ", ".join(f"{count} {source}" for source, count in found.sources),
        "busiest links:",
        *(
            f"  {name:24s} {size / 1e6:10.2f} MB"
            for name, size in sorted(found.link_bytes, key=lambda link: (-link[1], link[0]))[:SHOWN_LINKS]
        ),
        "critical path:",
        *(f"  {start / 1e6:9.3f} .. {end / 1e6:9.3f} ms  {name}" for name, start, end in found.critical_path),
    ]
    return "\n".join(lines)
