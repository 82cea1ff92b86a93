"""Antichain segmentation's figures: against the published optimizers, in time, and against the seed paper's baselines.

    python benchmarks/antichain.py --data FOLDER     the tables of docs/explanation/antichain.md and one JSON object
    python benchmarks/antichain.py --data FOLDER --json    prints the JSON object alone

FOLDER holds the published profiles (`pipedream-profiles`, `dnn-partitioning`); by default MANIPLE_REFERENCE_DATA names
it. Times are of the search alone, the graph in memory and the compiled functions loaded, the median of some runs on one
core. Without the folder only the zoo is measured.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import antichain_tables
import click
from antichain_baselines import MEASURES, baseline

from maniple.models import model
from maniple.runtime.machine.machine import Machine
from maniple.strategies.dnn_partitioning.max_load import max_load
from maniple.strategies.dnn_partitioning.placement_problem import Placement
from maniple.strategies.dnn_partitioning.sample_latency import sample_latency
from maniple.strategies.pipeline.cost_graph import CostGraph
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import cost_graph
from maniple.strategies.pipeline.pipeline_timing import StageTimes, pipeline_s
from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem, Stage
from maniple.strategies.pipeline.profile import read_profile
from maniple.strategies.pipeline.stage_costs import Assumptions, Level, synchronization_s, work_s
from maniple.strategies.segmentation.order_search import stage_times
from maniple.strategies.segmentation.segment import load_compiled, segment

T = TypeVar("T")
Row = dict[str, object]

BANDWIDTH = 1e9
PROFILES = (
    "alexnet", "vgg16", "resnet18", "resnet50", "resnet101", "densenet121", "gnmt_large", "inception_v3",
    "nasnetamobile.branches-compressed", "nasnetamobile",
)  # fmt: skip
# The published optimizer's seconds for its dynamic programme, replicated with communication, 4 and 8 devices.
PUBLISHED_S = {
    "vgg16": (0.006, 0.019), "resnet18": (0.032, 0.112), "resnet50": (0.200, 0.794), "resnet101": (0.792, 3.180),
    "densenet121": (0.895, 2.826), "gnmt_large": (9.92, 25.7),
}  # fmt: skip
# dnn-partitioning's exact and linearised max-loads (ms) with their seconds; None: not finished.
PLACEMENTS: dict[str, tuple[float | None, float | None, float, float]] = {
    "LayerGraphs/bert24_training": (41.7458, 0.03, 41.7458, 0.02),
    "LayerGraphs/resnet50_inference": (33.7747, 0.27, 33.7747, 0.10),
    "LayerGraphs/resnet50_training": (78.6318, 0.36, 78.6498, 0.22),
    "LayerGraphs/inceptionv3_inference": (None, None, 51.5519, 0.43),
    "LayerGraphs/inceptionv3_training": (None, None, 123.930, 0.77),
    "LayerGraphs/gnmt_inference": (32.9107, 13.0, 33.0326, 0.04),
    "OperatorGraphs/bert_l-3_inference": (27.9186, 1.5, 27.9186, 0.04),
    "OperatorGraphs/bert_l-3_training": (65.3031, 5.6, 65.3031, 0.08),
    "OperatorGraphs/bert_l-12_inference": (147.478, 17.9, 147.478, 1.2),
    "OperatorGraphs/resnet50_training": (255.194, 0.29, 255.194, 0.33),
}
# The seed paper's models and its partition seconds for 4 and 8 GPUs, where it gives them.
SEED_PAPER: dict[str, tuple[float, float] | None] = {
    "vgg16": (0.01, 0.03), "resnet18": None, "resnet50": None, "resnet101": (1.20, 3.69), "alexnet": None,
    "resnext50": None, "resnext101": None, "inception_v3": (3.07, 4.12), "densenet121": (1.29, 3.73),
    "squeezenet1_0": None,
}  # fmt: skip
ZOO_DEVICES = (4, 8)


def timed(call: Callable[[], T], runs: int) -> tuple[T, float]:
    """Give a call's value and the median of its seconds."""
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - begun)
    return value, statistics.median(seconds)


def pipelines(folder: Path, runs: int) -> list[Row]:
    """Cut every PipeDream profile."""
    rows: list[Row] = []
    for name in PROFILES:
        graph = read_profile(folder / "pipedream-profiles" / f"{name}.txt")
        cases = [((Level(n, b),), r) for b in (BANDWIDTH, math.inf) for r in (False, True) for n in (4, 8)]
        if len(graph.nodes) < 500:
            cases += [((Level(4, 1e10), Level(servers, 1.25e9)), True) for servers in (2, 4)]
        for levels, replicate in cases:
            problem = SegmentationProblem(graph, levels, replicate)
            found, seconds = timed(lambda p=problem: segment(p), 1 if len(graph.nodes) > 250 else runs)  # type: ignore[misc]
            rows.append({
                "profile": name,
                "levels": "x".join(str(level.members) for level in levels),
                "bandwidth": None if math.isinf(levels[0].bandwidth) else levels[0].bandwidth,
                "replicate": replicate,
                "bottleneck_s": found.bottleneck_s,
                "exact": found.exact,
                "gap": round(found.gap, 6),
                "states": found.states,
                "search_s": seconds,
                "published_search_s": published(name, levels, replicate=replicate),
            })  # fmt: skip
    return rows


