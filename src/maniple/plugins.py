"""What authors of plug-ins need: base classes, what these are given, and what helps to complete them.

    import maniple as mp

    class Mine(mp.plugins.DirectStrategy): ...

A plug-in comes in by an entry point of its package or by a call of the program; see docs/extending.md.

    plug-in     derives from                                   is given                        comes in by
    strategy    ``DirectStrategy``, ``Strategy``,              ``Problem``                     ``maniple.strategies``,
                ``ParallelStrategy``                                                           ``mp.register_strategy``
    mapper      ``mp.Mapper``                                  ``LaunchView``, ``TaskView``,   ``maniple.mappers``,
                                                               ``CopyView``, ``TunableView``   ``mp.register_mapper``
    operator    none: a function; or ``TorchOperator``,        ``TileContext``                 ``maniple.operators``,
                ``Operator``                                                                   ``mp.operator``,
                                                                                               ``register_operator``
    device      ``Device``, ``HostDevice``                     its number and capacity         ``maniple.devices``,
                                                                                               ``DEVICES.register``
    transport   ``Transport``, ``InboxTransport``              its rank and the run's secret   ``maniple.transports``,
                                                                                               ``TRANSPORTS.register``
    launcher    ``Launcher``                                   ``RankCommand``, ``Streams``    ``maniple.launchers``,
                                                                                               ``LAUNCHERS.register``

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.operators.graph.node import Node as Node
    from maniple.operators.library.catalogue import register_operator as register_operator
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.operator.operator import BackwardReads as BackwardReads
    from maniple.operators.operator.operator import Cost as Cost
    from maniple.operators.operator.operator import Initial as Initial
    from maniple.operators.operator.operator import Kernels as Kernels
    from maniple.operators.operator.operator import ParameterSpec as ParameterSpec
    from maniple.operators.operator.operator import TileContext as TileContext
    from maniple.operators.operator.torch_operator import TorchOperator as TorchOperator
    from maniple.operators.plan.plan import OperatorPlan as OperatorPlan
    from maniple.operators.plan.plan import Predicted as Predicted
    from maniple.operators.plan.plan import WeightPlan as WeightPlan
    from maniple.operators.rules.rule import Rule as Rule
    from maniple.operators.rules.tile import Tile as Tile
    from maniple.runtime.cluster.children.child_process import LocalProcess as LocalProcess
    from maniple.runtime.cluster.host_launcher import AgentCommand as AgentCommand
    from maniple.runtime.cluster.host_launcher import HostCommand as HostCommand
    from maniple.runtime.cluster.host_launcher import HostLauncher as HostLauncher
    from maniple.runtime.cluster.launcher import Launcher as Launcher
    from maniple.runtime.cluster.launcher import LaunchRequest as LaunchRequest
    from maniple.runtime.cluster.launcher import RankCommand as RankCommand
    from maniple.runtime.cluster.launcher import RankProcess as RankProcess
    from maniple.runtime.cluster.launcher import Streams as Streams
    from maniple.runtime.cluster.registry import LAUNCHERS as LAUNCHERS
    from maniple.runtime.cluster.run import run as run
    from maniple.runtime.devices.conformance import DEVICE_LAWS as DEVICE_LAWS
    from maniple.runtime.devices.conformance import check_device_laws as check_device_laws
    from maniple.runtime.devices.device import Device as Device
    from maniple.runtime.devices.device import Stream as Stream
    from maniple.runtime.devices.event import Done as Done
    from maniple.runtime.devices.event import Event as Event
    from maniple.runtime.devices.event import Signal as Signal
    from maniple.runtime.devices.host_device import HostDevice as HostDevice
    from maniple.runtime.devices.memory_budget import MemoryBudget as MemoryBudget
    from maniple.runtime.devices.processor import run_as_task as run_as_task
    from maniple.runtime.devices.registry import DEVICES as DEVICES
    from maniple.runtime.program.mapper import CopyView as CopyView
    from maniple.runtime.program.mapper import LaunchView as LaunchView
    from maniple.runtime.program.mapper import TaskMapping as TaskMapping
    from maniple.runtime.program.mapper import TaskOptions as TaskOptions
    from maniple.runtime.program.mapper import TaskProfile as TaskProfile
    from maniple.runtime.program.mapper import TaskView as TaskView
    from maniple.runtime.program.mapper import TunableView as TunableView
    from maniple.runtime.program.mapper import UseView as UseView
    from maniple.runtime.transports.inbox import InboxTransport as InboxTransport
    from maniple.runtime.transports.registry import TRANSPORTS as TRANSPORTS
    from maniple.runtime.transports.transport import Delivery as Delivery
    from maniple.runtime.transports.transport import Guard as Guard
    from maniple.runtime.transports.transport import Meter as Meter
    from maniple.runtime.transports.transport import Transport as Transport
    from maniple.strategies.bound.whole_step import whole_step as whole_step
    from maniple.strategies.cost_model.analytic import Analytic as Analytic
    from maniple.strategies.cost_model.cost_model import CostModel as CostModel
    from maniple.strategies.interface.equal_split import equal_splits as equal_splits
    from maniple.strategies.interface.parallel_search import AbstractParallelStrategy
    from maniple.strategies.interface.parallel_search import WorkItem as WorkItem
    from maniple.strategies.interface.placement import complete as complete
    from maniple.strategies.interface.placement import configure as configure
    from maniple.strategies.interface.placement import follow as follow
    from maniple.strategies.interface.placement import node_flops as node_flops
    from maniple.strategies.interface.placement import shared as shared
    from maniple.strategies.interface.placement import split_axis as split_axis
    from maniple.strategies.interface.placement import split_sample as split_sample
    from maniple.strategies.interface.placement import whole as whole
    from maniple.strategies.interface.space import Choice as Choice
    from maniple.strategies.interface.space import Space as Space
    from maniple.strategies.interface.strategy import AbstractDirectStrategy, AbstractStrategy
    from maniple.strategies.interface.strategy import Problem as Problem
    from maniple.strategies.interface.strategy import Progress as Progress
    from maniple.strategies.interface.strategy import StrategyError as StrategyError
    from maniple.strategies.named.model_parallel import balanced_blocks as balanced_blocks
    from maniple.strategies.simulation.simulation import Simulation as Simulation
    from maniple.strategies.soap.evaluation import Evaluation as Evaluation
    from maniple.strategies.soap.seeding import choices_of as choices_of
    from maniple.strategies.soap.seeding import found_plan as found_plan

    DirectStrategy = AbstractDirectStrategy
    Operator = AbstractOperator
    ParallelStrategy = AbstractParallelStrategy
    Strategy = AbstractStrategy

_HOMES = {
    "operators.graph.node": ("Node",),
    "operators.library.catalogue": ("register_operator",),
    "operators.operator.operator": (
        "BackwardReads",
        "Cost",
        "Initial",
        "Kernels",
        "AbstractOperator",
        "ParameterSpec",
        "TileContext",
    ),
    "operators.operator.torch_operator": ("TorchOperator",),
    "operators.plan.plan": ("OperatorPlan", "Predicted", "WeightPlan"),
    "operators.rules.rule": ("Rule",),
    "operators.rules.tile": ("Tile",),
    "runtime.cluster.host_launcher": ("AgentCommand", "HostCommand", "HostLauncher"),
    "runtime.cluster.launcher": ("Launcher", "LaunchRequest", "RankCommand", "RankProcess", "Streams"),
    "runtime.cluster.children.child_process": ("LocalProcess",),
    "runtime.cluster.registry": ("LAUNCHERS",),
    "runtime.cluster.run": ("run",),
    "runtime.devices.conformance": ("DEVICE_LAWS", "check_device_laws"),
    "runtime.devices.device": ("Device", "Stream"),
    "runtime.devices.event": ("Done", "Event", "Signal"),
    "runtime.devices.host_device": ("HostDevice",),
    "runtime.devices.memory_budget": ("MemoryBudget",),
    "runtime.devices.processor": ("run_as_task",),
    "runtime.devices.registry": ("DEVICES",),
    "runtime.program.mapper": (
        "CopyView",
        "LaunchView",
        "TaskMapping",
        "TaskOptions",
        "TaskProfile",
        "TaskView",
        "TunableView",
        "UseView",
    ),
    "runtime.transports.inbox": ("InboxTransport",),
    "runtime.transports.registry": ("TRANSPORTS",),
    "runtime.transports.transport": ("Delivery", "Guard", "Meter", "Transport"),
    "strategies.bound.whole_step": ("whole_step",),
    "strategies.cost_model.analytic": ("Analytic",),
    "strategies.cost_model.cost_model": ("CostModel",),
    "strategies.interface.equal_split": ("equal_splits",),
    "strategies.interface.parallel_search": ("AbstractParallelStrategy", "WorkItem"),
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
    "strategies.interface.space": ("Choice", "Space"),
    "strategies.interface.strategy": (
        "AbstractDirectStrategy",
        "AbstractStrategy",
        "Problem",
        "Progress",
        "StrategyError",
    ),
    "strategies.named.model_parallel": ("balanced_blocks",),
    "strategies.simulation.simulation": ("Simulation",),
    "strategies.soap.evaluation": ("Evaluation",),
    "strategies.soap.seeding": ("choices_of", "found_plan"),
}
# A base class is public without the `Abstract` of its own name.
_HOME = {name.removeprefix("Abstract"): (module, name) for module, names in _HOMES.items() for name in names}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]  # the names of _HOMES, each imported above


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module 'maniple.plugins' has no attribute {name!r}"
        raise AttributeError(msg)
    module, own = _HOME[name]
    found: object = getattr(import_module(f"maniple.{module}"), own)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__]
