"""The compiled lane: takes one step after another without the interpreter, as long as steps are compiled.

Steps lie in a table of 64-bit words, one after another:

    ========  =============================================================================================
    word      what it says
    ========  =============================================================================================
    0         words of this step
    1, 2      where to note its beginning and its end
    3, 4      what to do, and where its block begins: `NOTHING`, `COPY`, `MEET`, or the address of a leaf to call
    5         the steps taken with it, where somebody waits for it; else 0
    6, 7      how many waits and arrivals follow
    8 ...     waits: address of a counter, which of the run's bases is its, value beyond the base
    ...       arrivals: where to note the beginning and the end of a row of which tiles have come
    ...       the block
    ========  =============================================================================================
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from maniple.process.compilation.numba_internals import alloca_once, raw_memcpy
from maniple.runtime.transports.shared_counter import load, store

__all__: list[str] = []

NOTHING, COPY, MEET = 0, 1, 2
HEAD = 8
DONE, WAITING, FAILED, MOVED = 0, 1, 2, 3
COPY_AXES = 3

_INT64 = ir.IntType(64)
_clock_gettime = ctypes.CDLL(None).clock_gettime
CLOCK = cast("int", ctypes.cast(_clock_gettime, ctypes.c_void_p).value)
"""Address of the C library's clock."""
# The clock of `time.perf_counter_ns`, which on macOS is another than the monotonic one.
CLOCK_ID = cast("int", getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))


def _invoking(typing: object, function: object, block: object, values: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_INT64, [_INT64, _INT64])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.int64, types.int64, types.int64), generate


def _timing(typing: object, function: object, clock: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), _INT64.as_pointer()])
        told = alloca_once(builder, _INT64, size=2)
        clock = builder.trunc(arguments[1], ir.IntType(32))
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [clock, told])
        seconds, rest = (builder.load(builder.gep(told, [_INT64(number)])) for number in range(2))
        return builder.add(builder.mul(seconds, _INT64(1_000_000_000)), rest)

    return types.int64(types.int64, types.int64), generate


