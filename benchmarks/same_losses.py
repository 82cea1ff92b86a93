"""One GPT under many plans: the losses of steps 1 and 10, to all digits that agree, and the bytes that each plan moved.

    python benchmarks/same_losses.py                  runs all worlds, and prints the table in Markdown
    python benchmarks/same_losses.py --json           prints one JSON object
    python benchmarks/same_losses.py --into FILE...   also writes the table between the marks of these pages

Every plan begins with the same parameters and sees the same ten batches; float32, SGD with momentum. Each world (1 to 4
processors, on one node and on two) is started by the launcher, with real processes. Plain torch trains the same module,
in float64, in the last row. Digits agree where all values, rounded to as many decimal places, are equal.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite, prod
from pathlib import Path

import click
import torch

import maniple as mp
from maniple.operators.graph.node import Node
from maniple.operators.rules.configuration import OperatorPlan
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.strategy import Problem
from maniple.zoo.gpt import GPT

BATCH = 16
SIZES = {"words": 256, "steps": 64, "width": 64, "heads": 4, "layers": 2}
STEPS = 10
LEARNING_RATE, MOMENTUM = 1.0, 0.9
MARKS = ("<!-- begin: benchmarks/same_losses.py -->", "<!-- end: benchmarks/same_losses.py -->")
DECIMALS = 7  # float32 has about seven

Degrees = dict[str, int]  # by role of a factor: sample, attribute, parameter, reduction

# Degrees by role, and replicas, for a number of processors.
ROLES: dict[str, Callable[[int], tuple[Degrees, int]]] = {
    "whole": lambda _: ({}, 1),
    "data": lambda count: ({"sample": count}, 1),
    "parameter": lambda count: ({"parameter": count}, 1),
    "attribute": lambda count: ({"attribute": count}, 1),
    "reduction": lambda count: ({"reduction": count}, 1),
    "uneven": lambda count: ({"sample": count + 1}, 1),
    "uneven, in turn": lambda _: ({"sample": 3}, 1),
    "replicated": lambda count: ({"sample": count // 2}, 2),
    "mixed": lambda count: ({"sample": 2, "parameter": count // 2}, 1),
    "mixed, inside samples": lambda count: ({"attribute": 2, "reduction": count // 2}, 1),
}
# The plans of each world (nodes, processes of a node, processors of a process).
WORLDS: dict[tuple[int, int, int], tuple[str, ...]] = {
    (1, 1, 1): ("whole", "uneven, in turn: 3 parts of the samples"),
    (1, 2, 1): (
        "data: samples in 2",
        "parameter: features in 2",
        "attribute: positions and heads in 2",
        "reduction: sums in 2 parts",
        "operator placement: whole operators",
        "replicated: each task twice",
    ),
    (2, 1, 1): (
        "data: samples in 2",
        "parameter: features in 2",
        "mixed in turn: samples, positions, sums, features",
        "uneven: samples in 3",
        "random: seed 2",
    ),
    (1, 3, 1): (
        "data: samples in 3",
        "attribute: positions in 3",
        "reduction: sums in 3 parts",
        "random: seed 3",
    ),
    (1, 4, 1): (
        "data: samples in 4",
        "mixed: samples in 2, features in 2",
        "mixed, inside samples: positions in 2, sums in 2",
        "replicated: each task twice, samples in 2",
        "operator placement: whole operators",
    ),
    (2, 1, 2): (
        "data: samples in 4",
        "mixed: samples in 2, features in 2",
        "mixed, inside samples: positions in 2, sums in 2",
        "mixed, the expert's: features of dense layers",
        "uneven: samples in 5",
        "random: seed 4",
    ),
}


@dataclass(frozen=True)
class Run:
    """What a plan did in a world.

    Args:
        nodes: nodes of the world.
        processors: processors over all nodes.
        plan: what the plan is called.
        losses: the loss of every step.
        moved: bytes that left a memory in the last step, as measured.
    """

    nodes: int
    processors: int
    plan: str
    losses: list[float]
    moved: int


def configured(graph: mp.Graph, node: Node, degrees: Degrees, replicas: int, count: int) -> OperatorPlan:
    """The operator with the wanted degree on its first factor of each role that can be cut so often, else by sample."""
    factors = graph.bound(node).factors
    cut = dict.fromkeys((factor.name for factor in factors), 1)
    for role, degree in degrees.items():
        of_role = [f for f in factors if f.role == role and f.highest_degree >= degree and cut[f.name] == 1]
        by_sample = [f for f in factors if f.role == "sample" and f.highest_degree >= degree * cut[f.name]]
        for factor in (of_role or by_sample)[:1]:
            cut[factor.name] *= degree
    tasks = prod(cut.values()) * replicas
    return OperatorPlan(tuple(cut.items()), tuple(task % count for task in range(tasks)), replicas)


def by_roles(graph: mp.Graph, machine: mp.Machine, degrees: Degrees, replicas: int = 1) -> mp.Plan:
    """The plan that cuts every operator alike, as far as its rule allows."""
    count = len(machine.processors)
    plans = tuple((node.name, configured(graph, node, degrees, replicas, count)) for node in graph.nodes)
    return complete(Problem(graph, machine), "by roles", plans)


def alternating(graph: mp.Graph, machine: mp.Machine) -> mp.Plan:
    """The plan in which neighbouring operators are cut by sample, by attribute and by reduction in turn."""
    count = len(machine.processors)
    turns: tuple[Degrees, ...] = ({"sample": count}, {"attribute": count}, {"reduction": count}, {"parameter": count})
    plans = tuple(
        (node.name, configured(graph, node, turns[number % len(turns)], 1, count))
        for number, node in enumerate(graph.nodes)
    )
    return complete(Problem(graph, machine), "alternating", plans)


def plan_of(name: str, graph: mp.Graph, machine: mp.Machine) -> mp.Plan:
    """The plan of a name in `WORLDS`; its first word is its kind."""
    count = len(machine.processors)
    kind = name.partition(":")[0]
    if kind in {"operator placement", "mixed, the expert's", "random"}:
        strategy = {"operator placement": "model_parallel", "random": "random"}.get(kind, "expert")
        return mp.search(graph, machine, strategy=strategy, seed=count)
    if kind == "mixed in turn":
        return alternating(graph, machine)
    return by_roles(graph, machine, *ROLES[kind](count))


def batches() -> list[dict[str, torch.Tensor]]:
    """Ten batches of random words, each followed by the word that a fixed rule gives; the same everywhere."""
    generator = torch.Generator().manual_seed(20261123)
    drawn = [torch.randint(0, SIZES["words"], (BATCH, SIZES["steps"]), generator=generator) for _ in range(STEPS)]
    return [{"tokens": tokens, "following": (7 * tokens + 3) % SIZES["words"]} for tokens in drawn]


def trained(graph: mp.Graph, plan: mp.Plan, name: str) -> Run:
    """Train ten steps under a plan, in the world of this process."""
    world = mp.world()
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=LEARNING_RATE, momentum=MOMENTUM)) as trainer:
        losses = [trainer.step(**batch) for batch in batches()]
        moved = trainer.bytes()
        count = world.size * world.processors
    if moved["predicted"] != moved["measured"]:
        raise SystemExit(f"{name}: predicted {moved['predicted']:,} bytes, and {moved['measured']:,} were measured")
    return Run(world.nodes, count, name, losses, moved["measured"])


def module() -> GPT:
    """The network, with the initial embedding of GPT-2: normal of deviation 0.02."""
    torch.manual_seed(0)
    found = GPT(**SIZES, dropout=0.0)
    with torch.no_grad():
        found.embedding.weight.mul_(0.02)
    return found


def in_this_world(target: Path) -> None:
    """What every rank of a launched world runs: each of its plans in turn; rank 0 writes the runs."""
    world = mp.world()
    graph = mp.from_torch(module(), batches()[0], name="gpt")
    machine = mp.Machine.detect()
    names = WORLDS[world.nodes, world.ranks_per_node, world.processors]
    runs = [trained(graph, plan_of(name, graph, machine), name) for name in names]
    if world.rank == 0:
        target.write_text(json.dumps([asdict(run) for run in runs]), encoding="utf-8")


def launched(nodes: int, ranks: int, processors: int) -> list[Run]:
    """Start a world, and read what its rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "runs.json"
        shape = {"--nodes": nodes, "--ranks-per-node": ranks, "--processors": processors, "--cores": 1}
        options = [text for option, value in shape.items() for text in (option, str(value))]
        command = [sys.executable, "-m", "maniple.cli", "run", *options, __file__, "--rank", str(target)]
        subprocess.run(command, check=True)
        return [Run(**entry) for entry in json.loads(target.read_text(encoding="utf-8"))]


