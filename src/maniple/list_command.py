"""The command `maniple list`: what there is, by kind; of plug-ins also which package each is from."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click

from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.process.registry import Registry

__all__: list[str] = []


def _models() -> Sequence[str]:
    from maniple.models import model_names

    return model_names()


def _machines() -> Sequence[str]:
    from maniple.runtime.machine.preset import GPUS

    return ("cpu:PROCESSORS", "cpu:RANKSxPROCESSORS", *(f"{gpu}xCOUNT" for gpu in sorted(GPUS)))


REGISTRIES = {
    "devices": ("maniple.runtime.devices.registry", "DEVICES"),
    "launchers": ("maniple.runtime.cluster.registry", "LAUNCHERS"),
    "mappers": ("maniple.mappers.registry", "MAPPERS"),
    "operators": ("maniple.operators.library.catalogue", "OPERATORS"),
    "strategies": ("maniple.strategies.interface.registry", "STRATEGIES"),
    "transports": ("maniple.runtime.transports.registry", "TRANSPORTS"),
}
"""Where the registry of each kind of plug-in is; it is loaded when the kind is asked for."""
NAMES: dict[str, Callable[[], Sequence[str]]] = {"machines": _machines, "models": _models}
"""What else can be listed."""


@click.command(name="list")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_names(kind: str | None, as_json: bool) -> int:  # noqa: FBT001
    """Print the names of all there is of a kind, or the kinds and how many there are of each.

    With --json, of plug-ins also where each is from and which package announces it, and of models what they take.
    """
    kinds = sorted({*REGISTRIES, *NAMES})
    if kind is None:
        counts = {each: len(_names(each)) for each in kinds}
        width = max(map(len, kinds))
        shown = "\n".join(f"{each:<{width}}  {count:>3}" for each, count in counts.items())
        click.echo(json.dumps({"kinds": counts}) if as_json else shown)
        return 0
    if kind not in kinds:
        raise RequestError(f"there is no list of {kind!r}{nearest(kind, kinds)}")
    click.echo(json.dumps({kind: _describe(kind)}) if as_json else "\n".join(_names(kind)))
    return 0


def _registry(kind: str) -> Registry[object]:
    module, name = REGISTRIES[kind]
    return cast("Registry[object]", getattr(import_module(module), name))


def _names(kind: str) -> Sequence[str]:
    return _registry(kind).names() if kind in REGISTRIES else NAMES[kind]()


def _describe(kind: str) -> Sequence[object]:
    if kind in REGISTRIES:
        known = _registry(kind)
        return [
            {"name": name, "origin": known.origin(name), "packages": list(known.packages(name))}
            for name in known.names()
        ]
    if kind != "models":
        return list(NAMES[kind]())
    from maniple.models import describe_models

    return describe_models()
