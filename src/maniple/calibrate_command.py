"""The command `maniple calibrate`: measures this computer and writes it down as a machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
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
CPU = "cpu"
PROBE_TIMEOUT_S = 300


@click.command()
@click.option("--device", default=CPU, show_default=True, help="What is measured: cpu, cuda, ...")
@click.option(
    "--nodes", type=int, help="Nodes that share this host, one rank each.  [default: 2; of GPUs one for each]"
)
@click.option("--model", "models", multiple=True, default=("digits_cnn", "mlp"), show_default=True, help="Whose tasks.")
@click.option("--batch", type=int, help="Samples of a step of these models.  [default: their own]")
@click.option("--seconds", default=30.0, show_default=True, help="How long tasks are measured in all.")
@click.option("--export", type=click.Path(path_type=Path), help="Write every task measured here so far to this file.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the machine (TOML) here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(
    device: str,
    nodes: int | None,
    models: tuple[str, ...],
    batch: int | None,
    seconds: float,
    export: Path | None,
    output: Path | None,
    as_json: bool,  # noqa: FBT001  (click passes flags by name)
) -> int:
    """Measure processors, links between ranks, the cost of a task, and the tasks of models; say how good the fit is."""
    from maniple.request import model_of

    if nodes is not None and nodes < 1:
        raise RequestError(f"--nodes: expected at least 1, got {nodes}")
    if not seconds >= 0:
        raise RequestError(f"--seconds: expected at least 0, got {seconds}")
    graphs = [model_of(name, batch) for name in models]
    machine, found, lines = _cpus(nodes or 2) if device == CPU else _gpus(device, nodes)
    if output is not None:
        machine.save(output)
    tasks = _tasks(graphs, machine, seconds, export, device)
    found |= {"tasks": asdict(tasks), "machine": None if output is None else str(output)}
    click.echo(json.dumps(found) if as_json else "\n".join([*lines, *_lines_of_tasks(tasks, output)]))
    return 0


def _cpus(nodes: int) -> tuple[Machine, dict[str, object], list[str]]:
    """Measure the processors of this host: the machine, what was found, and that to be read."""
    from maniple.process.inventory import take_inventory
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.calibration import calibrate, fit_link, measure_processor, middle

    cores = max(1, take_inventory().cores // nodes)
    # A shared computer is slower for seconds at a time: the rates are the middle of what is measured between probes.
    rounds = [measure_processor(nodes, cores)]
    launch = _number(_probe("maniple.link_probe", 1, "--cores", str(cores)).get("launch_s"))
    rounds.append(measure_processor(nodes, cores))
    fit = None
    if nodes > 1:
        found = _probe("maniple.link_probe", 2, "--cores", str(cores))
        fit = fit_link(_numbers(found.get("bytes"), int), _numbers(found.get("seconds"), float))
    rates = middle([*rounds, measure_processor(nodes, cores)])
    machine = calibrate(Machine.cpu(1, ranks=nodes, cores=cores), rates, fit, launch)
    return machine, _document(rates, fit, launch), _lines(rates, fit, launch)


def _gpus(device: str, nodes: int | None) -> tuple[Machine, dict[str, object], list[str]]:
    """Measure the GPUs of this host, one for each node: the machine, what was found, and that to be read."""
    from maniple import gpu_calibration

    here = gpu_calibration.count_nodes(device)
    options = ("--device", device, "--processors", "1")
    found = gpu_calibration.measure_gpus(nodes or here, lambda module, count: _probe(module, count, *options))
    machine, rates, fit = found
    lines = [*gpu_calibration.lines(rates, device), *_line_of_link(fit)]
    return machine, gpu_calibration.document(rates, _link(fit)), lines


def _tasks(graphs: Sequence[Graph], machine: Machine, seconds: float, export: Path | None, device: str) -> TaskFit:
    """Measure the tasks of models, keep them, and see how far interpolation between them is off."""
    from maniple.costs import open_timer
    from maniple.process import environment
    from maniple.strategies.cost_model.calibration import fit_tasks
    from maniple.strategies.cost_model.measured import Measured
    from maniple.strategies.cost_model.measurement import step_bytes, write_measurements
    from maniple.strategies.cost_model.store import Store
    from maniple.strategies.search.survey import survey

    store = Store(environment.cache_folder(), device)
    measurements = store.read()
    known, begun = len(measurements.tasks), time.monotonic()
    errors: list[float] = []
    with ExitStack() as opened:
        opened.callback(store.add, measurements)
        made = partial(Measured, machine, measurements)
        if device != CPU:
            made = partial(made, timer=opened.enter_context(open_timer(device, machine)))
        for graph in graphs:
            left_s = max(0.0, seconds - (time.monotonic() - begun))
            costs = made(time_box_s=left_s, footprint=step_bytes(graph))
            survey(graph, machine, costs)
            errors = costs.errors()
    if export is not None:
        write_measurements(export, store.read())
    return fit_tasks(len(measurements.lasting().tasks), known, errors, str(store.path))


def _probe(module: str, nodes: int, *options: str) -> dict[str, object]:
    """Run a probe on some nodes, and give what it printed."""
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", str(nodes), *options]
    try:
        done = subprocess.run(  # noqa: S603  (our own command line)
            [*command, "-m", module], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
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


def _link(fit: LinkFit | None) -> dict[str, float] | None:
    """What was found of links, as plain data."""
    if fit is None:
        return None
    return {"latency_s": fit.latency_s, "bandwidth": fit.bandwidth, "r_squared": fit.r_squared, "worst": fit.worst}


def _document(rates: ProcessorRates, fit: LinkFit | None, launch: float) -> dict[str, object]:
    return {
        "flops_per_s": rates.flops_per_s,
        "memory_bandwidth": rates.bandwidth,
        "contention": rates.contention,
        "launch_s": launch,
        "link": _link(fit),
    }


def _lines(rates: ProcessorRates, fit: LinkFit | None, launch: float) -> list[str]:
    return [
        f"processor   {rates.flops_per_s / 1e9:.1f} Gflop/s, {rates.bandwidth / 1e9:.1f} GB/s while all work",
        f"contention  {rates.contention:.2f} times the time of one alone",
        f"task        {launch * 1e6:.1f} us from one small task to the next",
        *_line_of_link(fit),
    ]


def _line_of_link(fit: LinkFit | None) -> list[str]:
    if fit is None:
        return []
    line = f"link        {fit.latency_s * 1e6:.1f} us + bytes / {fit.bandwidth / 1e9:.2f} GB/s "
    return [f"{line}(R2 {fit.r_squared:.3f}, worst {100 * fit.worst:.0f} % off)"]


def _lines_of_tasks(tasks: TaskFit, output: Path | None) -> list[str]:
    lines = [f"tasks       {tasks.measured} measured, {tasks.new} of them now, kept in {tasks.file}"]
    if tasks.median is not None:
        lines.append(f"            interpolated from others: {100 * tasks.median:.0f} % off in the median, ")
        lines[-1] += f"{100 * tasks.ninth_decile:.0f} % in the ninth decile"
    if output is not None:
        lines.append(f"written to {output}")
    return lines
