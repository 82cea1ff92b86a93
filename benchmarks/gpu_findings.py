"""What each check of ``gpu_checks.py`` finds: the process in which they run.

It prints a line of JSON for each finding, and for each check when it begins and when it ends. Once a device cannot be
used any more it ends with another status, for the rest to run in a new process; once whoever started it is gone, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from gpu import each as each_kernel
from gpu_checks import BETTER, LOST, NEEDED, NOTHING, ON_CUDA, missing
from gpu_memory import memory
from gpu_networks import Net, nets
from gpu_prediction import prediction
from gpu_ranks import batches, by_torch, network, why_no_nccl
from gpu_steps import SGD, Bench, Line, failure, losses, made, median, on, race, torch_step, tried
from torch.nn import functional as F

import maniple as mp
from maniple.mappers.registry import make_mapper
from maniple.process.error import RequestError
from maniple.runtime.control.world import World
from maniple.runtime.devices.registry import DEVICES
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.recording import record
from maniple.runtime.session.session import Session

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}


def _is_there(name: str) -> bool:
    return not missing({name: name})


def doctor(bench: Bench) -> Iterator[Line]:
    """What is here."""
    there = {name: _is_there(name) for name in (*NEEDED, *ON_CUDA, *BETTER)}
    line: Line = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version(), "torch": torch.__version__}
    line |= {"wheels": there}
    if bench.device == "cuda":
        found, driver = torch.cuda.get_device_properties(0), Path("/proc/driver/nvidia/version")
        free, total = torch.cuda.mem_get_info(0)
        told = ("clock_rate", "memory_clock_rate", "memory_bus_width", "multi_processor_count")
        line |= {name: getattr(found, name, None) for name in told}
        line |= {"gpu": found.name, "capability": [found.major, found.minor], "cuda": torch.version.cuda}
        line |= {
            "driver": driver.read_text().splitlines()[0] if driver.exists() else None,
            "context_bytes": total - free,
            "total_bytes": total,
        }
        line |= {"tf32": [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]}
    yield line


def law1(bench: Bench) -> Iterator[Line]:
    """The same losses as torch's on the CPU, in float64 and float32."""
    for name, net in nets(small=True).items():
        if bench.small and name not in bench.nets():
            continue
        for dtype, tolerance in TOLERANCES.items():

            def compare(net: Net = net, dtype: str = dtype, tolerance: float = tolerance) -> Line:
                kind = getattr(torch, dtype)
                torch.manual_seed(0)
                module = net.module().to(kind)
                batch = tuple(t.to(kind) if t.is_floating_point() else t for t in net.batch(4))
                graph = mp.from_torch(copy.deepcopy(module), batch)
                descent = torch.optim.SGD(module.parameters(), 0.05, 0.9)
                wanted = [torch_step(module, descent, batch) for _ in range(3)]
                (found,) = on(bench, 1, lambda world: losses(graph, world, [batch] * 3))
                error = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted, strict=True))
                return {"error": error, "right": error <= tolerance}

            yield tried({"net": name, "dtype": dtype}, compare)


def ranks(bench: Bench) -> Iterator[Line]:
    """Two ranks on one device, under several plans: the network of `gpu_ranks.py` as torch trains it in float64."""
    graph, steps = network(), batches()
    for strategy in ("data_parallel", "spatial", "random"):

        def program(world: World, strategy: str = strategy) -> tuple[float, int]:
            plan = mp.search(graph, mp.Machine.cpu(1, ranks=2), strategy=strategy, seed=1)
            with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
                theirs = {name: value.clone().requires_grad_() for name, value in trainer.parameters().items()}
                descent = torch.optim.SGD(theirs.values(), lr=0.05, momentum=0.9)
                worst = 0.0
                for batch in steps:
                    descent.zero_grad()
                    loss = F.cross_entropy(by_torch(theirs, batch["x"]), batch["y"])
                    loss.backward()
                    descent.step()
                    worst = max(worst, abs(trainer.step(**batch) - loss.item()))
                return worst, trainer.bytes()["measured"]

        found = on(bench, 2, program)
        error = max(worst for worst, _ in found)
        yield {"strategy": strategy, "error": error, "bytes": found[0][1], "right": error <= TOLERANCES["float64"]}


