"""The walk of a step and of a launch that were made before: modules entered, Python calls, hops between modules.

    python benchmarks/walk.py                prints a table
    python benchmarks/walk.py --way          prints also the way of the program's thread, module by module

A hop is a call into another module of the package, or the return from it. A step is of three operators on two
processors; a launch of two points adds one region to another, and the program waits for it only after the count. Of
several, which wait for each other now longer and now shorter, the one in the middle by its calls is told.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Self

import click
import torch

import maniple as mp

WARM_UP = 10
WALKS = 9
PACKAGE = "maniple."


@dataclass
class Walk:
    """One thread's way through the package.

    Args:
        calls: Python calls, those inside a module too.
        way: the modules in the order in which they were entered, by call or by return.
    """

    calls: int = 0
    way: list[str] = field(default_factory=list)

    def go(self, module: str) -> None:
        """Be in a module now."""
        if not self.way or self.way[-1] != module:
            self.way.append(module)

    @property
    def hops(self) -> int:
        """How often it went from a module to another."""
        return max(len(self.way) - 1, 0)

    @property
    def modules(self) -> set[str]:
        """Where it was."""
        return set(self.way)


class Watch:
    """Counts what threads do that begin while it is set, and its own, while it is on."""

    def __init__(self) -> None:
        self.walks: dict[int, Walk] = {}
        self._on = False
        self._modules: dict[CodeType, str] = {}

    def __enter__(self) -> Self:
        """Set it."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Count no more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def of(self, call: Callable[[], object]) -> dict[int, Walk]:
        """Give the walks of a call, by thread."""
        self.walks = {}
        self._on = True
        try:
            call()
        finally:
            self._on = False
        return self.walks

    def _module(self, frame: FrameType) -> str:
        found = self._modules.get(frame.f_code)
        if found is None:
            name = str(frame.f_globals.get("__name__", ""))
            found = self._modules[frame.f_code] = name if name.startswith(PACKAGE) else ""
        return found

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._on or event not in {"call", "return"}:
            return
        module = self._module(frame)
        if not module:
            return
        walk = self.walks.setdefault(threading.get_ident(), Walk())
        if event == "call":
            walk.calls += 1
            walk.go(module)
            return
        back = frame.f_back
        while back is not None and not self._module(back):
            back = back.f_back
        if back is not None:
            walk.go(self._module(back))


@mp.task
def axpy(factor: float, x: mp.Read, y: mp.ReadWrite) -> None:
    """Add a multiple of a region to another."""
    y.add_(x, alpha=factor)


def step() -> tuple[Callable[[], object], Callable[[], object]]:
    """Give what trains for a step, and what to do after each."""
    g = mp.Graph("walk")
    x, y = g.input("x", (8, 16)), g.input("y", (8, 4))
    g.loss(g.mse_loss(g.linear(g.relu(g.linear(x, 8)), 4), y))
    plan = mp.search(g, mp.Machine.cpu(2), strategy="data_parallel")
    trainer = mp.Trainer(g, plan, optimizer=mp.SGD(lr=0.1))
    batch = {"x": torch.randn(8, 16), "y": torch.randn(8, 4)}
    return lambda: trainer.step(**batch), lambda: None


def launch() -> tuple[Callable[[], object], Callable[[], object]]:
    """Give what makes a launch, and what waits for it."""
    x, y = mp.region((8,), name="x"), mp.region((8,), name="y")
    tiles = mp.blocks((2,))
    mp.fill(x, 1.0)
    mp.fill(y, 0.0)
    return lambda: mp.index_launch(axpy, 2, 0.5, x[tiles], y[tiles]), mp.fence


def walked(make: Callable[[], tuple[Callable[[], object], Callable[[], object]]]) -> tuple[Walk, list[Walk]]:
    """Give the walk of the program's thread, and those of all, in the steady state."""
    found = []
    with Watch() as watch:
        call, after = make()
        for number in range(WARM_UP + WALKS):
            walks = watch.of(call)
            after()
            if number >= WARM_UP:
                found.append(walks)
    mine = threading.get_ident()
    found.sort(key=lambda walks: (walks[mine].calls, sum(walk.calls for walk in walks.values())))
    middle = found[len(found) // 2]
    return middle[mine], list(middle.values())


@click.command()
@click.option("--way", is_flag=True, help="Print the way of the program's thread, too.")
def main(*, way: bool) -> None:
    """Print the walks."""
    torch.manual_seed(0)
    print("walk    thread      modules  calls  hops")
    print("======  ==========  =======  =====  ====")
    ways = {}
    for name, make in (("step", step), ("launch", launch)):
        mine, every = walked(make)
        entered = set().union(*(walk.modules for walk in every))
        calls, hops = sum(walk.calls for walk in every), sum(walk.hops for walk in every)
        print(f"{name:6}  program's   {len(mine.modules):7}  {mine.calls:5}  {mine.hops:4}")
        print(f"{name:6}  all         {len(entered):7}  {calls:5}  {hops:4}")
        ways[name] = mine.way
    for name, modules in ways.items() if way else ():
        print(f"\n{name}: " + " > ".join(module.removeprefix(PACKAGE) for module in modules))


if __name__ == "__main__":
    main()
