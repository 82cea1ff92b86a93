"""What ranks take of memory with AdamW: stages of ZeRO against their closed forms, beside torch's DDP and FSDP2.

    python benchmarks/sharded_memory.py                 measures all, and writes the table into docs/performance.md
    python benchmarks/sharded_memory.py --print         prints it, and leaves the page as it is
    python benchmarks/sharded_memory.py --print --layers 4 --width 256        a trial

Each side is processes of one core of the same launcher, torch's over Gloo, which first train a small network of the
same kind. Then they make the network and train STEPS steps. Told of the rank that has most are

    allocated    the storage that the memory's allocator gave out and that is referred to, after the steps: instances
                 lie in it at places that were settled before the first
    resident     the peak of the resident set above what it had before (`maniple.runtime.observe.peak`)

With P bytes of parameters and layers of l bytes, p ranks, and gradients that are added up over two micro-batches:

    stage       values    AdamW's state    sums of gradients    of the layers in use
    ZeRO 1      P         2 P / p          P                    2 l
    ZeRO 2      P         2 P / p          P / p                4 l
    ZeRO 3      P / p     2 P / p          P / p                2.5 l
    ZeRO 3      P / p     2 P / p          none: not cut        2 l
    one rank    P         2 P              P, or none: not cut  none, or l
    DDP         P         2 P              P, buckets P         DDP as_view: no buckets of their own
    FSDP2       P / 2     2 P / 2          P / 2

Every side has what layers give forward, b x width for each of a micro-batch's b samples of a rank: a weight's gradient
is made of it, so whoever does not compute it again keeps it.

Where gradients are not added up, how many of them are on their way at once in stages 0 to 2 follows from how long tasks
take, and there is no closed form. Nothing is timed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import click
import torch
import torch.distributed as dist
import torch.nn.functional as F
from page_table import write_table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import maniple as mp
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.observe.peak import measure_peak

STEPS, BATCH = 4, 16
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/sharded_memory.py: begin -->", "<!-- benchmarks/sharded_memory.py: end -->"
MIB = 1 << 20
PEERS = ("torch, DDP", "torch, DDP as_view", "torch, FSDP2", "torch, FSDP2 not resharded")
"""DDP with gradients as views of its buckets; FSDP2 that keeps values after forward."""
HEAD = (
    "| side | ranks | micro-batches | closed form MiB | allocated | / closed form | resident | / P |\n"
    + "|---" * 8
    + "|"
)
IN_USE = {(1, 2): 2.0, (2, 2): 4.0, (3, 2): 2.5, (3, 1): 2.0}
"""By stage and micro-batches, so many layers' values and gradients are in use at once."""


class Side(NamedTuple):
    """What is measured.

    Args:
        name: ``ZeRO`` and the stage, or one of `PEERS`.
        ranks: how many processes.
        micro_batches: over how many gradients are added up.
    """

    name: str
    ranks: int = 2
    micro_batches: int = 1

    @property
    def stage(self) -> int | None:
        """Of ZeRO; None of torch's."""
        return int(self.name[-1]) if self.name.startswith("ZeRO") else None


SIDES = (
    *(Side(f"ZeRO {stage}", ranks, parts) for ranks in (1, 2, 4) for stage, parts in ((1, 2), (2, 2), (3, 2), (3, 1))),
    *(Side(f"ZeRO {stage}") for stage in range(3)),
    *map(Side, PEERS),
)


