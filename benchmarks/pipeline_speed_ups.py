"""Pipelines that a search chose, as plans that run, simulated beside one device and other strategies.

    python benchmarks/pipeline_speed_ups.py zoo [--devices 4 8] [--models vgg16 ...]      the seed paper's ten models
    python benchmarks/pipeline_speed_ups.py flows [--devices 4 8] [--models vgg16 ...]    the same without a flush (2BW)
    python benchmarks/pipeline_speed_ups.py bapipe [--machine pcie] [--image 224]           BaPipe's three

Each prints a table, a row as soon as it is found; they are in docs/explanation/antichain.md. Nothing is timed. Images
have the shapes of CIFAR-10, and a mini-batch 128 of them; batch norms take the statistics of what is computed at once,
as in the published pipelines. `antichain` chooses stages, replicas and the number of micro-batches: what is fastest,
which may be no pipeline, and then the fastest under 1F1B. Straight pipelines of p balanced stages with a flush reach
p m / (m + p - 1) of one device at most, the cap that is shown; replicas may be above it.

`flows` has PipeDream-2BW: `pipedream` chooses stages, replicas and micro-batches, and shown is also what the slowest
stage takes, as the partition search adds it up. Micro-batches are smaller than batches, so all stages together take
longer than one device. Steps are those of the steady state.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import maniple as mp
from maniple.models import model
from maniple.runtime.machine.machine_part import Host, Link
from maniple.runtime.machine.preset import NETWORK_S, PCIE3, PCIE_S
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.search.memory_fit import needed_bytes
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

ZOO = (
    "vgg16", "resnet18", "resnet50", "resnet101", "alexnet", "resnext50", "resnext101", "inception_v3", "densenet121",
    "squeezenet1_0",
)  # fmt: skip
BAPIPE = ("vgg16", "resnet50", "nmt")
SEMANTICS = {"batch_norm": "local_stats"}
FLOWING = {**SEMANTICS, "weights": "2bw"}
BATCH = 128
ORDER = "1f1b"
ZOO_HEAD = "| model | devices | one device ms | fastest plan | speed-up | fastest under 1F1B | speed-up | cap |"
FLOWS_HEAD = "| model | devices | one device ms | processors of stages | m | step ms | slowest stage ms | speed-up |"
BAPIPE_HEAD = (
    "| model | machine | strategy | plan | ms | free links ms | of data parallelism | most in a memory, MB | by |"
)


@dataclass(frozen=True)
class Case:
    """A model on a machine.

    Args:
        graph: the model.
        machine: the machine.
    """

    graph: mp.Graph
    machine: mp.Machine

    def found(self, strategy: str, order: str | None = None) -> mp.Plan:
        """What a strategy finds, in an order or whatever is fastest."""
        return mp.search(self.graph, self.machine, strategy=strategy, semantics=SEMANTICS, order=order)

    def simulation(self, plan: mp.Plan) -> Simulation:
        """The step of a plan."""
        return Simulation(self.graph, self.machine, plan)

    @property
    def alone_s(self) -> float:
        """Seconds of a step that one device computes, of the whole mini-batch."""
        graph, problem = self.graph, Problem(self.graph, self.machine)
        plan = complete(problem, "alone", tuple((node.name, whole(graph, node, 0)) for node in graph.nodes))
        return self.simulation(plan).makespan_ns / 1e9


def cap(devices: int, parts: int) -> float:
    """What a straight pipeline of as many balanced stages as devices reaches of one."""
    return devices * parts / (parts + devices - 1)


def zoo_row(name: str, devices: int) -> tuple[str, float, float]:
    """A row of the seed paper's models, the speed-up of the fastest plan, and that of the fastest pipeline."""
    case = Case(model(name, BATCH, image=32, classes=10), mp.Machine.preset(f"p100x{devices}"))
    alone_s, speed_ups = case.alone_s, list[float]()
    cells: list[object] = [name, devices, f"{alone_s * 1e3:.2f}"]
    for order in (None, ORDER):
        plan = case.found("antichain", order)
        speed_ups.append(alone_s / (plan.predicted.step_s or math.inf))
        cells += [dict(dict(plan.explanation)[""])["found by"], f"{speed_ups[-1]:.2f}"]
        cells += [f"{cap(devices, plan.pipeline.micro_batches):.2f}"] if order and plan.pipeline else []
    fastest, pipeline = speed_ups
    return "| " + " | ".join(map(str, cells)) + " |", fastest, pipeline


def zoo(names: Sequence[str], devices: Sequence[int]) -> None:
    """Print the table of the seed paper's models, and the geometric means."""
    print(ZOO_HEAD, "|---" * 8 + "|", sep="\n", flush=True)
    for count in devices:
        best, piped = [], []
        for name in names:
            row, fastest, pipeline = zoo_row(name, count)
            print(row, flush=True)
            best.append(fastest)
            piped.append(pipeline)
        means = [math.exp(sum(map(math.log, each)) / len(each)) for each in (best, piped)]
        print(f"| **geometric mean** | {count} | | | {means[0]:.2f} | | {means[1]:.2f} | |", flush=True)


