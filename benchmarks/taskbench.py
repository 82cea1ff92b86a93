"""Task Bench: how small tasks may be before a system's own cost takes half of the machine.

    python benchmarks/taskbench.py                                   Maniple and the static schedule, stencil_1d
    python benchmarks/taskbench.py --system static --system ray --pattern fft --payload 65536
    python benchmarks/taskbench.py --pattern all --payload 16 --payload 65536 --json

METG(50 %) is the smallest granularity (time times cores over tasks) at which a system reaches half of the peak, after
Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance" (SC 2020). Each
system computes in two one-core nodes (or two threads), which it starts itself; all run the same compiled task, which
checks every byte of its inputs. The peak is the bare kernel on both cores, one for all systems. Systems take turns
within every round, and figures are medians over the rounds. Peers are installed with `pip install 'maniple[bench]'`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from maniple.process.error import ManipleError, RequestError, RunError

FOLDER = Path(__file__).resolve().parent
if __name__ == "__main__":  # what this starts imports the same modules, and finds the programs beside this interpreter
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

from taskbench.graph import PATTERNS, TaskGraph  # noqa: E402
from taskbench.metg import metg  # noqa: E402
from taskbench.static import Static  # noqa: E402
from taskbench.sweep import Curve, measure  # noqa: E402
from taskbench.system import NODES, SYSTEMS, make  # noqa: E402

PEAK_S = 0.1


def results(graphs: Sequence[TaskGraph], names: Sequence[str], rounds: int) -> list[dict[str, object]]:
    """Start the systems and measure every graph.

    Args:
        graphs: the graphs.
        names: the systems.
        rounds: how often each figure is taken.
    """
    made = {name: make(name) for name in dict.fromkeys(names)}
    found: list[dict[str, object]] = []
    with ExitStack() as stack:
        systems = {name: stack.enter_context(system) for name, system in made.items()}
        static = systems.get("static")
        cores = static if isinstance(static, Static) else stack.enter_context(Static())
        for graph in graphs:
            curves = measure(graph, systems, lambda: cores.peak(PEAK_S), rounds)
            found += [result(name, graph, curve) for name, curve in curves.items()]
    return found


def result(name: str, graph: TaskGraph, curve: Curve) -> dict[str, object]:
    """What is told of one system on one graph; where METG is not known `metg_us` is null, and `undecided` says why."""
    samples = sorted(curve.samples(), key=lambda sample: -sample.iterations)
    known: dict[str, object]
    try:
        known = {"metg_us": round(metg(samples), 3)}
    except RunError as error:
        known = {"metg_us": None, "undecided": str(error)}
    return {
        "system": name,
        "pattern": graph.pattern,
        "payload_bytes": graph.payload,
        **known,
        "empty_task_us": round(curve.empty_us, 3),
        "width": graph.width,
        "steps": graph.steps,
        "radix": graph.radix,
        "imbalance": graph.imbalance,
        "peak_gflops": round(curve.peak / 1e9, 2),
        "curve": [[s.iterations, round(s.granularity_us, 3), round(s.efficiency, 4)] for s in samples],
    }


def line(entry: dict[str, object]) -> str:
    """One line of the table."""
    known = "unknown: " + str(entry["undecided"]) if entry["metg_us"] is None else f"{entry['metg_us']:10.2f} us"
    place = f"{entry['pattern']:20} {entry['payload_bytes']:8} B  {entry['system']:16}"
    return f"{place} empty task {entry['empty_task_us']:10.2f} us   METG {known}"


def table(found: Sequence[dict[str, object]]) -> str:
    """METG in microseconds as Markdown, a row for each pattern; in brackets how many times the static schedule's."""
    columns = list(dict.fromkeys((entry["payload_bytes"], entry["system"]) for entry in found))
    cells = {(entry["pattern"], entry["payload_bytes"], entry["system"]): entry["metg_us"] for entry in found}
    lines = [f"| pattern | {' | '.join(f'{system}, {size} B' for size, system in columns)} |"]
    lines.append("|---|" + "---|" * len(columns))
    for pattern in dict.fromkeys(entry["pattern"] for entry in found):
        row = [str(pattern)]
        for size, system in columns:
            own, least = cells[pattern, size, system], cells.get((pattern, size, "static"))
            known = isinstance(own, float) and isinstance(least, float) and system != "static"
            over = f" ({own / least:.1f})" if known else ""  # type: ignore[operator]
            row.append("-" if own is None else f"{own:.1f}{over}")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--system", "names", multiple=True, default=("maniple", "static"), help=f"Of {', '.join(SYSTEMS)}.")
@click.option("--pattern", "patterns", multiple=True, default=("stencil_1d",), help=f"all, or {', '.join(PATTERNS)}.")
@click.option("--payload", "payloads", multiple=True, type=int, default=(16,), help="Bytes that a task hands on.")
@click.option("--width", default=4, help="Points of a step.")
@click.option("--steps", default=200, help="Steps.")
@click.option("--radix", default=5, help="Dependences per task of nearest, spread and random_nearest.")
@click.option("--imbalance", default=0.0, help="0 to 2: how much longer some tasks compute than others.")
@click.option("--rounds", default=5, help="How often each figure is taken; medians count.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON object alone.")
def main(
    *,
    names: tuple[str, ...],
    patterns: tuple[str, ...],
    payloads: tuple[int, ...],
    width: int,
    steps: int,
    radix: int,
    imbalance: float,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure METG(50 %) of each system, pattern and payload, and print a table and one JSON object."""
    chosen = PATTERNS if "all" in patterns else patterns
    if rounds < 1:
        raise RequestError(f"--rounds: expected at least 1, got {rounds}")
    graphs = [TaskGraph(name, width, steps, radix, size, imbalance) for size in payloads for name in chosen]
    found = results(graphs, names, rounds)
    if not as_json:
        for entry in found:
            print(line(entry))
        print(table(found))
    host = {"machine": platform.machine(), "cores": NODES, "python": platform.python_version()}
    print(json.dumps({"host": host, "results": found}))


if __name__ == "__main__":
    try:
        main()
    except ManipleError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, RequestError) else 1)
