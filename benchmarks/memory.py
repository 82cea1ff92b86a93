"""What a training takes of memory: predicted before its first step, measured, and plain torch measured in the same way.

    python benchmarks/memory.py                  measures all models, and writes the table into docs/performance.md
    python benchmarks/memory.py --print MODEL    measures some, and prints their rows alone

Each side of each model is a process of its own, on one core, which first trains a small model of the same kind, so that
what is imported and compiled counts for neither. Then it makes the model, trains STEPS steps by gradient descent with
momentum, and tells the peak of its resident set above what it had before (`maniple.runtime.observe.peak`). Two ranks
are two processes that the launcher starts, of which the larger is told. Weights are made, not copied, by both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
import torch
import torch.nn.functional as F
from page_table import write_table
from torch import Tensor, nn

import maniple as mp
from maniple.process.error import RunError
from maniple.runtime.observe.peak import measure_peak

STEPS = 4
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/memory.py: begin -->", "<!-- benchmarks/memory.py: end -->"
MIB = 1 << 20


class Perceptron(nn.Module):
    """A wide perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [784, *[width] * 3]
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 10))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss."""
        return F.cross_entropy(self.layers(x), y)


class Convolutions(nn.Module):
    """The convolutions of VGG-11, with or without batch norms, and one linear layer."""

    def __init__(self, width: int, *, norms: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for size in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0):
            if size:
                layers += [nn.Conv2d(before, size * width, 3, padding=1)]
                layers += [nn.BatchNorm2d(size * width)] if norms else []
                layers += [nn.ReLU()]
                before = size * width
            else:
                layers += [nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * 4, 10))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss."""
        return F.cross_entropy(self.layers(x), y)


class Encoder(nn.Module):
    """Transformer encoder layers over words."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(4096, width)
        made = [nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(layers)]
        self.layers = nn.Sequential(*made)
        self.head = nn.Linear(width, 4096)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss."""
        return F.cross_entropy(self.head(self.layers(self.words(x))).flatten(0, 1), y.flatten())


class Recurrent(nn.Module):
    """Two layers of LSTM over words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(4096, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, 4096)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss."""
        return F.cross_entropy(self.head(self.lstm(self.words(x))[0]).flatten(0, 1), y.flatten())


Inputs = tuple[tuple[int, ...], tuple[int, ...]]


class Case(NamedTuple):
    """A model.

    Args:
        make: makes it, or a small one of its kind.
        inputs: the shapes of its inputs.
        words: whether the first input is of words.
    """

    make: Callable[[bool], nn.Module]
    inputs: Inputs
    words: bool = False


CASES = {
    "perceptron": Case(lambda small: Perceptron(64 if small else 4096), ((256, 784), (256,))),
    "convolutions": Case(lambda small: Convolutions(4 if small else 64, norms=False), ((32, 3, 64, 64), (32,))),
    "convolutions, batch norms": Case(
        lambda small: Convolutions(4 if small else 64, norms=True), ((32, 3, 64, 64), (32,))
    ),
    "encoder": Case(lambda small: Encoder(64 if small else 512, 1 if small else 4), ((8, 128), (8, 128)), words=True),
    "recurrent": Case(lambda small: Recurrent(64 if small else 1024), ((16, 32), (16, 32)), words=True),
}
RANKS = {name: (1, 2) if name in {"perceptron", "encoder"} else (1,) for name in CASES}


def batch_of(case: Case) -> tuple[Tensor, Tensor]:
    """Make one batch."""
    chance = torch.Generator().manual_seed(0)
    first, second = case.inputs
    x = torch.randint(0, 10, first, generator=chance) if case.words else torch.rand(first, generator=chance)
    return x, torch.randint(0, 10, second, generator=chance)


def in_torch(case: Case, *, small: bool) -> dict[str, int]:
    """Train in torch."""
    x, y = batch_of(case)
    with measure_peak() as most:
        module = case.make(small)
        descent = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        for _ in range(STEPS):
            descent.zero_grad()
            loss = module(x, y)
            loss.backward()
            descent.step()
            loss.item()
        return {"measured": most().total}


def in_maniple(case: Case, *, small: bool) -> dict[str, int]:
    """Train the same by data parallelism; the larger rank."""
    with torch.device("meta"):
        graph = mp.from_torch(case.make(small), tuple(value.to("meta") for value in batch_of(case)))
    plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
    batch = dict(zip((tensor.name for tensor in graph.inputs), batch_of(case), strict=True))
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.01, momentum=0.9)) as trainer:
        predicted = trainer.memory()
        for _ in range(STEPS):
            trainer.step(**batch)
        found = trainer.memory()
    if any(found[rank]["predicted"] != told["predicted"] for rank, told in predicted.items()):
        raise RunError(f"predicted before {predicted}, and after the steps {found}")
    return max(found.values(), key=lambda told: told["measured"])


def side(name: str, which: str, target: str) -> None:
    """Be one side of a model: a small one first, then the model."""
    torch.set_num_threads(1)
    train = in_torch if which == "torch" else in_maniple
    train(CASES[name], small=True)
    found = train(CASES[name], small=False)
    if which == "torch" or mp.world().rank == 0:
        Path(target).write_text(json.dumps(found))


def measured(name: str, which: str, ranks: int = 1) -> dict[str, int]:
    """Start a side and read what it found."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "found.json"
        own = [__file__, "--side", which, "--target", str(target), "--print", name]
        launch = ["-m", "maniple.cli", "run", "--nodes", str(ranks), "--cores", "1"] if which == "maniple" else []
        subprocess.run([sys.executable, *launch, *own], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, int] = json.loads(target.read_text())
        return found


def rows(names: list[str]) -> list[str]:
    """Measure models; a row for each number of ranks."""
    lines = []
    for name in names:
        torch_takes = measured(name, "torch")["measured"]
        for ranks in RANKS[name]:
            found = measured(name, "maniple", ranks)
            share = found["measured"] / found["predicted"]
            sizes = (found["predicted"], found["measured"], found["shared"], torch_takes)
            cells = " | ".join(f"{size / MIB:,.0f}" for size in sizes)
            lines.append(f"| {name} | {ranks} | {cells} | {share:.2f} | {found['measured'] / torch_takes:.2f} |")
            print(lines[-1], flush=True)
    return lines


HEAD = (
    "| model | ranks | predicted MiB | measured | of it shared | torch | measured / predicted | / torch |\n"
    "|---|---|---|---|---|---|---|---|"
)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--print", "alone", is_flag=True, help="print the rows and leave the page as it is")
@click.option("--side", "which", type=click.Choice(["torch", "maniple"]), hidden=True, help="be one side")
@click.option("--target", hidden=True, help="where that tells what it found")
def main(names: tuple[str, ...], which: str | None, target: str | None, *, alone: bool) -> None:
    """Measure, and write the table between its marks on the page."""
    if which is not None and target is not None:
        side(names[0], which, target)
        return
    print(HEAD)
    table = "\n".join([HEAD, *rows([*names] or [*CASES])])
    if not alone and not names:
        write_table(PAGE, BEGIN, END, table)


if __name__ == "__main__":
    main()
