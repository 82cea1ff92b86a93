"""Two ranks that share one GPU: every operator of first light trains as torch does, and what a task costs.

    python benchmarks/gpu_ranks.py [--json FILE]          starts both ranks on CUDA; says so where there is no GPU
    python benchmarks/gpu_ranks.py --transport nccl       the same on two GPUs, with exchanges that are calls of NCCL
    maniple run --device null --nodes 2 benchmarks/gpu_ranks.py       a rehearsal on null devices

Each network is trained under several plans; losses and parameters are compared with torch's on the CPU in float64. The
cost per task is that of replays of a trace of empty tasks, a chain on each GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import maniple as mp
from maniple.process import environment
from maniple.runtime.control.world import World, current
from maniple.runtime.devices.cuda_device import why_no_cuda
from maniple.runtime.transports.fabric import Call

STEPS, BATCH, CLASSES = 5, 8, 5
TOLERANCE = 1e-9  # of float64; |a - b| <= TOLERANCE * max(1, max|b|)
PLANS = ("data_parallel", "model_parallel", "spatial", "random")
TASKS, REPLAYS = 200, 50


@mp.task
def nothing(x: mp.ReadWrite) -> None:
    """Leave everything as it is."""


@nothing.variant("cuda")
def nothing_on_gpu(x: torch.Tensor) -> None:
    """Leave everything as it is."""


def network() -> mp.Graph:
    """Every operator of first light."""
    g = mp.Graph("first light")
    x, y = g.input("x", (BATCH, 2, 12, 12), "float64"), g.input("y", (BATCH,), dtype="int64")
    h = g.relu(g.conv2d(x, 6, kernel_size=3, padding=1))
    h = g.max_pool2d(g.add(g.conv2d(h, 6, kernel_size=3, padding=1), h), kernel_size=2)
    h = g.avg_pool2d(h, kernel_size=3, stride=1, padding=1)
    h = g.linear(g.reshape(h, (BATCH, 6, 36)), 10)
    g.loss(g.cross_entropy(g.linear(g.flatten(h), CLASSES), y))
    return g


def by_torch(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The same network's logits."""
    h = F.conv2d(x, p["conv2d.weight"], p["conv2d.bias"], padding=1).relu()
    h = F.max_pool2d(F.conv2d(h, p["conv2d_1.weight"], p["conv2d_1.bias"], padding=1) + h, 2)
    h = F.avg_pool2d(h, 3, 1, 1).reshape(BATCH, 6, 36)
    h = F.linear(h, p["linear.weight"], p["linear.bias"])
    return F.linear(h.flatten(1), p["linear_1.weight"], p["linear_1.bias"])


def batches() -> list[dict[str, torch.Tensor]]:
    """The steps' batches, the same on every rank."""
    made = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(BATCH, 2, 12, 12, generator=made, dtype=torch.float64),
            "y": torch.randint(0, CLASSES, (BATCH,), generator=made),
        }
        for _ in range(STEPS)
    ]


def error_of(strategy: str) -> float:
    """The largest difference from torch's losses and parameters, relative to the largest value where that is over 1."""
    graph, machine = network(), mp.Machine.detect()
    plan = mp.search(graph, machine, strategy=strategy, seed=1)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.05, momentum=0.9)) as trainer:
        theirs = {name: value.clone().requires_grad_() for name, value in trainer.parameters().items()}
        descent = torch.optim.SGD(theirs.values(), lr=0.05, momentum=0.9)
        worst = 0.0
        for batch in batches():
            descent.zero_grad()
            loss = F.cross_entropy(by_torch(theirs, batch["x"]), batch["y"])
            loss.backward()
            descent.step()
            worst = max(worst, abs(trainer.step(**batch) - loss.item()))
        for name, value in trainer.parameters().items():
            scale = max(1.0, float(theirs[name].detach().abs().max()))
            worst = max(worst, float((value - theirs[name].detach()).abs().max()) / scale)
    return worst


def cost_per_task_us() -> float:
    """Microseconds that a task of a replay costs, on each GPU, the median over replays."""
    ranks = mp.world().size
    region = mp.region((ranks,), name="chain")
    mp.fill(region, 0.0)
    blocks = mp.blocks((ranks,))
    for _ in range(2):
        with mp.trace("chain"):
            for _ in range(TASKS):
                mp.index_launch(nothing, blocks.colors, region[blocks])
    mp.fence()
    times = []
    for _ in range(REPLAYS):
        begun = time.perf_counter()
        mp.trace("chain").replay()
        mp.fence()
        times.append(1e6 * (time.perf_counter() - begun) / TASKS)
    return statistics.median(times)


def exchanges_of(world: World) -> list[Call] | None:
    """The calls that this rank begins from now on, of its transport's fabric; None where it has none."""
    fabric = None if world.transport is None else world.transport.fabric
    if fabric is None:
        return None
    begun, begin = list[Call](), fabric.begin

    def note(call: Call, row: torch.Tensor, ended: Callable[[], None]) -> None:
        begun.append(call)
        begin(call, row, ended)

    fabric.begin = note  # type: ignore[method-assign]
    return begun


def why_no_nccl() -> str:
    """Say why exchanges cannot be calls of NCCL here; "" where they can."""
    if not torch.distributed.is_nccl_available():
        return "this torch has no NCCL"
    count = torch.cuda.device_count()
    return f"it takes two GPUs, one for each rank, and there is {count}" if count < 2 else ""


def measure(told: Path | None) -> int:
    """Check and measure on this rank; rank 0 prints. Returns the exit status."""
    world = current()
    begun = exchanges_of(world)
    errors = {strategy: error_of(strategy) for strategy in PLANS}
    cost = cost_per_task_us()
    right = all(error <= TOLERANCE for error in errors.values()) and (begun is None or bool(begun))
    if world.rank == 0:
        name = torch.cuda.get_device_name() if world.device == "cuda" else "null devices"
        print(f"{world.size} ranks on {name}: {cost:.1f} us a task")
        for strategy, error in errors.items():
            print(f"  {strategy:16s} largest error {error:.1e}   {'right' if error <= TOLERANCE else 'WRONG'}")
        if begun is not None:
            print(f"  {len(begun)} exchanges were calls of a fabric: {dict(Counter(call.kind for call in begun))}")
        found = {"device": name, "ranks": world.size, "task_us": cost, "errors": errors, "right": right}
        if begun is not None:
            found["calls"] = dict(Counter(call.kind for call in begun))
        if told is not None:
            told.write_text(json.dumps(found), encoding="utf-8")
    return 0 if right else 1


def main() -> int:
    """Run as a rank; or start two, where there is a GPU for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--transport", default=None, help="of tiles, or nccl")
    given = parser.parse_args()
    if environment.read() is not None:
        if current().device == "cpu":
            raise SystemExit("error: these ranks are CPUs; run it with --device cuda, or null to rehearse")
        return measure(given.json)
    if not torch.cuda.is_available():
        reason = why_no_cuda()
        print(f"no GPU: {reason}; nothing was measured")
        return 0
    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.run import run

    if given.transport == "nccl" and (reason := why_no_nccl()):
        print(f"exchanges by NCCL were skipped: {reason}")
        return 0
    transport = {} if given.transport is None else {"transport": given.transport}
    arguments = () if given.json is None else ("--json", str(given.json.absolute()))
    return run(LaunchRequest((__file__, *arguments), nodes=2, device="cuda", **transport))


if __name__ == "__main__":
    raise SystemExit(main())
