"""What two ranks take of memory with AdamW: each stage of ZeRO, and torch's DDP and FSDP2, measured in the same way.

    python benchmarks/sharded_memory.py                 measures all, and writes the table into docs/performance.md
    python benchmarks/sharded_memory.py --print         prints it, and leaves the page as it is
    python benchmarks/sharded_memory.py --print --layers 4 --width 256        a trial

Each side is two processes of one core of the same launcher, torch's over Gloo, which first train a small network of the
same kind. Then they make the network and train STEPS steps; told is the larger rank's peak of the resident set above
what it had before (`maniple.runtime.observe.peak`). Layers are equal, so a stage's closed form is easily read off:

    P bytes of parameters    values    AdamW's state    gradients        beside these, of the layers in use
    ZeRO 0                   P         2 P              as they come     values and gradients
    ZeRO 1 and 2             P         2 P / 2          as they come
    ZeRO 3                   P / 2     2 P / 2          as they come
    DDP                      P         2 P              P, buckets P     DDP as_view: no buckets of their own
    FSDP2                    P / 2     2 P / 2          P / 2

Nothing is timed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import maniple as mp
from maniple.runtime.observe.peak import measure_peak

STEPS, BATCH, RANKS = 4, 16, 2
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/sharded_memory.py: begin -->", "<!-- benchmarks/sharded_memory.py: end -->"
MIB = 1 << 20
STAGES = tuple(f"ZeRO {stage}" for stage in range(4))
PEERS = ("torch, DDP", "torch, DDP as_view", "torch, FSDP2", "torch, FSDP2 not resharded")
"""DDP with gradients as views of its buckets; FSDP2 that keeps values after forward."""
HEAD = "| side | predicted MiB | measured | / P |\n|---|---|---|---|"


class Deep(nn.Module):
    """Equal layers, and a loss over as many classes as they are wide."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss."""
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.cross_entropy(x, y)


def batch_of(width: int) -> tuple[Tensor, Tensor]:
    """The samples of one rank."""
    chance = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, width, generator=chance), torch.randint(width, (BATCH,), generator=chance)


def by_stage(stage: int, layers: int, width: int) -> dict[str, int]:
    """Train under a stage of ZeRO."""
    x, y = batch_of(width)
    batch = {"x": x.repeat(RANKS, 1), "y": y.repeat(RANKS)}
    with torch.device("meta"):
        graph = mp.from_torch(Deep(layers, width), tuple(value.to("meta") for value in batch.values()))
    machine = mp.Machine.detect()
    plan = mp.search(graph, machine, strategy="data_parallel").with_zero(stage, graph, machine)
    with mp.Trainer(graph, plan, optimizer=mp.optim.AdamW()) as trainer:
        for _ in range(STEPS):
            trainer.step(**batch)
        return max(trainer.memory().values(), key=lambda told: told["measured"])


def by_torch(side: str, layers: int, width: int) -> dict[str, int]:
    """Train under a way of torch's."""
    x, y = batch_of(width)
    with measure_peak() as most:
        module: nn.Module
        module = network = Deep(layers, width)
        if "DDP" in side:
            module = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view="as_view" in side)
        else:
            mesh, kept = init_device_mesh("cpu", (RANKS,)), "not" not in side
            for layer in network.layers:
                fully_shard(layer, mesh=mesh, reshard_after_forward=kept)
            fully_shard(module, mesh=mesh, reshard_after_forward=kept)
        descent = torch.optim.AdamW(module.parameters())
        for _ in range(STEPS):
            descent.zero_grad()
            loss = module(x, y)
            loss.backward()
            descent.step()
            loss.item()
        found = most().total
    return {"measured": max(int(told) for told in mp.world().control.gather(str(found).encode()))}


def be(side: str, layers: int, width: int, port: int) -> dict[str, int]:
    """Be a rank of one side: a small network first, then the network."""
    torch.set_num_threads(1)
    if side in STAGES:
        by_stage(int(side[-1]), 2, 64)
        return by_stage(int(side[-1]), layers, width)
    world = mp.world()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=world.rank, world_size=world.size)
    by_torch(side, 2, 64)
    found = by_torch(side, layers, width)
    dist.destroy_process_group()
    return found


def measured(side: str, layers: int, width: int) -> dict[str, int]:
    """Start the ranks of a side and read what they found."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port, target = free.getsockname()[1], Path(folder) / "found.json"
        free.close()
        own = [__file__, "--side", side, "--target", str(target), "--port", str(port)]
        launch = ["-m", "maniple.cli", "run", "--nodes", str(RANKS), "--cores", "1"]
        sizes = ["--layers", str(layers), "--width", str(width)]
        subprocess.run([sys.executable, *launch, *own, *sizes], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, int] = json.loads(target.read_text())
        return found


@click.command()
@click.option("--layers", default=16, help="of the network")
@click.option("--width", default=1024, help="of each layer")
@click.option("--print", "alone", is_flag=True, help="print the table and leave the page as it is")
@click.option("--side", hidden=True, help="be a rank of one side")
@click.option("--target", hidden=True, help="where that tells what it found")
@click.option("--port", default=0, hidden=True, help="where torch's ranks meet")
def main(layers: int, width: int, side: str | None, target: str, port: int, *, alone: bool) -> None:
    """Measure, and write the table between its marks on the page."""
    if side is not None:
        found = be(side, layers, width, port)
        if mp.world().rank == 0:
            Path(target).write_text(json.dumps(found))
        return
    parameters = 4 * layers * (width * width + width)
    lines = [f"P is {parameters / MIB:,.1f} MiB: {layers} layers of {width} x {width}.", "", HEAD]
    print("\n".join(lines))
    for each in (*STAGES, *PEERS):
        told = measured(each, layers, width)
        predicted = f"{told['predicted'] / MIB:,.0f}" if "predicted" in told else ""
        row = f"| {each} | {predicted} | {told['measured'] / MIB:,.0f} | {told['measured'] / parameters:.2f} |"
        print(row, flush=True)
        lines.append(row)
    if not alone:
        before, rest = PAGE.read_text().split(BEGIN)
        _, after = rest.split(END)
        table = "\n".join(lines)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


if __name__ == "__main__":
    main()