def closed_form(layers: int, width: int, side: Side) -> float | None:
    """The bytes of a memory, of equal layers of some width; None where there is no closed form."""
    stage, ranks, added = side.stage, side.ranks, side.micro_batches > 1
    if stage is None or (stage, side.micro_batches) not in IN_USE:
        return None
    layer, given = 4 * (width * width + width), layers * (BATCH // side.micro_batches) * width * 4
    parameters = float(layers * layer)
    if ranks == 1:  # a gradient is used up before the next is there
        return (4 * parameters if added else 3 * parameters + layer) + given
    values = parameters / ranks if stage == 3 else parameters
    sums = (parameters if stage == 1 else parameters / ranks) if added else 0
    return values + 2 * parameters / ranks + sums + IN_USE[stage, side.micro_batches] * layer + given


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


def by_stage(side: Side, layers: int, width: int) -> dict[str, int]:
    """Train under a stage of ZeRO."""
    x, y = batch_of(width)
    batch = {"x": x.repeat(side.ranks, 1), "y": y.repeat(side.ranks)}
    with torch.device("meta"):
        graph = mp.from_torch(Deep(layers, width), tuple(value.to("meta") for value in batch.values()))
    machine = mp.Machine.detect()
    plan = mp.search(graph, machine, strategy="data_parallel").with_zero(side.stage or 0, graph, machine)
    if side.micro_batches > 1:
        plan = plan.with_pipeline(order="sequential", micro_batches=side.micro_batches)
    with mp.Trainer(graph, plan, optimizer=mp.optim.AdamW()) as trainer:
        for _ in range(STEPS):
            trainer.step(**batch)
        resident = max(told["measured"] for told in trainer.memory().values())
        own = sum(memory.allocated_bytes() for memory in RankRuntime.of(mp.world()).memories.values())
        return {"resident": resident, "allocated": most_of(own)}


def most_of(own: int) -> int:
    """The largest of what ranks found."""
    return max(int(told) for told in mp.world().control.gather(str(own).encode()))


def by_torch(side: Side, layers: int, width: int) -> dict[str, int]:
    """Train under a way of torch's."""
    x, y = batch_of(width)
    with measure_peak() as most:
        module: nn.Module
        module = network = Deep(layers, width)
        if "DDP" in side.name:
            module = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view="as_view" in side.name)
        else:
            mesh, kept = init_device_mesh("cpu", (side.ranks,)), "not" not in side.name
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
    return {"resident": most_of(found)}


def be(side: Side, layers: int, width: int, port: int) -> dict[str, int]:
    """Be a rank of one side: a small network first, then the network."""
    torch.set_num_threads(1)
    if side.stage is not None:
        by_stage(side, 2, 64)
        return by_stage(side, layers, width)
    world = mp.world()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=world.rank, world_size=world.size)
    by_torch(side, 2, 64)
    found = by_torch(side, layers, width)
    dist.destroy_process_group()
    return found


def measured(side: Side, layers: int, width: int) -> dict[str, int]:
    """Start the ranks of a side and read what they found."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port, target = free.getsockname()[1], Path(folder) / "found.json"
        free.close()
        own = [__file__, "--side", json.dumps(side), "--target", str(target), "--port", str(port)]
        launch = ["-m", "maniple.cli", "run", "--nodes", str(side.ranks), "--cores", "1"]
        sizes = ["--layers", str(layers), "--width", str(width)]
        subprocess.run([sys.executable, *launch, *own, *sizes], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, int] = json.loads(target.read_text())
        return found


def row_of(side: Side, layers: int, width: int, told: dict[str, int]) -> str:
    """A row of the table."""
    layer, wanted, allocated = 4 * (width * width + width), "", ""
    closed, ratio = closed_form(layers, width, side), ""
    if "allocated" in told:
        allocated = f"{told['allocated'] / MIB:,.1f}"
    if closed is not None:
        wanted, ratio = f"{closed / MIB:,.1f}", f"{told['allocated'] / closed:.3f}"
    resident = f"{told['resident'] / MIB:,.0f} | {told['resident'] / (layers * layer):.2f}"
    return f"| {side.name} | {side.ranks} | {side.micro_batches} | {wanted} | {allocated} | {ratio} | {resident} |"


@click.command()
@click.option("--layers", default=64, help="of the network")
@click.option("--width", default=512, help="of each layer")
@click.option("--print", "alone", is_flag=True, help="print the table and leave the page as it is")
@click.option("--side", hidden=True, help="be a rank of one side")
@click.option("--target", hidden=True, help="where that tells what it found")
@click.option("--port", default=0, hidden=True, help="where torch's ranks meet")
def main(layers: int, width: int, side: str | None, target: str, port: int, *, alone: bool) -> None:
    """Measure, and write the table between its marks on the page."""
    if side is not None:
        found = be(Side(*json.loads(side)), layers, width, port)
        if mp.world().rank == 0:
            Path(target).write_text(json.dumps(found))
        return
    parameters = 4 * layers * (width * width + width)
    lines = [f"P is {parameters / MIB:,.1f} MiB: {layers} layers of {width} x {width}.", "", HEAD]
    print("\n".join(lines))
    for each in SIDES:
        lines.append(row_of(each, layers, width, measured(each, layers, width)))
        print(lines[-1], flush=True)
    if not alone:
        write_table(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
