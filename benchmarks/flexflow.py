"""FlexFlow's figures on simulated clusters: bytes moved, plans against named ones, search time, dimensions.

    python benchmarks/flexflow.py transfers --budget 300         figure 1: bytes of NMT on 64 K80
    python benchmarks/flexflow.py plans --machine p100x16        figure 2: found plans against named ones
    python benchmarks/flexflow.py search-time --devices 4        figure 3: seconds to the plan of a plain chain
    python benchmarks/flexflow.py optimality                     figure 4: found plans against the best ones
    maniple run --nodes 2 --cores 1 benchmarks/flexflow.py measured          figure 5: plans run here
    python benchmarks/flexflow.py dimensions                     figure 6: what each dimension is good for

Each prints a table and one JSON object; `--json` leaves out the table. Every plan of a table is simulated alike.
Batches are 64 samples for each GPU, 256 for AlexNet. (Z. Jia, M. Zaharia, A. Aiken, Beyond Data and Model Parallelism
for Deep Neural Networks, SysML 2019.)
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import click
from batch import batch_of

import maniple as mp
from maniple.driver import search
from maniple.models import model
from maniple.operators.graph import Graph
from maniple.operators.plan import Plan
from maniple.runtime.machine import Machine
from maniple.runtime.world import current
from maniple.strategies.data_parallel import DataParallel
from maniple.strategies.placement import complete
from maniple.strategies.simulation.prediction import Prediction
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.chain import Chain, advance
from maniple.strategies.soap.evaluation import UNFIT, Evaluation
from maniple.strategies.soap.soap import TEMPERATURE
from maniple.strategies.space import Choice, OperatorSpace, Space
from maniple.strategies.strategy import Problem, Progress

Row = dict[str, object]

MODELS = ("alexnet", "resnet101", "inception_v3", "rnntc", "rnnlm", "nmt")
PUBLISHED_BYTES = {"data_parallel": 65.8e9, "expert": 24.2e9, "soap": 12.1e9}
# Seconds with delta simulation, by devices (the paper's table 4 as it is remembered; two of its entries are verified).
PUBLISHED_S = {
    4: (0.04, 0.4, 4.1, 7.5, 9.2, 16.0),
    16: (0.48, 7.3, 77.0, 170.0, 121.0, 328.0),
    64: (5.9, 158.0, 1278.0, 1489.0, 969.0, 2190.0),
}
WARM_UP = 2


def graph_for(name: str, machine: Machine, batch: int | None) -> Graph:
    """Build a model with a batch of so many samples in all; None: with the published batch for each GPU."""
    return model(name, batch=batch or (256 if name == "alexnet" else 64) * len(machine.processors))


def roomy(name: str) -> Machine:
    """Build a preset whose memories hold anything, as the published search knows no memory."""
    machine = Machine.preset(name)
    return replace(machine, memories=tuple(replace(memory, capacity_bytes=1 << 50) for memory in machine.memories))


def named(strategy: str, graph: Graph, machine: Machine) -> Plan:
    """Write down the plan of a strategy that needs no budget."""
    return search(graph, machine, strategy=strategy)


def predicted(graph: Graph, machine: Machine, plan: Plan) -> Prediction:
    """Simulate a plan from nothing."""
    return Simulation(graph, machine, plan).predict()


def fits(machine: Machine, found: Prediction) -> bool:
    """Tell whether every memory holds what it has to."""
    return all(need <= held.capacity_bytes for need, held in zip(found.memory_bytes, machine.memories, strict=True))


def transfers_row(name: str, graph: Graph, machine: Machine, plan: Plan, seconds: float) -> Row:
    """What a plan moves, and by which kind of movement."""
    found = predicted(graph, machine, plan)
    published = PUBLISHED_BYTES.get(name)
    return {
        "plan": name,
        "bytes_gb": found.bytes / 1e9,
        "published_gb": published / 1e9 if published else None,
        "over_published": found.bytes / published - 1 if published else None,
        "step_ms": found.step_ns / 1e6,
        "peak_gb": max(found.memory_bytes) / 1e9,
        "fits": fits(machine, found),
        "search_s": seconds,
    }


def show(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print rows as a Markdown table and as JSON."""
    if not as_json and rows:
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        for row in rows:
            print("| " + " | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    print(json.dumps(rows))


@click.group()
def main() -> None:
    """Reproduce a figure."""


machine_option = click.option("--machine", "machine_name", default="k80x64", show_default=True, help="A preset.")
budget_option = click.option("--budget", default=60.0, show_default=True, help="Seconds of a search.")
batch_option = click.option(
    "--batch", type=click.IntRange(min=1), help="Samples in all; by default 64 a GPU, AlexNet 256."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the JSON object alone.")


@main.command()
@click.option("--model", "name", default="nmt", show_default=True)
@machine_option
@batch_option
@budget_option
@json_option
def transfers(name: str, machine_name: str, batch: int | None, budget: float, *, as_json: bool) -> None:
    """Figure 1: the bytes of an iteration under data parallelism, the expert's plan and the found one."""
    machine = Machine.preset(machine_name)
    graph = graph_for(name, machine, batch)
    strategies = ("data_parallel", "expert", "model_parallel")
    rows = [transfers_row(s, graph, machine, named(s, graph, machine), 0.0) for s in strategies]
    if budget > 0:
        begun = time.perf_counter()
        plan = search(graph, machine, strategy="soap", budget=budget)
        rows.append(transfers_row("soap", graph, machine, plan, time.perf_counter() - begun))
    show(rows, as_json=as_json)


@main.command()
@click.option("--model", "names", multiple=True, default=MODELS, help="Which models; may be given several times.")
@click.option("--strategy", "searches", multiple=True, default=("optcnn", "soap"), help="Which searches.")
@machine_option
@batch_option
@budget_option
@json_option
def plans(
    names: Sequence[str], searches: Sequence[str], machine_name: str, batch: int | None, budget: float, *, as_json: bool
) -> None:
    """Figure 2: found plans against data parallelism and the expert's plan, whatever memory they take."""
    machine, rows = roomy(machine_name), []
    for name in names:
        graph = graph_for(name, machine, batch)
        steps = {s: predicted(graph, machine, named(s, graph, machine)) for s in ("data_parallel", "expert")}
        for strategy in searches:
            steps[strategy] = predicted(graph, machine, search(graph, machine, strategy=strategy, budget=budget))
        usual = min(steps[s].step_ns for s in ("data_parallel", "expert"))
        row: Row = {"model": name, "machine": machine_name}
        row |= {f"{s}_ms": found.step_ns / 1e6 for s, found in steps.items()}
        row |= {f"{s}_speed_up": usual / steps[s].step_ns for s in searches}
        row |= {f"{s}_gb": found.bytes / 1e9 for s, found in steps.items()}
        rows.append(row)
    show(rows, as_json=as_json)


# -- search time ------------------------------------------------------------------------------------------------------


def plain_chain(graph: Graph, machine: Machine, proposals: int) -> tuple[float, float]:
    """Run the published search: one chain from data parallelism that redraws operators; give its best and seconds."""
    space = Space.of(graph, len(machine.processors))
    plan = DataParallel().plan(Problem(graph, machine))
    choices = tuple(own.choice(plan.operator(name)) for name, own in zip(space.names, space.operators, strict=True))
    start = tuple(choice for choice in choices if choice is not None)
    evaluation = Evaluation(Simulation(graph, machine, plan), space, start)
    begun = time.perf_counter()
    chain = Chain.at(start, evaluation.cost, 0)
    for _ in range(proposals):
        chain = advance(chain, space, evaluation, TEMPERATURE, min(chain.best_cost, UNFIT))
    return chain.best_cost, time.perf_counter() - begun


def seconds_to(graph: Graph, machine: Machine, cost: float, seed: int, budget: float) -> float:
    """Give the seconds until a search has a plan that costs no more; infinite where the budget ends first."""
    reached = math.inf

    def watch(progress: Progress, elapsed_s: float) -> None:
        nonlocal reached
        if progress.best_s is not None and progress.best_s <= cost and math.isinf(reached):
            reached = elapsed_s
            raise KeyboardInterrupt  # the driver keeps the best plan

    search(graph, machine, strategy="soap", budget=budget, seed=seed, watch=watch)
    return reached


@main.command()
@click.option("--model", "names", multiple=True, default=MODELS)
@click.option("--devices", multiple=True, type=int, default=(4, 16, 64))
@click.option("--proposals", default=250_000, show_default=True, help="Of the plain chain.")
@click.option("--seeds", default=5, show_default=True)
@batch_option
@budget_option
@json_option
def search_time(
    names: Sequence[str],
    devices: Sequence[int],
    proposals: int,
    seeds: int,
    batch: int | None,
    budget: float,
    *,
    as_json: bool,
) -> None:
    """Figure 3: the seconds until a search is as good as a plain chain in the end; run it twice for a warm cache."""
    rows: list[Row] = []
    for name, count in product(names, devices):
        machine = Machine.preset(f"k80x{count}")
        graph = graph_for(name, machine, batch)
        cost, plain_s = plain_chain(graph, machine, proposals)
        found = [seconds_to(graph, machine, cost, seed, budget) for seed in range(seeds)]
        published = PUBLISHED_S[count][MODELS.index(name)] if count in PUBLISHED_S and name in MODELS else math.nan
        rows.append(
            {
                "model": name,
                "devices": count,
                "plain_ms": cost * 1e3,
                "plain_s": plain_s,
                "median_s": statistics.median(found),
                "allowed_s": max(1.0, published / 50),
            }
        )
    show(rows, as_json=as_json)


@main.command()
@click.option("--machine", "machine_name", default="p100x4", show_default=True, help="A preset.")
@budget_option
@json_option
def optimality(machine_name: str, budget: float, *, as_json: bool) -> None:
    """Figure 4: `soap` and `optcnn` against `exhaustive` on LeNet and an RNNLM of two steps."""
    machine, rows = Machine.preset(machine_name), []
    for name, graph in (("lenet", model("lenet")), ("rnnlm", model("rnnlm", steps=2, chunk=1))):
        row: Row = {"model": name, "machine": machine_name}
        for strategy in ("exhaustive_layers", "optcnn", "soap"):
            begun = time.perf_counter()
            plan = search(graph, machine, strategy=strategy, budget=budget)
            row[f"{strategy}_ms"] = predicted(graph, machine, plan).step_ns / 1e6
            row[f"{strategy}_s"] = time.perf_counter() - begun
            row[f"{strategy}_says"] = str(dict(dict(plan.explanation).get("", ())).get("search", ""))
        rows.append(row)
    show(rows, as_json=as_json)


# -- measured plans ---------------------------------------------------------------------------------------------------

SIZES: dict[str, dict[str, int]] = {
    "vgg16": {"batch": 32, "image": 32, "classes": 10},
    "gpt": {"batch": 8, "words": 1000, "steps": 64, "width": 128, "heads": 4, "layers": 4},
    "rnnlm": {"batch": 16, "words": 1000, "width": 256, "steps": 16, "chunk": 4},
    "mlp": {"batch": 64},
    "resnet18": {"batch": 16, "image": 32, "classes": 10},
}
"""Sizes of which a step takes about a tenth of a second on a core."""
RIVALS = ("data_parallel", "model_parallel", "expert", "spatial", "antichain", "bapipe", "optcnn")


def step_seconds(graph: Graph, plan: Plan, steps: int) -> list[float]:
    """Train under a plan and give the seconds of each step after the first two, each waited for."""
    batch, found = batch_of(graph), []
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.01, momentum=0.9)) as trainer:
        for step in range(WARM_UP + steps):
            begun = time.perf_counter()
            trainer.step(**batch)
            if step >= WARM_UP:
                found.append(time.perf_counter() - begun)
    return found


