"""Balanced stages, recorded: what each rule without a flush keeps, has in flight, and waits for.

    python benchmarks/balanced_stages.py              prints the table of what is counted
    python benchmarks/balanced_stages.py --bubble     times the steady state, too: on an idle machine
    python benchmarks/balanced_stages.py --write      puts it into docs/explanation/pipelines.md

Four ranks, threads of one process that share memory, with a stage each: a linear layer, and a body that takes as long
forward as backward, which is slept, so that stages are balanced on however few cores. Versions are places that were
allocated for a weight; micro-batches in flight are counted in the recording, at each stage forward begun less backward
ended; the bubble is what of the steady state no such body runs in, the mean of all stages.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from page_table import write_table
from torch import Tensor

import maniple as mp
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.pipeline_order.version_rule import RULES, predicted
from maniple.operators.rules.rule import Rule, Shape
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.recording import record

if TYPE_CHECKING:
    from maniple.operators.operator.operator import TileContext
    from maniple.runtime.observe.timeline import Span, Timeline

STAGES, STEPS, WIDTH, BODY_S = 4, 16, 8, 0.015
NAMES = ("latest", "stash", "vertical_sync", "2bw", "spectrain", "nesterov")
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "pipelines.md"
BEGIN, END = "<!-- benchmarks/balanced_stages.py: begin -->", "<!-- benchmarks/balanced_stages.py: end -->"


class Slept(torch.autograd.Function):
    """What it is given, after some time, both ways; forward that is made again for its gradient takes none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """After some time."""
        if not ctx.needs_input_grad[0]:
            time.sleep(BODY_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]  # noqa: ARG004  (torch's signature)
        """After some time."""
        time.sleep(BODY_S)
        return gradient


@dataclass(frozen=True, slots=True)
class Lasting(TorchOperator):
    """Gives what it is given, after some time."""

    name: ClassVar[str] = "lasting"

    @property
    def is_recordable(self) -> bool:
        """Its time is no call of torch's."""
        return False

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """Elements alone."""
        return Rule.parse("b n -> b n")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See above."""
        (x,) = operands
        return Slept.apply(x)  # type: ignore[no-untyped-call, no-any-return]


def network(stages: int, batch: int) -> tuple[mp.Graph, list[list[str]]]:
    """A chain of stages, and the operators of each."""
    g = mp.Graph("balanced")
    h, y, ends = g.input("x", (batch, WIDTH)), g.input("y", (batch,), "int64"), [0]
    for stage in range(stages):
        h = g.apply(Lasting(), (g.linear(h, WIDTH),))[0]
        if stage == stages - 1:
            g.loss(g.cross_entropy(h, y))
        ends.append(len(g.nodes))
    names = [node.name for node in g.nodes]
    return g, [names[first:last] for first, last in pairwise(ends)]


def given(batch: int) -> Iterator[dict[str, Tensor]]:
    """Mini-batches; what is in them takes no time."""
    for _ in range(STEPS):
        yield {"x": torch.ones(batch, WIDTH), "y": torch.zeros(batch, dtype=torch.int64)}


def train(world: World, rule: str, parts: int) -> int:
    """Train on the ranks of a world, a stage each; gives how many places this one's has for its weight."""
    from spectrain import planned

    batch = 2 * parts
    graph, stages = network(world.size, batch)
    plan = planned(graph, stages, mp.Machine.preset(f"cpu:{world.size}x1"), rule, parts)
    weight = f"{stages[world.rank][0]}.weight"
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.01, momentum=0.9), seed=1, world=world) as trainer:
        list(trainer.run(given(batch)))
        rings = [ring for ring in trainer.schedule.rings if ring.memory == world.rank]
        return max((len(ring.regions) for ring in rings if ring.regions[0].name == weight), default=1)


def bodies(timeline: Timeline, rank: int) -> list[Span]:
    """The slept bodies of a rank, in order."""
    found = [span for span in timeline.spans if span.rank == rank and span.name.startswith("lasting")]
    # In ramp and drain rows have nothing to do, and are there.
    ran = [span for span in found if span.category == "task" and span.end_ns - span.start_ns > BODY_S * 1e9 / 2]
    return sorted(ran, key=lambda span: span.start_ns)


def in_flight(spans: list[Span]) -> int:
    """Most micro-batches that a stage has had forward of and not backward."""
    most = now = 0
    for span in spans:
        now += 1 if ".forward" in span.name else -1
        most = max(most, now)
    return most


def bubble(spans: list[Span], count: int) -> float:
    """What of the runs in which all bodies run none of them runs in."""
    runs = Counter(span.item[0] for span in spans)
    full = [run for run, found in sorted(runs.items()) if found == count]
    starts = {run: min(span.start_ns for span in spans if span.item[0] == run) for run in full[1:]}
    first, last = min(starts), max(starts)
    busy = sum(span.end_ns - span.start_ns for span in spans if first <= span.item[0] < last)
    return 1.0 - busy / (starts[last] - starts[first])


def row(name: str, *, timed: bool) -> str:
    """A row of the table, with the bubble where it is timed."""
    rule = RULES.get(name) or predicted(name)
    parts = STAGES if rule.adds else 1

    def body(world: World) -> tuple[int, Timeline]:
        with record(RankRuntime.of(world), 1 << 16) as recording:
            places = train(world, name, parts)
        return places, recording.timeline

    found = mp.testing.run_on_worlds(mp.testing.local_worlds(STAGES, shared=True), body, 120.0)
    places = [own for own, _ in found]
    lanes = [bodies(found[0][1], rank) for rank in range(STAGES)]
    flight = [in_flight(lane) for lane in lanes]
    published = [rule.versions(stage, STAGES) for stage in range(STAGES)]
    cells = [f"`{name}`", *(" ".join(map(str, each)) for each in (places, published, flight, range(STAGES, 0, -1)))]
    if timed:
        empty = 100.0 * sum(bubble(lane, 2 * parts) for lane in lanes) / STAGES
        cells += [f"{empty:.1f}", "0"]
    return "| " + " | ".join(cells) + " |"


def table(*, timed: bool) -> Iterator[str]:
    """The table, a row as soon as it is found."""
    head = "| rule | versions | published | in flight | published |" + " bubble % | published % |" * timed
    yield from (head, "|---" * (head.count("|") - 1) + "|")
    for name in NAMES:
        yield row(name, timed=timed)


def main() -> int:
    """Print it, or put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument("--bubble", action="store_true", help="time the steady state")
    asked, lines = parser.parse_args(), []
    for line in table(timed=asked.bubble):
        print(line, flush=True)
        lines.append(line)
    if asked.write:
        write_table(PAGE, BEGIN, END, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
