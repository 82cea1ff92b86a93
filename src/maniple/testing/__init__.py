"""What authors of programs, plug-ins and tests need to try them without a cluster, a GPU or a launcher.

    import maniple as mp

    def program(world):
        ...

    mp.testing.run_on_worlds(mp.testing.local_worlds(4, device="null"), program)

    name                    what it is
    ``local_worlds``        ranks that are threads of this process, over a transport without sockets
    ``run_on_worlds``       runs a program on each of them, and ends when all have ended
    ``Stepper``             takes such ranks on by one thread, a turn each, in an order that is always the same
    ``NullDevice``          a GPU without hardware: what a host must not touch, it cannot
    ``InjectedDropout``     has torch draw what a graph draws, to compare a module with its import
    ``check_strategy``      whether a strategy keeps the laws: legal plans, equal seeds equal plans, equal losses

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.operators.proving.reference_random import InjectedDropout as InjectedDropout
    from maniple.runtime.control.stepper import Stepper as Stepper
    from maniple.runtime.devices.null_device import NullDevice as NullDevice
    from maniple.testing.laws import check_strategy as check_strategy
    from maniple.testing.worlds import local_worlds as local_worlds
    from maniple.testing.worlds import run_on_worlds as run_on_worlds

_HOME = {
    "InjectedDropout": "operators.proving.reference_random",
    "NullDevice": "runtime.devices.null_device",
    "Stepper": "runtime.control.stepper",
    "check_strategy": "testing.laws",
    "local_worlds": "testing.worlds",
    "run_on_worlds": "testing.worlds",
}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]  # the names of _HOME, each imported above


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module 'maniple.testing' has no attribute {name!r}"
        raise AttributeError(msg)
    found: object = getattr(import_module(f"maniple.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__]