def by_torch() -> list[float]:
    """The losses of plain torch in float64, from the same parameters."""
    network = module().double()
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = network(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def agreeing(values: list[float]) -> str:
    """The value to all decimal places to which every one of the values rounds alike."""
    if not all(map(isfinite, values)):
        raise SystemExit(f"a loss is no number: {values}")
    for places in range(DECIMALS, -1, -1):
        rounded = {f"{value:.{places}f}" for value in values}
        if len(rounded) == 1:
            return rounded.pop()
    return f"from {min(values):.{DECIMALS}f} to {max(values):.{DECIMALS}f}"


def table(runs: list[Run], reference: list[float]) -> str:
    """The table in Markdown, with a sentence of what it says."""
    first, last = agreeing([run.losses[0] for run in runs]), agreeing([run.losses[-1] for run in runs])
    apart = max(abs(run.losses[-1] - reference[-1]) for run in runs)
    lines = [
        f"| {len(runs)} plans of one GPT | processors | nodes | loss, step 1 | loss, step {STEPS} | bytes in a step |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {run.plan} | {run.processors} | {run.nodes} | {first} | {last} | {run.moved:,} |" for run in runs]
    lines.append(f"| torch, float64 | 1 | 1 | {reference[0]:.7f} | {reference[-1]:.7f} | |")
    shape = ", ".join(f"{name} {size}" for name, size in SIZES.items())
    caption = (
        f"GPT of {shape}; batch {BATCH}, float32, SGD of rate {LEARNING_RATE} with momentum {MOMENTUM}. Losses are\n"
        f"printed to all digits in which the plans agree; step {STEPS} is at most {apart:.1e} from torch in float64."
    )
    return "\n".join([*lines, "", caption])


def write_between(page: Path, text: str) -> None:
    """Put a text between the marks of a page."""
    whole = page.read_text(encoding="utf-8")
    head, mark, rest = whole.partition(MARKS[0])
    _, closing, tail = rest.partition(MARKS[1])
    if not mark or not closing:
        raise SystemExit(f"{page}: expected the marks {MARKS[0]} and {MARKS[1]}")
    page.write_text(f"{head}{mark}\n{text}\n{closing}{tail}", encoding="utf-8")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--world", "worlds", multiple=True, type=int, nargs=3, help="only these: nodes, processes, processors")
@click.option("--into", multiple=True, type=click.Path(path_type=Path, exists=True), help="pages to write it into")
@click.option("--rank", type=click.Path(path_type=Path), hidden=True, help="run as a rank of a world, and write there")
def main(*, as_json: bool, worlds: tuple[tuple[int, int, int], ...], into: tuple[Path, ...], rank: Path | None) -> None:
    """Train under every plan and print the table."""
    if rank is not None:
        in_this_world(rank)
        return
    runs = [run for world in worlds or WORLDS for run in launched(*world)]
    reference = by_torch()
    if as_json:
        print(json.dumps({"runs": [asdict(run) for run in runs], "torch": reference}))
        return
    text = table(runs, reference)
    print(text)
    for page in into:
        write_between(page, text)


if __name__ == "__main__":
    main()