@main.command()
@click.option("--model", "names", multiple=True, default=tuple(SIZES))
@click.option("--machine", "machine_file", type=click.Path(exists=True), help="What `maniple calibrate -o` wrote.")
@click.option("--steps", default=5, show_default=True, help="Of a plan in a round.")
@click.option("--rounds", default=5, show_default=True, help="Through all plans of a model.")
@budget_option
@json_option
def measured(
    names: Sequence[str], machine_file: str | None, steps: int, rounds: int, budget: float, *, as_json: bool
) -> None:
    """Figure 5: the found plan and every named one, run in turn on the processors that this was launched on."""
    machine = Machine.detect() if machine_file is None else Machine.load(machine_file)
    rows: list[Row] = []
    for name in names:
        graph = model(name, **SIZES[name])
        found = {s: search(graph, machine, strategy=s, budget=budget) for s in (*RIVALS, "soap")}
        seconds: dict[str, list[float]] = {strategy: [] for strategy in found}
        for _ in range(rounds):
            for strategy, plan in found.items():
                seconds[strategy] += step_seconds(graph, plan, steps)
        middle = {strategy: statistics.median(times) for strategy, times in seconds.items()}
        row: Row = {"model": name, "soap_over_fastest": middle["soap"] / min(middle[s] for s in RIVALS)}
        rows.append(row | {f"{strategy}_ms": 1e3 * value for strategy, value in middle.items()})
    if current().rank == 0:
        show(rows, as_json=as_json)


