"""A LeNet-like network learns handwritten digits: one program for one process or for many nodes.

    python examples/digits.py
    maniple run --nodes 2 examples/digits.py
    maniple run --nodes 2 examples/digits.py --strategy spatial

Every rank runs this file. The losses do not depend on how many there are, nor on the strategy, up to the rounding of
re-ordered float32 sums.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import maniple as mp
from maniple.models import digits_cnn

BATCH = 64
TEST_IMAGES = 360


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) scaled to 0..1 and labels (n,), for training and for testing."""

    images: torch.Tensor
    labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_digits(seed: int) -> Digits:
    """Load scikit-learn's 1,797 images, shuffled by the seed."""
    try:
        from sklearn import datasets
    except ImportError:
        sys.exit("this example needs scikit-learn: pip install scikit-learn")
    data, target = datasets.load_digits(return_X_y=True)
    images = torch.tensor(data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[:-TEST_IMAGES], order[-TEST_IMAGES:]
    return Digits(images[train], labels[train], images[test], labels[test])


def show(plan: mp.Plan, console: Console) -> None:
    """Print the plan: for each operator how it is cut and where its tasks run."""
    table = Table("operator", "degrees", "replicas", "processors", title=f"plan: {plan.strategy}")
    for row in plan.table():
        table.add_row(*row)
    console.print(table)


def accuracy(trainer: mp.Trainer, digits: Digits) -> float:
    """Give the share of test images that the network names right."""
    right = 0
    for start in range(0, len(digits.test_labels), BATCH):
        logits = trainer.evaluate(x=digits.test_images[start : start + BATCH])["logits"]
        right += int((logits.argmax(1) == digits.test_labels[start : start + BATCH]).sum())
    return right / len(digits.test_labels)


def batches(digits: Digits, seed: int, epoch: int) -> list[dict[str, torch.Tensor]]:
    """Cut one epoch into batches, shuffled by seed and epoch; the last one is smaller."""
    order = torch.randperm(len(digits.labels), generator=torch.Generator().manual_seed(1000 * seed + epoch))
    return [{"x": digits.images[part], "y": digits.labels[part]} for part in order.split(BATCH)]


@click.command()
@click.option("--strategy", default="data_parallel", show_default=True, help="how to find the plan")
@click.option("--plan", "plan_file", type=click.Path(), help="run this saved plan instead")
@click.option("--save-plan", type=click.Path(), help="write the plan to this file")
@click.option("--epochs", default=20, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--losses", type=click.Path(), help="write every step's loss to this file, one per line")
@click.option("--timeline", default="digits-timeline.json", show_default=True, type=click.Path())
def main(
    strategy: str,
    plan_file: str | None,
    save_plan: str | None,
    epochs: int,
    seed: int,
    losses: str | None,
    timeline: str,
) -> None:
    """Train on the digits and report the test accuracy."""
    for path in (timeline, losses, save_plan):
        if path and not Path(path).absolute().parent.is_dir():
            raise click.BadParameter(f"the folder of {path} does not exist")
    console = Console()
    digits = load_digits(seed)
    graph = digits_cnn(BATCH)
    machine = mp.Machine.detect()
    plan = mp.Plan.load(plan_file) if plan_file else mp.search(graph, machine, strategy=strategy, seed=seed)
    first = mp.world().rank == 0
    if save_plan and first:
        plan.save(save_plan)
    show(plan, console)
    begun = time.perf_counter()
    history: list[float] = []
    epoch_column, state_column = TextColumn("epoch {task.fields[epoch]}"), TextColumn("{task.fields[state]}")
    columns = (epoch_column, BarColumn(), MofNCompleteColumn(), state_column)
    with (
        mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.03, momentum=0.9), seed=seed) as trainer,
        Progress(*columns, console=console) as progress,
    ):
        steps = epochs * len(batches(digits, seed, 0))
        task = progress.add_task("", total=steps, epoch=0, state="")
        for epoch in range(epochs):
            for loss in trainer.run(batches(digits, seed, epoch)):
                history.append(loss)
                progress.update(task, advance=1, epoch=epoch + 1)
            share = accuracy(trainer, digits)
            progress.update(task, state=f"loss {history[-1]:.4f}, accuracy {100 * share:.1f} %")
        trainer.step(**batches(digits, seed, epochs)[0])
        record = trainer.timeline()
        moved = trainer.total_bytes()
    if first:
        record.save(timeline)
        if losses:
            Path(losses).write_text("".join(f"{loss!r}\n" for loss in history))
    seconds = time.perf_counter() - begun
    console.print(f"test accuracy {100 * share:.1f} %, {seconds:.1f} s, {moved / 1e6:.1f} MB moved", highlight=False)


if __name__ == "__main__":
    main()