def published(name: str, levels: tuple[Level, ...], *, replicate: bool) -> float | None:
    """Look up the published optimizer's time for the same search."""
    known = PUBLISHED_S.get(name)
    if known is None or len(levels) > 1 or not replicate or math.isinf(levels[0].bandwidth):
        return None
    return known[0 if levels[0].members == 4 else 1]


def balance(folder: Path) -> list[Row]:
    """Compare the worst stage's load over the mean, ours and the baselines', without communication."""
    rows: list[Row] = []
    for name in PROFILES[:-2]:
        graph = read_profile(folder / "pipedream-profiles" / f"{name}.txt")
        for devices in (4, 8):
            problem = SegmentationProblem(graph, (Level(devices),))
            rows.append({"profile": name, "stages": devices, **compared(problem)})
    return rows


def compared(problem: SegmentationProblem) -> Row:
    """Balance and bottleneck of the search and of the baselines."""
    found: dict[str, Segmentation] = {"antichain": segment(problem)}
    found |= {measure: baseline(problem, measure) for measure in MEASURES}
    row: Row = {f"{name}_balance": round(value.balance, 4) for name, value in found.items()}
    return row | {f"{name}_s": value.bottleneck_s for name, value in found.items()}


def placements(folder: Path, runs: int) -> list[Row]:
    """Solve dnn-partitioning's throughput workloads; the time includes making the problem from the graph."""
    rows: list[Row] = []
    for name, (exact, exact_s, linear, linear_s) in PLACEMENTS.items():
        graph = read_profile(folder / "dnn-partitioning" / "throughput-inputs" / f"{name}.json")
        found, seconds = timed(lambda g=graph: max_load(Placement.of(g)), runs)  # type: ignore[misc]
        rows.append({
            "workload": name,
            "max_load_ms": float(f"{found.value_s * 1e3:.6g}"),
            "exact": found.exact,
            "ideals": found.states,
            "search_s": seconds,
            "published_exact_ms": exact,
            "published_exact_s": exact_s,
            "published_linear_ms": linear,
            "published_linear_s": linear_s,
        })  # fmt: skip
    return rows


def samples(folder: Path) -> list[Row]:
    """Solve dnn-partitioning's latency inputs."""
    rows: list[Row] = []
    for path in sorted((folder / "dnn-partitioning" / "latency-inputs").glob("*/*.json")):
        placement = Placement.of(read_profile(path))
        found, seconds = timed(lambda p=placement: sample_latency(p), 1)  # type: ignore[misc]
        rows.append({
            "workload": f"{path.parent.name}/{path.stem}",
            "latency_ms": found.value_s * 1e3,
            "bound_ms": found.lower_bound_s * 1e3,
            "gap": round(found.gap, 4),
            "search_s": seconds,
        })  # fmt: skip
    return rows


def zoo(runs: int) -> list[Row]:
    """Cut the seed paper's models: CIFAR-10's shapes, batch 128 in 8 micro-batches, on one and two hosts of P100."""
    rows: list[Row] = []
    for name, times in SEED_PAPER.items():
        operators = model(name, batch=128, image=32, classes=10)
        for place, devices in enumerate(ZOO_DEVICES):
            machine = Machine.preset(f"p100x{devices}")
            graph = cost_graph(operators, machine)
            _, seconds = timed(lambda g=graph, m=machine: segment(asked(g, m)), runs)  # type: ignore[misc]
            rows.append({
                "model": name,
                "devices": devices,
                "search_s": seconds,
                "allowed_s": max(0.005, times[place] / 10 if times else 0.0),
                "one_device_s": graph.compute_s,
                **speed_ups(graph, machine),
                **compared(SegmentationProblem(graph, (Level(devices),))),
            })  # fmt: skip
    return rows


