"""Models that nothing here was tuned for, imported, checked against torch in float64 and raced beside its eager mode.

    python benchmarks/outside_models.py                     all; writes the table into docs/performance.md
    python benchmarks/outside_models.py --print unet        some, and prints their rows alone

Each is imported by `mp.from_torch` and trained on one processor of one core. Numbers first: losses of three steps in
float64, dropout left out, beside plain torch's. Then sides take turns in one process of one thread, in float32 and with
dropout, and the figures are medians over rounds; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import click
import torch
from page_table import write_table
from torch import Tensor, nn
from training import torch_modes
from training.outside_models import OUTSIDE, Outside

import maniple as mp
from maniple.runtime.control.world import World

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/outside_models.py: begin -->", "<!-- benchmarks/outside_models.py: end -->"
HEAD = (
    "| model | samples | operators | opaque | losses apart, float64 | torch, ms a step | torch, fused | Maniple "
    "| of torch's best |\n|---|---|---|---|---|---|---|---|---|"
)
CHECKED_STEPS, CHECKED_SAMPLES = 3, 4
RATE = 0.01


def without_dropout(module: nn.Module) -> nn.Module:
    """The module, in which nothing is dropped: each side draws masks of its own."""
    for each in module.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
        if isinstance(each, nn.RNNBase):
            each.dropout = 0.0
    return module


def trainer_of(module: nn.Module, x: Tensor, y: Tensor) -> tuple[mp.Graph, mp.Trainer]:
    """What trains a module here, on one processor of one core."""
    graph = mp.from_torch(module, (x, y))
    plan = mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")
    return graph, mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE, momentum=0.9), world=World.solo(cores=1))


def losses_apart(model: Outside) -> float:
    """The most by which losses of some steps in float64 differ from torch's, of torch's."""
    x, y = model.data(CHECKED_SAMPLES)
    x = x.double() if x.is_floating_point() else x
    step = torch_modes.descend(
        judge := without_dropout(model.module().double()), torch_modes.make_optimizer(judge, "sgd"), x, y
    )
    wanted = [step() for _ in range(CHECKED_STEPS)]
    _, trainer = trainer_of(without_dropout(model.module().double()), x, y)
    with trainer:
        found = [trainer.step(x, y) for _ in range(CHECKED_STEPS)]
    return max(abs(ours - loss) / abs(loss) for ours, loss in zip(found, wanted, strict=True))


def row_of(name: str, samples: int, rounds: int, seconds: float) -> str:
    """Check and race one model."""
    model = OUTSIDE[name]
    apart = losses_apart(model)
    x, y = model.data(samples)
    graph, trainer = trainer_of(model.module(), x, y)
    sides: dict[str, torch_modes.Step] = {}
    for side, fused in (("torch", False), ("torch, fused", True)):
        module = model.module()
        sides[side] = torch_modes.descend(module, torch_modes.make_optimizer(module, "sgd", fused=fused), x, y)
    with trainer:
        sides["Maniple"] = lambda: trainer.step(x, y)
        times = torch_modes.race_of(sides, rounds, seconds, lambda number: number)
    medians = {side: statistics.median(values) for side, values in times.items()}
    best = min(("torch", "torch, fused"), key=medians.__getitem__)
    ratio = statistics.median(a / b for a, b in zip(times[best], times["Maniple"], strict=True))
    taken = " | ".join(f"{medians[side]:.2f}" for side in sides)
    return f"| {name} | {samples} | {len(graph.nodes)} | {len(graph.opaque)} | {apart:.0e} | {taken} | {ratio:.2f} |"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*OUTSIDE]))
@click.option("--samples", default=0, help="samples of a step; by default the model's own number")
@click.option("--rounds", default=7, show_default=True, help="figures are medians over them")
@click.option("--seconds", default=1.0, show_default=True, help="how long a turn takes at least")
@click.option("--print", "alone", is_flag=True, help="print the rows and leave the page as it is")
def main(names: tuple[str, ...], samples: int, rounds: int, seconds: float, *, alone: bool) -> None:
    """Measure, and write the table between its marks on the page."""
    torch.set_num_threads(1)
    lines = [HEAD]
    print(HEAD)
    for name in names or OUTSIDE:
        lines.append(row_of(name, samples or OUTSIDE[name].batch, rounds, seconds))
        print(lines[-1], flush=True)
    if not alone and not names:
        write_table(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
