"""Checks for plug-ins: whether what they choose keeps the promises that Maniple makes for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maniple.operators.plan.plan import Plan
from maniple.operators.training.descent import SGD
from maniple.process.error import RequestError, RunError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.storage.copy_kernels import torch_dtype
from maniple.search_loop import search
from maniple.strategies.interface.registry import register_strategy
from maniple.testing.worlds import local_worlds, run_on_worlds
from maniple.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.runtime.control.world import World
    from maniple.strategies.interface.strategy import AbstractStrategy

__all__: list[str] = []

STEPS = 3
# What sums may differ by that are added up in another order: |a - b| <= tolerance * max(1, |b|).
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def check_strategy(
    strategy: str | type[AbstractStrategy[Any]],
    graph: Graph,
    machine: Machine,
    *,
    proposals: int | None = None,
    seed: int = 0,
    batch: Mapping[str, torch.Tensor] | None = None,
) -> Plan:
    """The plan that a strategy finds, after it was seen that the strategy keeps the laws.

    The plan is legal. The same seed finds the same plan. It is the same plan again when its file is read. Some steps
    under it, on as many ranks and processors as the machine has, have the losses of one processor: but for plans that
    say that they change results by intent.

    Args:
        strategy: a name that is known, or a class, which is registered under its own name.
        graph: what to train; it must have a loss.
        machine: what for; it need not be at hand.
        proposals: how many plans to evaluate, for a strategy that needs a budget.
        seed: of the search and of the parameters.
        batch: inputs by name; by default floats are drawn and integers are 0.

    Raises:
        RequestError: the strategy cannot be asked in this way, or its plan is illegal.
        RunError: another law is broken; says which.
    """
    if not isinstance(strategy, str):
        register_strategy(strategy.name, strategy)
        strategy = strategy.name
    plan, again = (search(graph, machine, strategy=strategy, proposals=proposals, seed=seed, cores=1) for _ in range(2))
    if plan != again:
        raise RunError(
            f"strategy {strategy!r}: expected the same plan of seed {seed} each time, got two; take all chance from "
            "problem.seed, and go through sets in sorted order"
        )
    if Plan.parse(plan.text()) != plan:
        raise RunError(f"strategy {strategy!r}: expected a plan that its file gives back, got another")
    if not plan.semantics:
        _check_losses(strategy, graph, machine, plan, seed, dict(batch) if batch is not None else _drawn(graph, seed))
    return plan


def _check_losses(
    strategy: str, graph: Graph, machine: Machine, plan: Plan, seed: int, batch: dict[str, torch.Tensor]
) -> None:
    """Refuse a plan under which the losses are not those of one processor."""
    ranks = 1 + machine.memories[-1].rank
    if len(machine.processors) % ranks:
        raise RequestError(
            f"check_strategy: expected ranks with equally many processors, got {len(machine.processors)} on {ranks}"
        )
    alone = search(graph, Machine.cpu(1), strategy="data_parallel")
    (wanted,) = _losses(graph, alone, seed, batch, local_worlds(1))
    worlds = local_worlds(ranks, processors=len(machine.processors) // ranks)
    (found, *others) = _losses(graph, plan, seed, batch, worlds)
    if any(other != found for other in others):
        raise RunError(f"strategy {strategy!r}: expected the same losses on every rank, got {[found, *others]}")
    tolerance = TOLERANCE[graph.tensors[graph.loss_tensor or 0].dtype]
    for step, (mine, its) in enumerate(zip(found, wanted, strict=True)):
        if not abs(mine - its) <= tolerance * max(1.0, abs(its)):  # a NaN is not near either
            raise RunError(
                f"strategy {strategy!r}: expected loss {its!r} of one processor in step {step}, got {mine!r} under its "
                "plan; an operator's rule is wrong, which `maniple check-rule` finds"
            )


def _losses(
    graph: Graph, plan: Plan, seed: int, batch: dict[str, torch.Tensor], worlds: list[World]
) -> list[list[float]]:
    """The losses of some steps, as every rank has them."""

    def program(world: World) -> list[float]:
        with Trainer(graph, plan, optimizer=SGD(0.05, 0.9), seed=seed, world=world) as trainer:
            return [trainer.step(**batch) for _ in range(STEPS)]

    return run_on_worlds(worlds, program)


def _drawn(graph: Graph, seed: int) -> dict[str, torch.Tensor]:
    """A batch: floats from the seed, and 0 for what counts or chooses, which is a legal class, row and mask."""
    chance = torch.Generator().manual_seed(seed)
    drawn = {}
    for info in graph.inputs:
        kind = torch_dtype(info.dtype)
        floats = kind.is_floating_point
        drawn[info.name] = (
            torch.randn(info.shape, generator=chance, dtype=kind) if floats else torch.zeros(info.shape, dtype=kind)
        )
    return drawn
