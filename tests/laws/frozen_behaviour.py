"""Digests of what lowering, simulation, searches and tracing give today, which a change of form must leave as they are.

    python tests/laws/frozen_behaviour.py        writes them anew, where behaviour is meant to change

A triple of model, machine and plan is drawn by a seed. Of each the schedule is printed row by row, as every rank would
run it, and the step is simulated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from placed_program import opened

import maniple as mp
from maniple.models import model
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.lowering.weight import weights
from maniple.runtime.control.world import World
from maniple.runtime.execution.replay import Replay
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.schedule import Schedule
from maniple.strategies.simulation.simulation import Simulation
from maniple.zoo.catalogue import ENTRIES

DIGESTS = Path(__file__).with_name("frozen_behaviour.json")
TRIPLES = 36
SEED = 20261123
MODELS = ("alexnet", "digits_cnn", "gpt", "lenet", "mlp", "nmt", "rnnlm", "rnntc", "transformer", "vgg16")
MACHINES = ("cpu:3", "cpu:2x2", "h100x4", "k80x4", "p100x2", "p100x4")
STRATEGIES = ("data_parallel", "expert", "model_parallel", "random", "spatial")
SEARCHES = ("hill_climb", "optcnn", "soap")
OPTIMIZER = mp.SGD(lr=0.1, momentum=0.9)


def triples() -> Iterator[tuple[str, str, str, int, int]]:
    """Model, machine, strategy, its seed and the batch of each triple."""
    chance = Random(SEED)
    for _ in range(TRIPLES):
        drawn = chance.choice(MODELS), chance.choice(MACHINES), chance.choice(STRATEGIES)
        yield *drawn, chance.randrange(1000), chance.choice((4, 6, 8))


def of_triple(name: str, preset: str, strategy: str, seed: int, batch: int) -> str:
    """The digest of a step's schedule and of its simulation."""
    graph = model(name, batch, **({} if name == "digits_cnn" else ENTRIES[name].reduced))
    machine = mp.Machine.preset(preset)
    plan = mp.search(graph, machine, strategy=strategy, seed=seed)
    table = RegionTable()
    program = Expansion(graph, plan, machine, weights(graph, plan, machine, OPTIMIZER, table), table).training_step(
        OPTIMIZER
    )
    schedule = lower(program, FragmentCache(machine))
    simulation = Simulation(graph, machine, plan)
    told = (simulation.makespan_ns, simulation.bytes, simulation.allocated_bytes())
    return _digest(_written(plan), schedule.text(), repr(told))


def of_search(strategy: str) -> str:
    """The digest of the plan that a fixed seed finds, in a fixed number of proposals."""
    graph, machine = model("lenet", 8, **ENTRIES["lenet"].reduced), mp.Machine.preset("p100x4")
    options = {} if strategy == "optcnn" else {"proposals": 150}
    plan = mp.search(graph, machine, strategy=strategy, seed=7, **options)  # type: ignore[arg-type]
    return _digest(_written(plan))


@mp.task(name="blur")
def _blur(x: mp.Read, y: mp.WriteDiscard) -> None:
    y.copy_(x[: len(y)])


@mp.task(name="sum")
def _sum(x: mp.Read, y: mp.ReduceSum) -> None:
    y += x.sum()


def of_trace() -> str:
    """The digest of the schedule of a trace on three processors: a stencil over halos, and a reduction."""
    session = opened(World.solo(processors=3, cores=1))
    schedules: list[Schedule] = []
    load = session.runtime.load

    def kept(schedule: Schedule, *rest: Any) -> Replay:
        schedules.append(schedule)
        return load(schedule, *rest)

    session.runtime.load = kept  # type: ignore[method-assign]
    x, y, s = (session.region((size,), name=name) for size, name in ((12, "x"), (12, "y"), (1, "s")))
    rows = mp.blocks(3)
    near = mp.halo(rows, 1)
    x.write(torch.arange(12.0))
    y.fill(0.0)
    s.fill(0.0)
    for _ in range(3):
        with session.trace("frozen"):
            session.index_launch(_blur, 3, x[near], y[rows])
            session.index_launch(_blur, 3, y[near], x[rows])
            session.index_launch(_sum, 3, x[rows], s)
    session.fence()
    return _digest(*(schedule.text() for schedule in schedules))


def _written(plan: mp.Plan) -> str:
    """A plan as version 2 of its file wrote it: what came since must be as it was, absent."""
    document: Any = plan.to_json()
    assert document.pop("pipeline") is None
    assert not any(operator.pop("recompute") for operator in document["operators"].values())
    for weight in document["weights"].values():
        assert (weight.pop("copy"), weight.pop("sums")) == ("kept", "use")
    return json.dumps(document | {"version": 2})


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()


def main() -> None:
    """Write the digests of today."""
    found = {" ".join(map(str, triple)): of_triple(*triple) for triple in triples()}
    found |= {f"search {strategy}": of_search(strategy) for strategy in SEARCHES} | {"trace": of_trace()}
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
