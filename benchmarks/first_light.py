"""First light's speed: one processor against plain torch, and two nodes against torch with two threads.

    python benchmarks/first_light.py             prints tables and one JSON object
    python benchmarks/first_light.py --json      prints the JSON object alone

Both sides train the same model on the same batches in one process, in turn, a few steps each, and every figure is the
median over those rounds. torch runs eager mode with torch.optim.SGD, momentum 0.9, once as it comes and once with
`fused=True`; ratios are to the faster of the two. Two nodes are started by the launcher; there rank 0 runs torch's
turns while rank 1 waits. The launcher keeps a rank to its core; in torch's turns rank 0 may use all of them.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F

import maniple as mp
from maniple.models import digits_cnn, mlp
from maniple.runtime.control.world import World

BATCH = 256
NAMED = ("data_parallel", "model_parallel", "expert")
EVERY_CORE = range(os.cpu_count() or 1)
Step = Callable[[], float]


class DigitsCnn(torch.nn.Module):
    """The digits network in torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.Conv2d(16, 32, 3, padding=1)
        self.third, self.fourth = torch.nn.Linear(512, 64), torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the logits."""
        h = F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        return self.fourth(F.relu(self.third(h.flatten(1))))


def torch_mlp() -> torch.nn.Module:
    """The perceptron in torch.nn."""
    layers = [torch.nn.Linear(784, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(2048, 10))


MODELS: dict[str, tuple[Callable[..., mp.Graph], Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "digits_cnn": (digits_cnn, DigitsCnn, (1, 8, 8)),
    "mlp": (mlp, torch_mlp, (784,)),
}


def batch_of(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a batch of random samples and labels, the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, *shape, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)


def torch_step(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, *, fused: bool) -> Step:
    """Bind one training step of torch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, fused=fused)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def rounds(sides: dict[str, Step], count: int, steps: int, begin: Callable[[str], None]) -> dict[str, list[float]]:
    """Time the sides in turn: milliseconds per step, one figure per round; `begin` is called before each turn."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for name, step in sides.items():
        begin(name)
        for _ in range(3):
            step()
    for _ in range(count):
        for name, step in sides.items():
            begin(name)
            step()  # not timed: the first step of a turn finds the other side's data in the caches
            begun = time.perf_counter()
            for _ in range(steps):
                step()
            found[name].append(1e3 * (time.perf_counter() - begun) / steps)
    return found


def summary(times: dict[str, list[float]]) -> dict[str, object]:
    """Medians, and the median over rounds of each ratio to torch's faster side."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    baseline = min((name for name in times if name.startswith("torch")), key=medians.__getitem__)
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, times[baseline], strict=True))
        for name, values in times.items()
    }
    return {"ms_per_step": medians, "baseline": baseline, "ratio_to_baseline": ratios}


def one_processor(name: str, count: int, steps: int) -> dict[str, object]:
    """One processor of one core against torch with one thread."""
    torch.set_num_threads(1)
    make, module, shape = MODELS[name]
    x, y = batch_of(shape)
    graph = make(batch=BATCH)
    machine = mp.Machine.preset("cpu:1")
    plan = mp.search(graph, machine, strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.01, momentum=0.9), world=World.solo(cores=1)) as trainer:
        sides: dict[str, Step] = {
            "torch": torch_step(module(), x, y, fused=False),
            "torch_fused": torch_step(module(), x, y, fused=True),
            "maniple": lambda: trainer.step(x, y),
        }
        return summary(rounds(sides, count, steps, lambda _: None))


def threads() -> list[int]:
    """The numbers of this process's threads."""
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def two_nodes(count: int, steps: int) -> dict[str, object]:
    """What every rank of the launched world runs: named strategies and, on rank 0, torch with two threads."""
    world = mp.world()
    make, module, shape = MODELS["mlp"]
    x, y = batch_of(shape)
    machine = mp.Machine.detect()
    graph = make(batch=BATCH)
    trainers = {
        name: mp.Trainer(graph, mp.search(graph, machine, strategy=name), optimizer=mp.SGD(lr=0.01, momentum=0.9))
        for name in NAMED
    }
    sides: dict[str, Step] = {name: (lambda t=trainer: t.step(x, y)) for name, trainer in trainers.items()}  # type: ignore[misc]
    for fused in (False, True):
        side = "torch_fused" if fused else "torch"
        sides[side] = torch_step(module(), x, y, fused=fused) if world.rank == 0 else lambda: 0.0

    kept = {thread: os.sched_getaffinity(thread) for thread in threads()}

    def begin(side: str) -> None:
        """Have all ranks at one place, and the threads and cores of this process as the side wants them."""
        world.control.gather(b"")
        spread = side.startswith("torch")
        torch.set_num_threads(2 if spread else 1)
        for thread in threads():
            os.sched_setaffinity(thread, EVERY_CORE if spread else kept.get(thread, EVERY_CORE))

    found = rounds(sides, count, steps, begin)
    moved = {name: trainer.bytes() for name, trainer in trainers.items()}
    return {**summary(found), "bytes": moved}


def launched(count: int, steps: int) -> dict[str, object]:
    """Start two nodes of one core that run `two_nodes`, and read what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "pair.json"
        command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--cores", "1", __file__]
        subprocess.run([*command, "--pair", str(target), "--rounds", str(count), "--steps", str(steps)], check=True)
        found: dict[str, object] = json.loads(target.read_text())
        return found


def table(part: dict[str, Any]) -> str:
    """One comparison in Markdown: the faster side of torch's is what the others are compared with."""
    moved = part.get("bytes", {})
    lines = ["| side | ms per step | / faster torch | bytes moved per step |", "|---|---|---|---|"]
    for side, value in part["ms_per_step"].items():
        crossed = f"{moved[side]['measured']:,}" if side in moved else ""
        lines.append(f"| {side} | {value:.2f} | {part['ratio_to_baseline'][side]:.2f} | {crossed} |")
    return "\n".join(lines)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print the JSON object alone")
@click.option("--rounds", "count", default=11, show_default=True, help="rounds; figures are medians over them")
@click.option("--steps", default=10, show_default=True, help="steps of each side in a round")
@click.option("--pair", type=click.Path(), hidden=True, help="run as a rank of the two nodes, and write there")
def main(*, as_json: bool, count: int, steps: int, pair: str | None) -> None:
    """Measure and print."""
    if pair is not None:
        found = two_nodes(count, steps)
        if mp.world().rank == 0:
            Path(pair).write_text(json.dumps(found))
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    results: dict[str, object] = {
        "host": {
            "machine": platform.machine(),
            "cores": cores,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "one_processor": {name: one_processor(name, count, steps) for name in MODELS},
        "two_nodes_mlp": launched(count, steps),
    }
    if not as_json:
        for title, part in (*results["one_processor"].items(), ("mlp, two nodes", results["two_nodes_mlp"])):  # type: ignore[attr-defined]
            print(f"{title}\n\n{table(part)}\n")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
