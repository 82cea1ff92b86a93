"""Law 1 for modules that people write for themselves: unmodified, without opaque operators, as in plain torch."""

from __future__ import annotations

from functools import cache

import pytest
from everyday_modules import MODULES
from imported_networks import BATCH
from thread_ranks import run_on_ranks
from torch import Tensor

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

TOLERANCE = 1e-9  # of losses and state after three steps in float64


@cache
def graph_of(name: str) -> Graph:
    return MODULES[name].graph()


@pytest.mark.parametrize(("strategy", "samples"), [("data_parallel", BATCH), ("random", 3)])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_trains_as_in_torch(name: str, strategy: str, samples: int) -> None:
    module, graph = MODULES[name], graph_of(name)
    assert graph.opaque == ()

    def train(world: World) -> tuple[list[float], dict[str, Tensor]]:
        plan = mp.search(graph, host_machine(world, 2), strategy=strategy, seed=len(name))
        return module.trained(graph, plan, world, samples)

    losses, state = module.judged(graph, samples)
    for ours, ours_state in run_on_ranks(2, train, nodes=2):
        assert ours == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        assert sorted(ours_state) == sorted(state)
        for key, value in state.items():
            most = max(1.0, value.double().abs().max().item())
            assert (ours_state[key].double() - value.double()).abs().max().item() <= TOLERANCE * most, key
