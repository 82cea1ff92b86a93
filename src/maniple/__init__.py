"""Maniple: a Legion-style task runtime for training neural networks.

Names are loaded when they are first used, so `import maniple` is quick and planning needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from maniple.process import environment
from maniple.runtime.control import exit_hook

if TYPE_CHECKING:
    from maniple import data as data
    from maniple import optim as optim
    from maniple import plugins as plugins
    from maniple import testing as testing
    from maniple.mappers.registry import register_mapper as register_mapper
    from maniple.models import model as model
    from maniple.operators.graph.graph import Graph as Graph
    from maniple.operators.graph.graph import Tensor as Tensor
    from maniple.operators.plan.plan import Plan as Plan
    from maniple.operators.proving.user_operator import operator as operator
    from maniple.operators.rules.window import Halo as Halo
    from maniple.operators.torch_import.from_torch import from_torch as from_torch
    from maniple.operators.training.descent import SGD as SGD
    from maniple.process.error import ManipleError as ManipleError
    from maniple.process.error import RequestError as RequestError
    from maniple.process.error import RunError as RunError
    from maniple.program import auto_trace as auto_trace
    from maniple.program import copy as copy
    from maniple.program import debug as debug
    from maniple.program import fence as fence
    from maniple.program import fill as fill
    from maniple.program import index_launch as index_launch
    from maniple.program import launch as launch
    from maniple.program import record as record
    from maniple.program import region as region
    from maniple.program import trace as trace
    from maniple.program import tunable as tunable
    from maniple.program import world as world
    from maniple.regions.partition import blocks as blocks
    from maniple.regions.partition import halo as halo
    from maniple.regions.partition import rectangles as rectangles
    from maniple.regions.partition import replicate as replicate
    from maniple.regions.rectangle import Rect as Rect
    from maniple.runtime.machine.machine import Machine as Machine
    from maniple.runtime.observe.timeline import Timeline as Timeline
    from maniple.runtime.program.future import Future as Future
    from maniple.runtime.program.future import FutureMap as FutureMap
    from maniple.runtime.program.handle import Region as Region
    from maniple.runtime.program.mapper import Mapper as Mapper
    from maniple.runtime.program.reduction import register_reduction as register_reduction
    from maniple.runtime.program.task import Color as Color
    from maniple.runtime.program.task import Read as Read
    from maniple.runtime.program.task import ReadWrite as ReadWrite
    from maniple.runtime.program.task import ReduceMax as ReduceMax
    from maniple.runtime.program.task import ReduceMin as ReduceMin
    from maniple.runtime.program.task import ReduceProduct as ReduceProduct
    from maniple.runtime.program.task import ReduceSum as ReduceSum
    from maniple.runtime.program.task import Task as Task
    from maniple.runtime.program.task import WriteDiscard as WriteDiscard
    from maniple.runtime.program.task import task as task
    from maniple.runtime.storage.footprint import index_space as index_space
    from maniple.search_loop import search as search
    from maniple.strategies.interface.plan_frontier import Frontier as Frontier
    from maniple.strategies.interface.registry import register_strategy as register_strategy
    from maniple.strategies.pipeline.profile import read_profile as read_profile
    from maniple.trainer import Trainer as Trainer

__version__ = "0.1.0"

_HOMES = {
    "mappers.registry": ("register_mapper",),
    "models": ("model",),
    "operators.graph.graph": ("Graph", "Tensor"),
    "operators.training.descent": ("SGD",),
    "operators.plan.plan": ("Plan",),
    "operators.torch_import.from_torch": ("from_torch",),
    "operators.proving.user_operator": ("operator",),
    "operators.rules.window": ("Halo",),
    "program": (
        "auto_trace",
        "copy",
        "debug",
        "fence",
        "fill",
        "index_launch",
        "launch",
        "record",
        "region",
        "trace",
        "tunable",
        "world",
    ),
    "search_loop": ("search",),
    "process.error": ("ManipleError", "RequestError", "RunError"),
    "regions.partition": ("blocks", "halo", "rectangles", "replicate"),
    "regions.rectangle": ("Rect",),
    "runtime.storage.footprint": ("index_space",),
    "runtime.program.future": ("Future", "FutureMap"),
    "runtime.program.handle": ("Region",),
    "runtime.machine.machine": ("Machine",),
    "runtime.program.mapper": ("Mapper",),
    "runtime.program.reduction": ("register_reduction",),
    "runtime.program.task": (
        "Color",
        "Read",
        "ReadWrite",
        "ReduceMax",
        "ReduceMin",
        "ReduceProduct",
        "ReduceSum",
        "Task",
        "WriteDiscard",
        "task",
    ),
    "runtime.observe.timeline": ("Timeline",),
    "strategies.interface.plan_frontier": ("Frontier",),
    "strategies.interface.registry": ("register_strategy",),
    "strategies.pipeline.profile": ("read_profile",),
    "trainer": ("Trainer",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("data", "optim", "plugins", "testing")

__all__ = [*_HOME, *_MODULES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]  # each imported above


if environment.is_launched():
    # A rank that a launcher started: an error before it has joined is told in the same way as one after.
    exit_hook.install()


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"maniple.{name}")
    if name not in _HOME:
        msg = f"module 'maniple' has no attribute {name!r}"
        raise AttributeError(msg)
    found: object = getattr(import_module(f"maniple.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
