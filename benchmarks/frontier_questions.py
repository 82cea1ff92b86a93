"""TensorOpt's questions, answered from frontiers of our own: time against memory per model and number of devices.

    python benchmarks/frontier_questions.py FOLDER               searches what FOLDER lacks, and prints the tables
    python benchmarks/frontier_questions.py FOLDER --models gpt  of some models
    python benchmarks/frontier_questions.py FOLDER --write       ... into their page, of all that FOLDER has

(Z. Cai et al., TensorOpt, arXiv 2004.10856, section 5, asks them; its figures are not repeated here.) For each model
and machine FOLDER gets a frontier with recomputation and stages, of whose model points at most POINTS are simulated,
and what searches of one objective find at the limits of memory that are asked for: `optcnn`, which knows no memory, and
`soap` with a machine whose memories hold no more. All times are simulated, so they are the same whatever else a
computer does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import click
from page_table import write_table

import maniple as mp
from maniple.models import model
from maniple.strategies.frontier import pareto
from maniple.strategies.search.memory_fit import needed_bytes
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.interface.plan_frontier import FrontierPoint

MODELS = ("vgg16", "wide_resnet", "rnnlm", "transformer", "gpt", "resnet101", "inception_v3")
DEVICES = (2, 4, 8, 16)
POINTS = 16
SPACE = ("recompute", "stages")
PROPOSALS = 2000
SEMANTICS = {"batch_norm": "local_stats"}
"""Statistics of what is computed at once, without which a batch norm cannot be cut into micro-batches."""
GIB = 2**30
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "frontier.md"
BEGIN, END = "<!-- benchmarks/frontier_questions.py: begin -->", "<!-- benchmarks/frontier_questions.py: end -->"


def frontier_of(folder: Path, name: str, devices: int) -> mp.Frontier:
    """The frontier of a model on some devices: from the folder, or searched and put there."""
    file = folder / f"{name}-{devices}.json"
    if not file.exists():
        machine = mp.Machine.preset(f"v100x{devices}")
        options = {"strategy": "pareto", "objective": "pareto", "semantics": SEMANTICS, "space": list(SPACE)}
        with patch.object(pareto, "SIMULATED", POINTS):
            mp.search(model(name), machine, **options).save(file)
    return mp.Frontier.load(file)


def single(folder: Path, name: str, devices: int, limit: int) -> dict[str, list[float]]:
    """What searches of one objective find: by strategy the seconds and bytes of a plan; none where it does not fit."""
    file = folder / f"{name}-{devices}-{limit}-single.json"
    if not file.exists():
        graph, machine = model(name), mp.Machine.preset(f"v100x{devices}")
        found = {}
        for strategy, where in (("optcnn", machine), ("soap", machine.capped(limit))):
            proposals = PROPOSALS if strategy == "soap" else None
            try:
                plan = mp.search(graph, where, strategy=strategy, proposals=proposals, semantics=SEMANTICS)
            except mp.RequestError:
                continue
            found[strategy] = told(graph, machine, plan)
        file.write_text(json.dumps(found))
    read: dict[str, list[float]] = json.loads(file.read_text())
    return read


def told(graph: mp.Graph, machine: mp.Machine, plan: Plan) -> list[float]:
    """The seconds of a step and the bytes of the memory that holds most."""
    simulation = Simulation(graph, machine, plan)
    return [simulation.makespan_ns / 1e9, max(simulation.allocated_bytes() or needed_bytes(simulation))]


def ends(found: mp.Frontier) -> tuple[FrontierPoint, FrontierPoint, FrontierPoint]:
    """The fastest point, the knee, and the leanest one."""
    knee = found.knee()
    fast = min(found, key=lambda point: (point.step_s, point.peak_memory_bytes))
    lean = min(found, key=lambda point: (point.peak_memory_bytes, point.step_s))
    return fast, next(point for point in found if point.plan is knee), lean


def cell(point: FrontierPoint) -> str:
    """A point in a table."""
    return f"{1e3 * point.step_s:.2f} ms, {point.peak_memory_bytes / GIB:.2f} GiB"


def profile_rows(name: str, frontiers: dict[int, mp.Frontier]) -> list[str]:
    """Time against memory, and what twice the devices gain."""
    rows, before = [], None
    for devices, found in frontiers.items():
        fast, knee, lean = ends(found)
        gain = "" if before is None else f"{before / fast.step_s:.2f}"
        before = fast.step_s
        tau = "one" if found.time_correlation is None else f"{found.time_correlation:.2f}"
        rows.append(
            f"| {name} | {devices} | {found.model_points} | {found.simulated} | {len(found)} | {cell(fast)} | "
            f"{cell(knee)} | {cell(lean)} | {gain} | {tau} |"
        )
    return rows


def quarter_rows(name: str, devices: int, found: mp.Frontier, alone: dict[str, list[float]], limit: int) -> str:
    """What a quarter of the fastest plan's memory costs, and what other searches find within it."""
    fast, _, lean = ends(found)
    if lean.peak_memory_bytes <= limit:
        best = found.best(limit)
        point = next(point for point in found if point.plan is best)
        own = f"{1e3 * point.step_s:.2f} | {point.step_s / fast.step_s:.2f}"
    else:
        own = f"none: {lean.peak_memory_bytes / GIB:.2f} GiB at least | "
    others = []
    for strategy in ("optcnn", "soap"):
        if strategy not in alone:
            others.append("does not fit")
            continue
        seconds, size = alone[strategy]
        fits = "" if size <= limit else f" (needs {size / GIB:.2f} GiB)"
        others.append(f"{1e3 * seconds:.2f}{fits}")
    return f"| {name} | {devices} | {1e3 * fast.step_s:.2f} | {limit / GIB:.2f} | {own} | {' | '.join(others)} |"