# -- dimensions -------------------------------------------------------------------------------------------------------


def samples() -> Graph:
    """Two linear layers over very many samples: their weights are nothing beside them."""
    g = mp.Graph("samples")
    x, y = g.input("x", (65536, 256)), g.input("y", (65536,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 256)), 16), y))
    return g


def operators() -> Graph:
    """Two branches of large weights for few samples: cutting either moves more than running them side by side."""
    g = mp.Graph("operators")
    x, y = g.input("x", (8, 512)), g.input("y", (8,), dtype="int64")
    left, right = (g.linear(g.linear(x, 4096), 64) for _ in range(2))
    g.loss(g.cross_entropy(g.add(left, right), y))
    return g


def attributes() -> Graph:
    """Two convolutions over one large image, with more channels than the image has."""
    g = mp.Graph("attributes")
    x, y = g.input("x", (1, 3, 512, 512)), g.input("y", (1,), dtype="int64")
    h = g.conv2d(x, out_channels=64, kernel_size=3, padding=1)
    h = g.max_pool2d(g.conv2d(h, out_channels=64, kernel_size=3, padding=1), kernel_size=128)
    g.loss(g.cross_entropy(g.linear(g.flatten(h), 10), y))
    return g


def parameters() -> Graph:
    """A choice among very many words for few samples."""
    g = mp.Graph("parameters")
    x, y = g.input("x", (64, 512)), g.input("y", (64,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(x, 65536), y))
    return g


