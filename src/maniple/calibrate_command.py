"""The command `maniple calibrate`: measures this computer and writes it down as a machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from maniple.process.error import RequestError, RunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.calibration import LinkFit, ProcessorRates, TaskFit

__all__: list[str] = []

T = TypeVar("T")
PROBE_TIMEOUT_S = 300


@click.command()
@click.option("--nodes", default=2, show_default=True, help="Nodes that share this host, one rank each.")
@click.option("--model", "models", multiple=True, default=("digits_cnn", "mlp"), show_default=True, help="Whose tasks.")
@click.option("--batch", type=int, help="Samples of a step of these models.  [default: their own]")
@click.option("--seconds", default=30.0, show_default=True, help="How long tasks are measured in all.")
@click.option("--export", type=click.Path(path_type=Path), help="Write every task measured here so far to this file.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the machine (TOML) here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(
    nodes: int,
    models: tuple[str, ...],
    batch: int | None,
    seconds: float,
    export: Path | None,
    output: Path | None,
    as_json: bool,  # noqa: FBT001  (click passes flags by name)
) -> int:
    """Measure processors, links between ranks, the cost of a task, and the tasks of models; say how good the fit is."""
    from maniple.process.inventory import take_inventory
    from maniple.request import model_of
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.calibration import calibrate, fit_link, measure_processor, middle

    if nodes < 1:
        raise RequestError(f"--nodes: expected at least 1, got {nodes}")
    if not seconds >= 0:
        raise RequestError(f"--seconds: expected at least 0, got {seconds}")
    graphs = [model_of(name, batch) for name in models]
    cores = max(1, take_inventory().cores // nodes)
    # A shared computer is slower for seconds at a time: the rates are the middle of what is measured between probes.
    rounds = [measure_processor(nodes, cores)]
    launch = _number(_probe(1, cores).get("launch_s"))
    rounds.append(measure_processor(nodes, cores))
    fit = None
    if nodes > 1:
        found = _probe(2, cores)
        fit = fit_link(_numbers(found.get("bytes"), int), _numbers(found.get("seconds"), float))
    rates = middle([*rounds, measure_processor(nodes, cores)])
    machine = calibrate(Machine.cpu(1, ranks=nodes, cores=cores), rates, fit, launch)
    if output is not None:
        machine.save(output)
    tasks = _tasks(graphs, machine, seconds, export)
    told = rates, fit, launch, tasks
    click.echo(json.dumps(_document(*told, output)) if as_json else _text(*told, output))
    return 0


def _tasks(graphs: Sequence[Graph], machine: Machine, seconds: float, export: Path | None) -> TaskFit:
    """Measure the tasks of models, keep them, and see how far interpolation between them is off."""
    from maniple.process import environment
    from maniple.strategies.cost_model.calibration import fit_tasks
    from maniple.strategies.cost_model.measured import Measured
    from maniple.strategies.cost_model.measurement import step_bytes, write_measurements
    from maniple.strategies.cost_model.store import Store
    from maniple.strategies.search.survey import survey

    store = Store(environment.cache_folder())
    measurements = store.read()
    known, begun = len(measurements.tasks), time.monotonic()
    errors: list[float] = []
    try:
        for graph in graphs:
            left_s = max(0.0, seconds - (time.monotonic() - begun))
            costs = Measured(machine, measurements, time_box_s=left_s, footprint=step_bytes(graph))
            survey(graph, machine, costs)
            errors = costs.errors()
    finally:
        store.add(measurements)
    if export is not None:
        write_measurements(export, store.read())
    return fit_tasks(len(measurements.lasting().tasks), known, errors, str(store.path))


def _probe(nodes: int, cores: int) -> dict[str, object]:
    """Run the probe on some nodes, and give what it printed."""
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", str(nodes), "--cores", str(cores)]
    try:
        done = subprocess.run(  # noqa: S603  (our own command line)
            [*command, "-m", "maniple.link_probe"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"calibrate: the probe on {nodes} nodes took more than {PROBE_TIMEOUT_S} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RunError(
            f"calibrate: the probe on {nodes} nodes failed: {done.stderr.strip()[-400:] or 'it said nothing'}"
        )
    document = json.loads(lines[-1])
    return document if isinstance(document, dict) else {}


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise RunError(f"calibrate: the probe gave {value!r}, expected a number")
    return float(value)


def _numbers(values: object, kind: type[T]) -> list[T]:
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise RunError(f"calibrate: the probe gave {values!r}, expected numbers")
    return values


def _document(
    rates: ProcessorRates, fit: LinkFit | None, launch: float, tasks: TaskFit, output: Path | None
) -> dict[str, object]:
    link = None if fit is None else {
        "latency_s": fit.latency_s, "bandwidth": fit.bandwidth, "r_squared": fit.r_squared, "worst": fit.worst
    }  # fmt: skip
    return {
        "flops_per_s": rates.flops_per_s,
        "memory_bandwidth": rates.bandwidth,
        "contention": rates.contention,
        "launch_s": launch,
        "link": link,
        "tasks": asdict(tasks),
        "machine": None if output is None else str(output),
    }


def _text(rates: ProcessorRates, fit: LinkFit | None, launch: float, tasks: TaskFit, output: Path | None) -> str:
    lines = [
        f"processor   {rates.flops_per_s / 1e9:.1f} Gflop/s, {rates.bandwidth / 1e9:.1f} GB/s while all work",
        f"contention  {rates.contention:.2f} times the time of one alone",
        f"task        {launch * 1e6:.1f} us from one small task to the next",
    ]
    if fit is not None:
        lines.append(
            f"link        {fit.latency_s * 1e6:.1f} us + bytes / {fit.bandwidth / 1e9:.2f} GB/s "
            f"(R2 {fit.r_squared:.3f}, worst {100 * fit.worst:.0f} % off)"
        )
    lines.append(f"tasks       {tasks.measured} measured, {tasks.new} of them now, kept in {tasks.file}")
    if tasks.median is not None:
        lines.append(f"            interpolated from others: {100 * tasks.median:.0f} % off in the median, ")
        lines[-1] += f"{100 * tasks.ninth_decile:.0f} % in the ninth decile"
    if output is not None:
        lines.append(f"written to {output}")
    return "\n".join(lines)