def fewest_rows(name: str, frontiers: dict[int, mp.Frontier]) -> str:
    """The fewest devices on which a model fits into some memory (mini-parallelism), and the step there (mini-time)."""
    whole = None
    for found in frontiers.values():
        whole = found if whole is None else whole | found
    if whole is None:
        raise ValueError("expected at least one frontier")
    cells = []
    for limit in (GIB // 4, GIB, 4 * GIB):
        try:
            plan = whole.fewest(limit)
        except mp.RequestError:
            cells.append("none")
            continue
        point = next(point for point in whole if point.plan is plan)
        cells.append(f"{point.devices}: {1e3 * point.step_s:.2f} ms")
    return f"| {name} | {' | '.join(cells)} |"


def tables(folder: Path, names: list[str], *, search: bool) -> str:
    """All tables, of what the folder has where nothing is to be searched."""
    profile = ["| model | devices | model points | simulated | kept | fastest | knee | leanest | gain of twice | tau |"]
    profile.append("|---" * 10 + "|")
    quarter = [
        "| model | devices | fastest ms | limit GiB | fastest within ms | times | optcnn ms | soap --memory ms |"
    ]
    quarter.append("|---" * 8 + "|")
    fewest = ["| model | 0.25 GiB | 1 GiB | 4 GiB |", "|---" * 4 + "|"]
    for name in names:
        there = [n for n in DEVICES if search or (folder / f"{name}-{n}.json").exists()]
        frontiers = {devices: frontier_of(folder, name, devices) for devices in there}
        if not frontiers:
            continue
        profile += profile_rows(name, frontiers)
        for devices in there:
            limit = min(frontiers[devices], key=lambda point: point.step_s).peak_memory_bytes // 4
            if search or (folder / f"{name}-{devices}-{limit}-single.json").exists():
                alone = single(folder, name, devices, limit)
                quarter.append(quarter_rows(name, devices, frontiers[devices], alone, limit))
        fewest.append(fewest_rows(name, frontiers))
    parts = ["Time against memory (profiling), and the gain of twice the devices:", *profile, ""]
    parts += ["A quarter of the fastest plan's memory (mini-time), and what searches of one objective find:", *quarter]
    parts += ["", "The fewest devices that fit, and the fastest step on them (mini-parallelism):", *fewest]
    return "\n".join(part if part.startswith("|") or not part else f"{part}\n" for part in parts)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--models", default=",".join(MODELS), help="which, with commas")
@click.option("--write", is_flag=True, help="write what the folder has into the page, and search nothing")
def main(folder: Path, models: str, *, write: bool) -> None:
    """Search what is missing, and print or write the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    found = tables(folder, models.split(","), search=not write)
    print(found)
    if write:
        write_table(PAGE, BEGIN, END, found)


if __name__ == "__main__":
    main()
