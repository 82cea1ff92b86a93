"""Counters: 64-bit numbers in memory that one thread raises and others, of this process or another, wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from maniple.process.compilation import linear_algebra

__all__: list[str] = []

WIDTH = 8


def _loading(typing: object, address: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", WIDTH)

    return types.int64(types.int64), generate


def _storing(typing: object, address: object, value: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", WIDTH)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _exchanging(typing: object, address: object, value: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("xchg", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


# Numba has no atomic operations of its own; these are LLVM's. Whoever sees a counter's new value by `load` sees all
# that was written before `store` gave it that value, on every kind of processor.
load = cast("Callable[[int], int]", intrinsic(_loading))
store = cast("Callable[[int, int], None]", intrinsic(_storing))
_exchange = cast("Callable[[int, int], int]", intrinsic(_exchanging))

linear_algebra.defer()  # what follows is compiled at once, in many a process as the first


@njit(["void(int64, int64)"], cache=True)
def publish(address: int, value: int) -> None:
    """Raise a counter.

    Args:
        address: where it is, aligned; nobody else writes it.
        value: the new value.
    """
    store(address, value)


@njit(["int64(int64, int64)"], cache=True)
def exchange(address: int, value: int) -> int:
    """Set a counter and give what it was; whatever this thread reads afterwards it reads after that.

    Args:
        address: where it is, aligned.
        value: the new value.
    """
    return _exchange(address, value)


@njit(["boolean(int64, int64, int64)"], cache=True, nogil=True)
def has_reached(address: int, value: int, looks: int) -> bool:
    """Say whether a counter has reached a value, looking again and again without the interpreter lock.

    Args:
        address: where it is, aligned.
        value: the value to wait for.
        looks: how often to look, at least 1; about a nanosecond each.
    """
    for _ in range(looks):  # noqa: SIM110  (what the compiler takes)
        if load(address) >= value:
            return True
    return False


@njit(["int64(int64)"], cache=True)
def value_of(address: int) -> int:
    """Read a counter.

    Args:
        address: where it is, aligned.
    """
    return load(address)
