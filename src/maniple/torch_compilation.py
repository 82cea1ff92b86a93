"""Compilation by torch: whether a trainer's chains of operators are compiled, and who cannot have that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.process import torch_internals
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.runtime.control.world import World

__all__: list[str] = []


def checked_compilation(asked: bool | None, world: World) -> bool:  # noqa: FBT001  (as a trainer is given it)
    """Whether torch compiles what a trainer's chains call.

    Args:
        asked: what the program says; None: what the launcher was told.
        world: the ranks.

    Raises:
        RequestError: the processors are no CPUs, or torch has no compiler here.
    """
    if asked is not None and not isinstance(asked, bool):
        raise RequestError(f"compile: expected True or False, got {asked!r}")
    if not (world.compiles if asked is None else asked):
        return False
    if world.device != "cpu":
        raise RequestError(
            f"compile: expected processors that are CPUs, got {world.device}: what torch compiles was run on no other; "
            "leave compile (maniple run --compile) out"
        )
    if missing := torch_internals.missing_compiler():
        raise RequestError(
            f"compile: expected a C++ compiler that torch finds, got none ({missing}); install g++ or clang++, name "
            "one by the variable CXX, or leave compile (maniple run --compile) out"
        )
    return True
