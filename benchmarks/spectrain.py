"""SpecTrain's experiment: what versions of weights do to losses, and what such pipelines save.

    python benchmarks/spectrain.py train OUT.jsonl            every run that OUT lacks; the same command goes on
    python benchmarks/spectrain.py train OUT.jsonl --table    prints what OUT has, mean and spread over seeds
    python benchmarks/spectrain.py train OUT.jsonl --write    puts that into docs/explanation/pipelines.md
    python benchmarks/spectrain.py speed [--machine pcie]     prints the simulated table; nothing is timed

`train` has two tasks, from what is at hand: scikit-learn's digits, and the next byte of the text of Python's standard
library. Their networks are rows of residual blocks, a stage each. All runs of a task and a rate have the same batches
and first weights by seed; under 2bw a mini-batch is cut into as many micro-batches as there are stages. All stages are
lanes of one process, which take turns in one thread: the rows, versions and predictions of a run are those of as many
processors, and what it takes is no figure. `benchmarks/spectrain_results.jsonl` has the runs that were made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import torch
from page_table import write_table
from pipeline_speed_ups import cluster

import maniple as mp
from maniple.models import model
from maniple.process.error import RequestError, RunError
from maniple.runtime.execution.rank import RankRuntime
from maniple.strategies.flow.spectrain import SpecTrain
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation

BATCH, WIDTH, CONTEXT, TEXT_BYTES = 32, 32, 16, 2_000_000
SYNCHRONOUS = "synchronous"
RULES = (SYNCHRONOUS, "latest", "stash", "2bw", "spectrain", "nesterov")
PUBLISHED = RULES[:5]
"""At every depth; the other predictors, and AdamW, at `MIDDLE` stages with `FEW` seeds."""
MIDDLE, FEW = 8, 3
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "pipelines.md"
BEGIN, END = "<!-- benchmarks/spectrain.py: begin -->", "<!-- benchmarks/spectrain.py: end -->"
DEPTHS, SEEDS, STEPS = (4, 8, 16), 5, {"digits": 500, "text": 600}
RATES = (0.003, 0.01)
"""The lower one first; of stale gradients with momentum 0.9 higher ones diverge at 16 stages."""
MODELS = ("vgg16", "resnet152", "inception_v4", "snn", "transformer", "residual_lstm")
"""SpecTrain's six."""