def nccl(bench: Bench) -> Iterator[Line]:
    """Two ranks on two GPUs, each a process, whose exchanges are calls of NCCL."""
    wanted = [name for name in ("zmq", "click", "rich") if not _is_there(name)]
    lacks = f"ranks that are processes need {', '.join(wanted)}" if wanted else why_no_nccl()
    if bench.device != "cuda" or lacks:
        yield {"skipped": lacks if bench.device == "cuda" else "null devices have no NCCL"}
        return
    program, found = Path(__file__).with_name("gpu_ranks.py"), bench.out.with_suffix(".nccl.json")
    command = [sys.executable, str(program), "--transport", "nccl", "--json", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode and not found.exists():
        yield {"right": False, "status": done.returncode, "said": done.stderr[-2000:]}
        return
    yield json.loads(found.read_text())


def digits(bench: Bench) -> Iterator[Line]:
    """The CNN of the demonstration, end to end: accuracy on the training images, and samples a second."""
    from maniple.models import digits_cnn

    batch, count = 64, 128 if bench.small else 1408
    if _is_there("sklearn"):
        from sklearn.datasets import load_digits

        loaded: Any = load_digits()
        images = torch.tensor(loaded.images[:count, None] / 16, dtype=torch.float32)
        labels = torch.tensor(loaded.target[:count], dtype=torch.int64)
    else:
        chance = torch.Generator().manual_seed(0)
        labels = torch.randint(0, 10, (count,), generator=chance)
        shapes = torch.rand(10, 1, 8, 8, generator=chance)
        images = shapes[labels] + 0.1 * torch.randn(count, 1, 8, 8, generator=chance)
    graph = digits_cnn(batch)
    names = [tensor.name for tensor in graph.inputs]

    def program(world: World) -> tuple[list[float], float]:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
        given = [
            dict(zip(names, (images[at : at + batch], labels[at : at + batch]), strict=True))
            for at in range(0, count, batch)
        ]
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            begun = time.perf_counter()
            found = [loss for _ in range(2 if bench.small else 20) for loss in trainer.run(given)]
            return found, time.perf_counter() - begun

    ((found, taken),) = on(bench, 1, program)
    rate = len(found) * batch / taken
    yield {"data": "digits" if _is_there("sklearn") else "drawn", "first_loss": found[0],
           "last_loss": found[-1], "samples_per_s": rate, "right": found[-1] < found[0]}  # fmt: skip


def kernels(bench: Bench) -> Iterator[Line]:
    """Each kernel against the CPU, and its bandwidth over that of a copy that moves as many bytes."""
    if bench.device != "cuda":
        yield {"skipped": "kernels run on CUDA alone; numba's simulator checks them in the tests"}
        return
    for size in (1 << 26, 1 << 20):
        for name, row in each_kernel(size, bench.rounds):
            yield {"kernel": name, "elements": size, **row}


def steps(bench: Bench) -> Iterator[Line]:
    """Steps beside torch's on the same device, in turns: eager, and as one CUDA graph."""
    cases = [(precision, name, size) for precision in ("float32", "bf16") for name in bench.nets() for size in (0, 1)]
    for precision, name, size in [*cases, ("tf32", "cnn", 1), ("tf32", "gpt", 1)]:
        net = bench.nets()[name]
        line: Line = {"net": name, "batch": net.sizes[size], "precision": precision}
        yield tried(line, lambda net=net, size=size, how=precision: race(bench, net, net.sizes[size], how))  # type: ignore[misc]


def chain(bench: Bench) -> Iterator[Line]:
    """A chain of empty tasks: launched anew in a trace, replayed as a whole, captured, and torch's own graph of it."""
    count = 20 if bench.small else 1000
    for captured in (False, True):
        for launched in (True, False):

            def replays(captured: bool = captured, launched: bool = launched) -> Line:  # noqa: FBT001
                how = {"captured": captured, "launched": launched}
                (taken,) = on(bench, 1, lambda world: _chain(world, count, bench.rounds, **how))
                return {"task_us": 1e6 * taken / count}

            yield tried({"tasks": count, "captured": captured, "launched": launched}, replays)
    if bench.device == "cuda":
        x = torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                x.add_(0)
        eager = median(bench, lambda: [x.add_(0) for _ in range(count)])
        yield {"tasks": count, "by": "torch, eager", "task_us": 1e6 * eager / count}
        yield {"tasks": count, "by": "torch's CUDA graph", "task_us": 1e6 * median(bench, graph.replay) / count}


def capture(bench: Bench) -> Iterator[Line]:
    """What is captured of a step, and why the rest is not."""
    for name, net in bench.nets().items():
        yield tried({"net": name}, lambda net=net: _captures(bench, net))  # type: ignore[misc]


def recording(bench: Bench) -> Iterator[Line]:
    """A recording of steps, for Perfetto."""
    graph, batch, _ = made(bench.nets()["cnn"], 4)

    def program(world: World) -> int:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            trainer.step(*batch)
            with record(RankRuntime.of(world), 100_000) as found:
                for _ in range(3):
                    trainer.step(*batch)
            found.timeline.save(str(bench.out))
            return len(found.timeline.spans)

    (spans,) = on(bench, 1, program)
    yield {"file": str(bench.out), "spans": spans, "right": spans > 0}


def _captures(bench: Bench, net: Net) -> Line:
    """What is captured of a network's step."""
    graph, batch, _ = made(net, net.sizes[0])

    def program(world: World) -> list[tuple[tuple[str, ...], str, bool]]:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            for _ in range(4):
                trainer.step(*batch)
            return trainer.captures()

    (pieces,) = on(bench, 1, program)
    eager = {labels[0]: why for labels, why, _ in pieces if why}
    graphs = [len(labels) for labels, _, captured in pieces if captured]
    return {"graphs": graphs, "eager": eager, "right": len(graphs) > 0}


def _chain(world: World, count: int, rounds: int, *, captured: bool, launched: bool) -> float:
    """The median time of a replay of a chain of tasks, each of one empty kernel."""

    @mp.task
    def touch(x: mp.ReadWrite) -> None:
        x += 0

    @touch.variant("cuda", captured=captured)
    def touch_there(x: torch.Tensor) -> None:
        x.add_(0)

    session = Session(RankRuntime.of(world), mp.Machine.detect(world), make_mapper("default"))
    region = session.region((1,), name="chain")
    region.fill(0.0)
    times = []
    for turn in range(rounds + 4):
        begun = time.perf_counter()
        if launched or turn < 2:
            with session.trace("chain"):
                for _ in range(count):
                    session.launch(touch, region)
        else:
            session.trace("chain").replay()
        session.fence()
        if turn >= 4:
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


CHECKS = (doctor, law1, ranks, nccl, digits, kernels, steps, chain, memory, capture, prediction, recording)


def usable(bench: Bench) -> bool:
    """Whether the device still computes."""
    try:
        return bench.device != "cuda" or float(torch.ones(1, device="cuda").add_(1).item()) == 2.0
    except RuntimeError:
        return False


def tell(line: Line) -> None:
    """Print a line."""
    print(json.dumps(line), flush=True)


def find(check: Callable[[Bench], Iterator[Line]], bench: Bench) -> bool:
    """Run a check; says whether nothing was wrong."""
    name, right = check.__name__, True
    try:
        for line in check(bench):
            right &= line.get("right") is not False and ("right" in line or "error" not in line)
            tell({"check": name, **line})
    except Exception as error:  # noqa: BLE001  (the next check may show something)
        right = False
        tell({"check": name, **failure(error)})
    return right


def end_with_whoever_started_this() -> None:
    """End this process once its input ends, which nobody writes to; nothing of it can be waited for then."""
    sys.stdin.read()
    os._exit(128 + signal.SIGTERM)


def main() -> int:
    """Run the checks that are asked for; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "null"), required=True)
    parser.add_argument("--small", action="store_true", help="sizes of a rehearsal")
    parser.add_argument("--seconds", type=float, required=True, help="no check begins later than this")
    parser.add_argument("--only", nargs="+", required=True, help="the checks to run")
    parser.add_argument("--recording", type=Path, required=True)
    given = parser.parse_args()
    begun, all_right = time.monotonic(), True
    Thread(target=end_with_whoever_started_this, daemon=True).start()
    try:
        DEVICES.lookup(given.device).check()
    except RequestError as error:
        tell({"check": given.only[0], "gpu": None, "reason": str(error)})
        return NOTHING
    bench = Bench(given.device, given.small, given.recording)
    for check in CHECKS:
        name = check.__name__
        if name not in given.only:
            continue
        tell({"begins": name})
        if time.monotonic() - begun > given.seconds:
            tell({"check": name, "skipped": "no time was left"})
            right = True
        else:
            right = find(check, bench)
        tell({"ends": name})
        all_right &= right
        if not right and not usable(bench):
            os._exit(LOST)  # whatever is destroyed on such a device may wait for it
    return int(not all_right)


if __name__ == "__main__":
    sys.exit(main())