def flows_row(name: str, devices: int) -> tuple[str, float]:
    """A row of the seed paper's models without a flush, and the speed-up."""
    case = Case(model(name, BATCH, image=32, classes=10), mp.Machine.preset(f"p100x{devices}"))
    alone_s = case.alone_s
    plan = mp.search(case.graph, case.machine, strategy="pipedream", semantics=FLOWING)
    told, step_s = dict(dict(plan.explanation)[""]), plan.predicted.step_s or math.inf
    cells = [name, devices, f"{alone_s * 1e3:.2f}", told["processors of stages"], told["micro-batches"]]
    cells += [f"{step_s * 1e3:.2f}", f"{float(str(told['bottleneck_s'])) * 1e3:.2f}", f"{alone_s / step_s:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |", alone_s / step_s


def flows(names: Sequence[str], devices: Sequence[int]) -> None:
    """Print the table of the seed paper's models without a flush, and the geometric means."""
    print(FLOWS_HEAD, "|---" * 8 + "|", sep="\n", flush=True)
    for count in devices:
        found = []
        for name in names:
            row, speed_up = flows_row(name, count)
            print(row, flush=True)
            found.append(speed_up)
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"| **geometric mean** | {count} | | | | | | {mean:.2f} |", flush=True)


def cluster(kind: str, devices: int) -> mp.Machine:
    """So many GPUs, joined by NVLink in one host, by PCI Express, or by 10 Gbit/s Ethernet.

    Args:
        kind: ``nvlink``: P100s, as in the other tables; ``pcie``: V100s on one switch; ``ethernet``: V100s, one a
            host.
        devices: how many.
    """
    if kind == "nvlink":
        return mp.Machine.preset(f"p100x{devices}")
    made = mp.Machine.preset(f"v100x{devices}")
    latency_s, bandwidth = (PCIE_S, PCIE3) if kind == "pcie" else (NETWORK_S, 1.25e9)
    ends = [(gpu, "network") for gpu in range(devices)]
    links = tuple(Link(a, b, latency_s, bandwidth) for end in ends for a, b in (end, end[::-1]))
    hosts = 1 if kind == "pcie" else devices
    memories = tuple(replace(each, host=each.id % hosts) for each in made.memories)
    named = tuple(Host(number, f"node{number}") for number in range(hosts))
    return replace(
        made, name=f"v100x{devices}-{kind}", hosts=named, memories=memories, links=links, switches=("network",)
    )


def linkless(machine: mp.Machine) -> mp.Machine:
    """The same machine with links that take no time."""
    return replace(machine, links=tuple(replace(each, latency_s=0.0, bandwidth=1e18) for each in machine.links))


def bapipe(names: Sequence[str], devices: int, kind: str, image: int) -> None:
    """Print the table of BaPipe's models on one kind of machine."""
    print(BAPIPE_HEAD, "|---" * 9 + "|", sep="\n", flush=True)
    machine = cluster(kind, devices)
    for name in names:
        sizes = {} if name == "nmt" else {"image": image, "classes": 10 if image == 32 else 1000}
        case, free = (Case(model(name, BATCH, **sizes), each) for each in (machine, linkless(machine)))
        common = 0.0
        for strategy, order in (("data_parallel", None), ("gpipe", None), ("bapipe", None), ("bapipe", ORDER)):
            plan = case.found(strategy, order)
            simulation = case.simulation(plan)
            step_s, held = simulation.makespan_ns / 1e9, max(needed_bytes(simulation)) / 1e6
            unlinked_s = free.simulation(replace(plan, machine="")).makespan_ns / 1e9
            common = common or step_s
            said = plan.explain().splitlines()[1].removeprefix("pipeline: ") if plan.pipeline else "no pipeline"
            told = f"{strategy} --order {order}" if order else strategy
            cells = [name, machine.name, told, said, f"{step_s * 1e3:.2f}", f"{unlinked_s * 1e3:.2f}"]
            by = dict(dict(plan.explanation).get("", ())).get("found by", "")
            cells += [f"{common / step_s:.2f}", f"{held:.0f}", by]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> int:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("zoo", "flows", "bapipe"))
    parser.add_argument("--models", nargs="+", choices=sorted({*ZOO, *BAPIPE}))
    parser.add_argument("--devices", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--machine", choices=("nvlink", "pcie", "ethernet"), default="nvlink", help="of bapipe's table")
    parser.add_argument("--image", type=int, default=32, help="pixels of an image's side, in bapipe's table")
    asked = parser.parse_args()
    if asked.table in {"zoo", "flows"}:
        (zoo if asked.table == "zoo" else flows)(asked.models or ZOO, asked.devices)
    else:
        bapipe(asked.models or BAPIPE, asked.devices[0], asked.machine, asked.image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