def asked(graph: CostGraph, machine: Machine, parts: int = 8, *, replicate: bool = True) -> SegmentationProblem:
    """State the problem of one row: every device of a machine, links that carry both directions at once.

    Straight pipelines cross the network once between two hosts. Replicas on both hosts may all use it at the same time,
    so each has its share of the host's card.
    """
    level = flat(machine, len(machine.processors))
    if replicate and len(machine.hosts) > 1:
        level = Level(level.members, level.bandwidth / (level.members // len(machine.hosts)))
    given = Assumptions(order="2bw", micro_batches=parts, synchronized=2.0)
    return SegmentationProblem(graph, (level,), replicate, assumptions=given)


def speed_ups(graph: CostGraph, machine: Machine) -> Row:
    """Time a pipelined step against one device that computes the mini-batch whole; ours and the baselines'.

    Without a flush: with one, a straight pipeline of 4 stages and 8 micro-batches cannot be faster than 4 * 8 / 11.
    ``four_parts`` cuts the mini-batch into 4 micro-batches only. ``alike`` is against one device that starts as many
    micro-batches as the pipeline does.
    """
    straight = asked(graph, machine, replicate=False)
    problems = {
        "replicated": asked(graph, machine),
        "straight": straight,
        "four_parts": asked(graph, machine, parts=4),
    }
    row: Row = {name: graph.compute_s / step_s(problem, segment(problem)) for name, problem in problems.items()}
    one_device = sum(work_s(straight.assumptions, node.compute_s, node.start_s, 1) for node in graph.nodes)
    row["alike"] = one_device / step_s(problems["replicated"], segment(problems["replicated"]))
    return row | {measure: graph.compute_s / step_s(straight, baseline(straight, measure)) for measure in MEASURES}


def step_s(problem: SegmentationProblem, found: Segmentation) -> float:
    """Seconds of a mini-batch in the steady state, event by event."""
    times = stage_times(problem, found)
    given, m = problem.assumptions, problem.assumptions.micro_batches
    synchronizing = [
        synchronization_s(given, problem.levels[0], stage.replicas, 1, weights(problem.graph, stage))
        for stage in found.stages
    ]
    steady = [
        StageTimes(stage.forward_s, stage.backward_s + seconds / m, stage.transfer_s)
        for stage, seconds in zip(times, synchronizing, strict=True)
    ]
    # As many micro-batches in flight as hide the transfers.
    return pipeline_s(steady, "1f1b-so", 6 * m) - pipeline_s(steady, "1f1b-so", 5 * m)


def weights(graph: CostGraph, stage: Stage) -> float:
    """Add up the bytes of a stage's weights."""
    return math.fsum(graph.nodes[node].parameter_bytes for node in stage.nodes)


def means(rows: list[Row]) -> list[Row]:
    """Give the geometric means of speed-ups over the models, with the seed paper's."""
    kinds = ("replicated", "straight", "four_parts", "alike", *MEASURES)
    return [
        {
            "devices": devices,
            "published": published_mean,
            **{
                kind: statistics.geometric_mean(float(str(row[kind])) for row in rows if row["devices"] == devices)
                for kind in kinds
            },
        }
        for devices, published_mean in zip(ZOO_DEVICES, (3.4, 3.76), strict=True)
    ]


def show(tables: dict[str, list[Row]]) -> None:
    """Print what was measured as docs/explanation/antichain.md has it."""
    parts = {
        "Figures": antichain_tables.figures(tables),
        "Models of the zoo": antichain_tables.speed_ups(tables["zoo"], tables["means over the zoo"]),
        "Their means, further": [
            {key: f"{value:.2f}" if isinstance(value, float) else value for key, value in row.items()}
            for row in tables["means over the zoo"]
        ],
        "Their searches": antichain_tables.searches(tables["zoo"]),
        "Their balance on 8 devices": antichain_tables.balances(tables["zoo"], "model", "devices"),
    }
    if "pipelines" in tables:
        parts |= {
            "Bottlenecks of the profiles": antichain_tables.pipelines(tables["pipelines"]),
            "Largest loads": antichain_tables.placements(tables["placements"]),
            "Latencies of one sample": antichain_tables.latencies(tables["latency"]),
            "Balance of the profiles, 8 stages": antichain_tables.balances(tables["balance"], "profile", "stages"),
        }
    for title, rows in parts.items():
        print(f"\n{title}\n\n{antichain_tables.markdown(rows)}")


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), envvar="MANIPLE_REFERENCE_DATA")
@click.option("--json", "as_json", is_flag=True, help="print the JSON object alone")
@click.option("--runs", default=5, show_default=True, help="runs of each short search; times are medians over them")
def main(*, data: Path | None, as_json: bool, runs: int) -> None:
    """Measure and print."""
    load_compiled()
    rows = zoo(runs)
    tables = {"zoo": rows, "means over the zoo": means(rows)}
    if data is not None:
        max_load(
            Placement.of(read_profile(data / "dnn-partitioning/throughput-inputs/LayerGraphs/bert24_training.json"))
        )
        tables |= {
            "pipelines": pipelines(data, runs),
            "balance": balance(data),
            "placements": placements(data, runs),
            "latency": samples(data),
        }
    if not as_json:
        show(tables)
    host = {"machine": platform.machine(), "python": platform.python_version()}
    print(json.dumps({"host": host, **tables}))


if __name__ == "__main__":
    main()
