"""Strategies: plug-ins that turn a graph and a machine into a plan.

What a strategy of another package needs is here; the modules that it comes from may change. Names are loaded when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.operators.graph.node import Node as Node
    from maniple.operators.plan.plan import OperatorPlan as OperatorPlan
    from maniple.operators.plan.plan import Plan as Plan
    from maniple.operators.plan.plan import Predicted as Predicted
    from maniple.operators.plan.plan import WeightPlan as WeightPlan
    from maniple.strategies.interface.placement import complete as complete
    from maniple.strategies.interface.placement import configure as configure
    from maniple.strategies.interface.placement import follow as follow
    from maniple.strategies.interface.placement import node_flops as node_flops
    from maniple.strategies.interface.placement import shared as shared
    from maniple.strategies.interface.placement import split_axis as split_axis
    from maniple.strategies.interface.placement import split_sample as split_sample
    from maniple.strategies.interface.placement import whole as whole
    from maniple.strategies.interface.registry import register_strategy as register_strategy
    from maniple.strategies.interface.registry import strategy_names as strategy_names
    from maniple.strategies.interface.strategy import AbstractDirectStrategy as AbstractDirectStrategy
    from maniple.strategies.interface.strategy import AbstractStrategy as AbstractStrategy
    from maniple.strategies.interface.strategy import Problem as Problem
    from maniple.strategies.interface.strategy import Progress as Progress
    from maniple.strategies.interface.strategy import StrategyError as StrategyError
    from maniple.strategies.simulation.simulation import Simulation as Simulation

_HOMES = {
    "operators.graph.node": ("Node",),
    "operators.plan.plan": ("OperatorPlan", "Plan", "Predicted", "WeightPlan"),
    "strategies.interface.placement": (
        "complete",
        "configure",
        "follow",
        "node_flops",
        "shared",
        "split_axis",
        "split_sample",
        "whole",
    ),
    "strategies.interface.registry": ("register_strategy", "strategy_names"),
    "strategies.simulation.simulation": ("Simulation",),
    "strategies.interface.strategy": (
        "AbstractDirectStrategy",
        "AbstractStrategy",
        "Problem",
        "Progress",
        "StrategyError",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]  # the names of _HOMES, each imported above


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module 'maniple.strategies' has no attribute {name!r}"
        raise AttributeError(msg)
    found: object = getattr(import_module(f"maniple.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__]
