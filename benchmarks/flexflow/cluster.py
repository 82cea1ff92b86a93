"""The published networks and clusters, and what a plan does on one of them."""

from __future__ import annotations

from dataclasses import replace

import click

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.search_loop import search
from maniple.strategies.simulation.prediction import Prediction
from maniple.strategies.simulation.simulation import Simulation

MODELS = ("alexnet", "resnet101", "inception_v3", "rnntc", "rnnlm", "nmt")

model_option = click.option(
    "--model", "names", multiple=True, default=MODELS, help="Which models; may be given several times."
)
machine_option = click.option("--machine", "machine_name", default="k80x64", show_default=True, help="A preset.")
budget_option = click.option("--budget", default=60.0, show_default=True, help="Seconds of a search.")
proposals_option = click.option(
    "--proposals", type=click.IntRange(min=1), help="Of a search, instead of its seconds: found on any computer alike."
)
batch_option = click.option(
    "--batch", type=click.IntRange(min=1), help="Samples in all; by default 64 a GPU, AlexNet 256."
)


def graph_for(name: str, machine: Machine, batch: int | None) -> Graph:
    """Build a model with a batch of so many samples in all; None: with the published batch for each GPU."""
    return model(name, batch=batch or (256 if name == "alexnet" else 64) * len(machine.processors))


def roomy(name: str) -> Machine:
    """Build a preset whose memories hold anything, as the published search knows no memory."""
    machine = Machine.preset(name)
    return replace(machine, memories=tuple(replace(memory, capacity_bytes=1 << 50) for memory in machine.memories))


def found(graph: Graph, machine: Machine, strategy: str, budget: float, proposals: int | None) -> Plan:
    """Search for so many seconds, or, where it is said, for so many proposals."""
    seconds, cores = (None, 1) if proposals else (budget, None)
    return search(graph, machine, strategy=strategy, budget=seconds, proposals=proposals, cores=cores)


def effort(budget: float, proposals: int | None) -> dict[str, object]:
    """What a row says of the searches that made it."""
    return {"proposals": proposals} if proposals else {"budget": budget}


def predicted(graph: Graph, machine: Machine, plan: Plan) -> Prediction:
    """Simulate a plan from nothing."""
    return Simulation(graph, machine, plan).predict()