def reductions() -> Graph:
    """A wide hidden layer between narrow ones, whose second layer adds up over it."""
    g = mp.Graph("reductions")
    x, y = g.input("x", (256, 64)), g.input("y", (256,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 65536)), 8), y))
    return g


EXAMPLES: dict[str, Callable[[], Graph]] = {
    "sample": samples,
    "operator": operators,
    "attribute": attributes,
    "parameter": parameters,
    "reduction": reductions,
}


def without(space: OperatorSpace, dimension: str, choices: Sequence[Choice]) -> Iterator[Choice]:
    """Leave out the choices that use a dimension.

    Without the operator dimension every operator runs on the first processors.
    """
    for choice in choices:
        roles = {
            "reduction" if factor.reduction else factor.role
            for factor, degree in zip(space.factors, choice.degrees, strict=True)
            if degree > 1
        }
        if dimension == "operator" and (choice.start, choice.stride) != (0, 1):
            continue
        if dimension not in roles:
            yield choice


def best_plan(graph: Graph, machine: Machine, dimension: str | None) -> tuple[float, Plan, int]:
    """Simulate all plans, or all without one dimension; give the best one's seconds, itself, and their number.

    The processors are alike, so the first operator begins at the first one.
    """
    space = Space.of(graph, len(machine.processors))
    sets = [
        list(own.choices() if dimension is None else without(own, dimension, own.choices())) for own in space.operators
    ]
    sets[0] = [choice for choice in sets[0] if choice.start == 0]
    start = tuple(choices[0] for choices in sets)
    chosen = zip(space.names, space.operators, start, strict=True)
    plan = complete(Problem(graph, machine), "start", tuple((name, own.plan(choice)) for name, own, choice in chosen))
    evaluation = Evaluation(Simulation(graph, machine, plan), space, start)
    best, found, count = evaluation.cost, start, 0
    for choices in product(*sets):
        count += 1
        cost = evaluation.move_to(choices)
        if cost < best:
            best, found = cost, choices
    evaluation.move_to(found)
    return best, evaluation.plan(), count


@main.command()
@click.option("--machine", "machine_name", default="p100x2", show_default=True, help="A preset, of alike processors.")
@budget_option
@json_option
def dimensions(machine_name: str, budget: float, *, as_json: bool) -> None:
    """Figure 6: the found plan against the best of all plans without one dimension."""
    machine, rows = Machine.preset(machine_name), []
    for dimension, make in EXAMPLES.items():
        graph = make()
        found = search(graph, machine, strategy="soap", budget=budget)
        mine = predicted(graph, machine, found).step_ns / 1e6
        best, _, count = best_plan(graph, machine, dimension)
        rows.append(
            {
                "dimension": dimension,
                "found_ms": mine,
                "best_without_ms": best * 1e3,
                "speed_up": best * 1e3 / mine,
                "plans_without": count,
                "found": ", ".join(f"{name} {row.split()} {list(row.processors)}" for name, row in found.operators),
            }
        )
    show(rows, as_json=as_json)


if __name__ == "__main__":
    main()
