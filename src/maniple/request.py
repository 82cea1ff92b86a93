"""What a command's arguments name: a model's graph, a machine, a size."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from maniple.operators.graph.graph import Graph
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

_MODULE = "maniple_model_file"
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?) *([KMGT]i?)?B?(?:/s)?")
_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def amount(option: str, text: str) -> float:
    """A number of bytes (or bytes per second), such as ``1e9``, ``16GiB`` or ``10GB/s``.

    Raises:
        RequestError: it is none, or not above zero.
    """
    match = _AMOUNT.fullmatch(text.strip())
    value = float(match[1]) * _UNITS.get(match[2] or "", 1) if match else math.nan
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"{option}: expected more than 0 bytes, such as 1e9, 16GiB or 10GB/s, got {text!r}")
    return value


def machine_of(name: str, memory_bytes: float | None = None) -> Machine:
    """The machine of a preset's name or a TOML file.

    Args:
        name: the name, or a path that ends with .toml.
        memory_bytes: what every memory holds, instead of what the machine says.

    Raises:
        RequestError: there is none.
    """
    from maniple.runtime.machine.machine import Machine

    machine = Machine.load(name) if name.endswith(".toml") else Machine.preset(name)
    if memory_bytes is None:
        return machine
    memories = tuple(replace(memory, capacity_bytes=int(memory_bytes)) for memory in machine.memories)
    return replace(machine, memories=memories)


def planned_for(
    path: Path, plan: Plan, model: str | None = None, batch: int | None = None, machine: str | None = None
) -> tuple[Graph, Machine]:
    """The graph and machine that a plan is for: those that are named, or else those that the plan names.

    Args:
        path: the plan's file.
        plan: the plan.
        model: see `model_of`.
        batch: samples of a step.
        machine: see `machine_of`.

    Raises:
        RequestError: nobody names them, or there are none of these names.
    """
    said = dict(dict(plan.explanation).get("", ()))
    found = {}
    for what, given in (("model", model), ("machine", machine)):
        name = given or said.get(what)
        if not isinstance(name, str):
            raise RequestError(f"{path}: the plan does not say which {what} it is for; name it with --{what}")
        found[what] = name
    size = batch if batch is not None else said.get("batch")
    return model_of(found["model"], int(str(size)) if size is not None else None), machine_of(found["machine"])


def model_of(source: str, batch: int | None, files: Sequence[str] = ()) -> Graph:
    """The graph of a model of the zoo, or the one that a function in a file makes.

    Args:
        source: a name, or ``file.py:callable``.
        batch: samples of a step.
        files: the endings of other files that the command takes, for its message.

    Raises:
        RequestError: there is no such model, or making it raised.
    """
    from maniple.models import model, model_names

    if batch is not None and batch < 1:
        raise RequestError(f"--batch: expected at least 1 sample, got {batch}")
    if ":" in source:
        graph = _make(source)
        return graph if batch is None else graph.with_batch(batch)
    names = model_names()
    if source not in names:
        if source.endswith(".py"):
            raise RequestError(f"{source!r}: expected file.py:callable; which function of it gives the model?")
        profile = f"a profile file ({' or '.join(files)}), " if files else ""
        raise RequestError(f"{source!r}: expected {profile}file.py:callable, or a model{nearest(source, names)}")
    return model(source, batch)


def _make(source: str) -> Graph:
    """The graph that a function of a file returns."""
    path, _, name = source.rpartition(":")
    if not Path(path).is_file():
        raise RequestError(f"{source}: the file {path} does not exist; expected file.py:callable")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{source}: {path} is no Python file; expected file.py:callable")
    module = importlib.util.module_from_spec(spec)
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:  # as Python does for a script, and for as long: functions may import late
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RequestError(f"{source}: {path} raised {type(error).__name__}: {error}") from error
    make = getattr(module, name, None)
    if not callable(make):
        own = [key for key, value in vars(module).items() if _is_own(key, value)]
        listed = nearest(name, own) if own else "; it defines none: expected one that returns a Graph"
        raise RequestError(f"{source}: {path} has no function {name!r}{listed}")
    try:
        graph: object = make()
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(f"{source}: {name}() raised {type(error).__name__}: {error}") from error
    if not isinstance(graph, Graph):
        raise RequestError(f"{source}: expected {name}() to return a Graph, got {type(graph).__name__}")
    return graph


def _is_own(name: str, value: object) -> bool:
    """Whether a name of a module is a function that the module defines itself and shows."""
    own = getattr(value, "__module__", "") == _MODULE
    return own and callable(value) and not isinstance(value, type) and not name.startswith("_")


def semantics_of(given: Sequence[str]) -> dict[str, str]:
    """What `--semantics KEY=VALUE` says, each time that it is given.

    Raises:
        RequestError: one is not of that form, no plan has it, or a key is there twice.
    """
    from maniple.operators.plan.legality import check_semantics

    found: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or key in found:
            raise RequestError(f"--semantics: expected KEY=VALUE, each key once, such as precision=bf16; got {each!r}")
        found[key] = value
    check_semantics(tuple(found.items()))
    return found