def _moving(typing: object, target: object, source: object, size: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ends = [builder.inttoptr(end, ir.IntType(8).as_pointer()) for end in arguments[:2]]
        raw_memcpy(builder, ends[0], ends[1], arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _reading(typing: object, address: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _INT64.as_pointer()))

    return types.int64(types.int64), generate


def _writing(typing: object, address: object, value: object) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _INT64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


_invoke = cast("Callable[[int, int, int], int]", intrinsic(_invoking))
_time = cast("Callable[[int, int], int]", intrinsic(_timing))
_move = cast("Callable[[int, int, int], None]", intrinsic(_moving))
_read = cast("Callable[[int], int]", intrinsic(_reading))
_write = cast("Callable[[int, int], None]", intrinsic(_writing))


@njit(nogil=True, cache=True)
def copy_box(block: int) -> int:
    """Copy a box of elements; gives the bytes that were copied.

    Args:
        block: address of the words target, source, bytes that lie together on both sides; then for each of `COPY_AXES`
            axes its extent and its strides in the target and in the source, in bytes.
    """
    target, source, size, copied = _read(block), _read(block + 8), _read(block + 16), 0
    for i in range(_read(block + 24)):
        for j in range(_read(block + 48)):
            for k in range(_read(block + 72)):
                # Axes that are not there have an extent of 1: see `Push.box`, which puts them outside.
                to = target + i * _read(block + 32) + j * _read(block + 56) + k * _read(block + 80)
                of = source + i * _read(block + 40) + j * _read(block + 64) + k * _read(block + 88)
                _move(to, of, size)
                copied += size
    return copied


@njit(nogil=True, cache=True)
def await_counters(waits: int, count: int, bases: int, looks: int) -> bool:
    """Say whether counters have reached what a step waits for, looking again and again.

    Args:
        waits: address of the step's first wait.
        count: how many there are.
        bases: address of the run's bases.
        looks: how often to look for each.
    """
    for _ in range(count):
        # The counter of another lane goes on from where its last run ended, each from a base of its own.
        wanted = _read(bases + 8 * _read(waits + 8)) + _read(waits + 16)
        look = 1
        while load(_read(waits)) < wanted:
            if look == looks:
                return False
            look += 1
        waits += 24
    return True


@njit(nogil=True, cache=True)
def meet(block: int, run: int, looks: int) -> int:
    """Wait until another rank has begun a run; gives DONE, WAITING, or MOVED where its instances lie elsewhere by now.

    Args:
        block: address of the words: where its counter of runs is, where the place of its first table is, how many there
            are, how many bytes apart, and the table that pushes are bound to.
        run: the number of the run.
        looks: how often to look.
    """
    begun, look = _read(block), 1
    while load(begun) < run:
        if look == looks:
            return WAITING
        look += 1
    # Each run says which table of places its instances are in; the entries take turns, for two runs may be under way.
    # Where it is another table than pushes are bound to, instances have moved, and pushes must be bound anew.
    table = _read(block + 8) + run % _read(block + 16) * _read(block + 24)
    return DONE if _read(table) == _read(block + 32) else MOVED


# Addresses count bytes and words have eight: word n of a step is at `table + 8 * n`. The clock is read where something
# may have taken time, once: what ends one step begins the next. Where a step is left in WAITING nothing of it has been
# done, and it is taken again from its first wait: counters do not fall.
@njit(nogil=True, cache=True)
def take_steps(
    table: int, end: int, bases: int, values: int, begun: int, ended: int, counter: int, looks: int, clock: int,
    clock_id: int, told: int,
) -> int:  # fmt: skip
    """Take steps until the last is taken, one has failed, or one has waited for long.

    Args:
        table: address of the first step.
        end: address past the last one.
        bases: address of the run's bases; the first is that of the lane's own counter, the second the run's number.
        values: address of what the run was given by value.
        begun: address of the rows' beginnings, in nanoseconds.
        ended: address of their ends.
        counter: address of the lane's own counter, 0 where nobody looks at it.
        looks: how often to look for a counter before giving up.
        clock: address of the clock.
        clock_id: which of its clocks.
        told: address of two words, in which it tells where it stopped and how many bytes it wrote to other ranks.

    Returns:
        DONE, WAITING, FAILED or MOVED.
    """
    outcome, written = DONE, 0
    now = _time(clock, clock_id)
    while table < end:
        waits = _read(table + 48)
        if waits > 0:
            if not await_counters(table + 8 * HEAD, waits, bases, looks):
                outcome = WAITING
                break
            waiting, now = now, _time(clock, clock_id)
            # Tiles that others wrote here have come: their rows took from when this lane began to wait until now.
            at = table + 8 * HEAD + 24 * waits
            for _ in range(_read(table + 56)):
                _write(begun + 8 * _read(at), waiting)
                _write(ended + 8 * _read(at + 8), now)
                at += 16
        _write(begun + 8 * _read(table + 8), now)
        function = _read(table + 24)
        if function == MEET:
            outcome = meet(table + 8 * _read(table + 32), _read(bases + 8), looks)
            if outcome != DONE:
                break
        elif function == COPY:
            written += copy_box(table + 8 * _read(table + 32))
        elif function != NOTHING and _invoke(function, table + 8 * _read(table + 32), values) != 0:
            outcome = FAILED
            break
        now = _time(clock, clock_id)
        _write(ended + 8 * _read(table + 16), now)
        taken = _read(table + 40)
        # Released after all that the step wrote (see `shared_counter.store`). Counters go on from run to run, each run
        # from its base, so that nobody sets one back while another still looks.
        if taken > 0 and counter != 0:
            store(counter, _read(bases) + taken)
        table += 8 * _read(table)
    _write(told, table)
    _write(told + 8, written)
    return outcome