Batches = list[dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Run:
    """A run of training.

    Args:
        data: the task.
        stages: how many.
        rule: which versions of weights are read; or that there is a flush.
        optimizer: ``sgd`` with momentum, or ``adamw``.
        lr: the rate.
        seed: of weights and batches.
        steps: mini-batches.
    """

    data: str
    stages: int
    rule: str
    optimizer: str
    lr: float
    seed: int
    steps: int


def wanted(datas: list[str], depths: list[int], rules: list[str], seeds: int, steps: int | None) -> Iterator[Run]:
    """All runs: the rules by descent with momentum, and at 8 stages other predictors and AdamW with fewer seeds.

    Seed by seed, so that a file that ends early compares all rules at all depths.
    """
    for seed, stages, data in product(range(seeds), depths, datas):
        count, few = steps or STEPS[data], stages == MIDDLE and seed < FEW
        for lr, rule in product(RATES, rules):
            if rule in PUBLISHED or few:
                yield Run(data, stages, rule, "sgd", lr, seed, count)
        yield from (Run(data, stages, rule, "adamw", 1e-3, seed, count) for rule in rules if few)


@cache
def samples(data: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Inputs and labels to train on, those to test on, and the number of classes; always in the same order."""
    order = torch.Generator().manual_seed(0)
    if data == "digits":
        from sklearn.datasets import load_digits

        pixels, digits = load_digits(return_X_y=True)
        x, y, classes = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits), 10
    else:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[:TEXT_BYTES]
        codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        windows = codes.unfold(0, CONTEXT + 1, 7)
        x, y, classes = windows[:, :CONTEXT], windows[:, CONTEXT], 256
    shuffled = torch.randperm(len(y), generator=order)
    held = 10 * BATCH
    rest, test = shuffled[held:], shuffled[:held]
    return x[rest], y[rest].long(), x[test], y[test].long(), classes


def network(data: str, stages: int) -> tuple[mp.Graph, list[list[str]]]:
    """A row of residual blocks, and the operators of each stage: a block each, the last with the loss besides."""
    classes = samples(data)[-1]
    g = mp.Graph(f"{data} in {stages} stages")
    if data == "digits":
        h = g.linear(g.input("x", (BATCH, 64)), WIDTH)
    else:
        h = g.linear(g.flatten(g.embedding(g.input("x", (BATCH, CONTEXT), "int64"), 256, 8)), WIDTH)
    labels = g.input("labels", (BATCH,), "int64")
    ends = []
    for stage in range(stages):
        h = g.relu(h)
        h = g.add(g.linear(g.relu(g.linear(h, WIDTH)), WIDTH), h)
        if stage == stages - 1:
            h = g.linear(h, classes)
            g.output("scores", h)
            g.loss(g.cross_entropy(h, labels))
        ends.append(len(g.nodes))
    names = [node.name for node in g.nodes]
    return g, [names[first:last] for first, last in zip([0, *ends], ends, strict=False)]


def planned(graph: mp.Graph, stages: list[list[str]], machine: mp.Machine, rule: str, parts: int = 0) -> mp.Plan:
    """Stage i on processor i, without a flush by a rule; or each mini-batch by itself."""
    place = {name: number for number, own in enumerate(stages) for name in own}
    operators = tuple((node.name, whole(graph, node, place[node.name])) for node in graph.nodes)
    plan = complete(Problem(graph, machine), "by hand", operators)
    if rule == SYNCHRONOUS:
        return plan
    parts = (parts or len(stages)) if rule == "2bw" else 1
    return replace(
        plan.with_pipeline(stages, order="asynchronous", micro_batches=parts), semantics=(("weights", rule),)
    )


def train(run: Run) -> dict[str, object]:
    """Train; gives the mean loss of the last tenth and the accuracy on what was held back, None if it diverged."""
    x, y, test_x, test_y, _ = samples(run.data)
    graph, stages = network(run.data, run.stages)
    (world,) = mp.testing.local_worlds(1, processors=run.stages, stepped=True)
    chance = torch.Generator().manual_seed(run.seed)
    optimizer = mp.SGD(lr=run.lr, momentum=0.9) if run.optimizer == "sgd" else mp.optim.AdamW(lr=run.lr)
    plan = planned(graph, stages, mp.Machine.preset(f"cpu:1x{run.stages}"), run.rule)

    def given() -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(run.steps):
            picked = torch.randint(len(y), (BATCH,), generator=chance)
            yield {"x": x[picked], "labels": y[picked]}

    def program() -> tuple[list[float], float]:
        with mp.Trainer(graph, plan, optimizer=optimizer, seed=run.seed, world=world) as trainer:
            losses = list(trainer.run(given()))
            hits = 0
            for first in range(0, len(test_y), BATCH):
                scores = trainer.evaluate(x=test_x[first : first + BATCH])["scores"]
                hits += int((scores.argmax(1) == test_y[first : first + BATCH]).sum())
            return losses, hits / len(test_y)

    begun = time.perf_counter()
    found: dict[str, float | None] = {"loss": None, "accuracy": None}
    try:
        losses, accuracy = program()
    except RunError as error:
        if "is NaN" not in str(error):
            raise
    else:
        found = {"loss": statistics.fmean(losses[-max(1, run.steps // 10) :]), "accuracy": accuracy}
    finally:
        RankRuntime.of(world).close()
    return {**asdict(run), **found, "seconds": time.perf_counter() - begun}


def done(place: Path) -> dict[Run, dict[str, object]]:
    """The runs that a file has; a line that was cut off is none."""
    found: dict[Run, dict[str, object]] = {}
    fields = Run.__dataclass_fields__
    for line in place.read_text().splitlines() if place.exists() else []:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        found[Run(**{name: told[name] for name in fields})] = told
    return found


def table(found: dict[Run, dict[str, object]]) -> str:
    """Mean and spread (standard deviation) over seeds of losses and accuracies, a column for each rule."""
    every = set(wanted(sorted(STEPS), list(DEPTHS), list(RULES), SEEDS, None))
    made = len(every & found.keys())
    lines = [f"{made} of the {len(every)} runs were made, and {len(found) - made} others.", ""]
    lines += ["| task | stages | optimizer | rate | steps | | " + " | ".join(RULES) + " |"]
    lines += ["|---" * (6 + len(RULES)) + "|"]
    groups: dict[Run, dict[str, list[dict[str, object]]]] = {}
    for run, told in found.items():
        groups.setdefault(replace(run, seed=0, rule=""), {}).setdefault(run.rule, []).append(told)
    for run in sorted(groups, key=lambda one: (one.data, one.stages, one.optimizer, one.lr, one.steps)):
        for what, scale in (("loss", 1.0), ("accuracy", 100.0)):
            cells = [run.data, str(run.stages), run.optimizer, f"{run.lr:g}", str(run.steps)]
            cells.append("loss" if scale == 1.0 else "accuracy %")
            cells += [_spread(groups[run].get(rule, []), what, scale) for rule in RULES]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(told: list[dict[str, object]], what: str, scale: float) -> str:
    """Mean and standard deviation of the runs that did not diverge, how many there are, and how many did."""
    values = [scale * float(str(one[what])) for one in told if one[what] is not None]
    if not told:
        return ""
    diverged = f", {len(told) - len(values)} diverged" if len(values) < len(told) else ""
    digits = 3 if scale == 1.0 else 1
    found = f"{statistics.fmean(values):.{digits}f} " if values else ""
    found += f"± {statistics.stdev(values):.{digits}f} " if len(values) > 1 else ""
    return f"{found}({len(told)}{diverged})"


def speed(machine: mp.Machine, names: list[str]) -> Iterator[str]:
    """Rows of what SpecTrain's models take as its pipelines, and by data parallelism, both simulated."""
    yield "| model | stages | pipeline ms | ramp ms | data parallel ms | speed-up | MB | data parallel MB | less by |"
    yield "|---" * 9 + "|"
    for name in names:
        graph = model(name)
        local = any("batch_norm" in node.operator.name for node in graph.nodes)
        semantics = {"weights": "spectrain"} | ({"batch_norm": "local_stats"} if local else {})
        try:
            plan = mp.search(graph, machine, strategy=SpecTrain.name, semantics=semantics)
        except RequestError as error:
            yield f"| {name} | refused: {str(error).splitlines()[0]} |" + " |" * 7
            continue
        flow = Simulation(graph, machine, plan).predict()
        same = tuple((key, value) for key, value in plan.semantics if key != "weights")
        copies = Simulation(graph, machine, replace(DataParallel().plan(Problem(graph, machine)), semantics=same))
        cells = [name, len(plan.stages), f"{flow.step_ns / 1e6:.2f}", f"{flow.ramp_ns / 1e6:.2f}"]
        cells += [f"{copies.makespan_ns / 1e6:.2f}", f"{copies.makespan_ns / flow.step_ns:.2f}"]
        cells += [f"{flow.bytes / 1e6:.1f}", f"{copies.bytes / 1e6:.1f}", f"{copies.bytes / max(1, flow.bytes):.1f}"]
        yield "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    """Run what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("out", type=Path)
    training.add_argument("--data", nargs="+", choices=sorted(STEPS), default=sorted(STEPS))
    training.add_argument("--stages", nargs="+", type=int, default=list(DEPTHS))
    training.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    training.add_argument("--seeds", type=int, default=SEEDS)
    training.add_argument("--steps", type=int, help="of each run; by default as many as the task has")
    training.add_argument("--table", action="store_true", help="print what there is, and run nothing")
    training.add_argument("--write", action="store_true", help="put what there is into the page, and run nothing")
    simulated = commands.add_parser("speed")
    simulated.add_argument("--machine", default="p100x4", help="a preset, or four V100s joined by pcie or ethernet")
    simulated.add_argument("--models", nargs="+", default=list(MODELS))
    given = parser.parse_args()
    if given.command == "speed":
        joined = given.machine in {"pcie", "ethernet"}
        machine = cluster(given.machine, 4) if joined else mp.Machine.preset(given.machine)
        for line in speed(machine, given.models):
            print(line, flush=True)
        return 0
    found = done(given.out)
    runs = () if given.table or given.write else wanted(given.data, given.stages, given.rules, given.seeds, given.steps)
    for run in runs:
        if run not in found:
            found[run] = train(run)
            with given.out.open("a") as file:
                file.write(json.dumps(found[run]) + "\n")
    print(table(found))
    if given.write:
        write_table(PAGE, BEGIN, END, table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
