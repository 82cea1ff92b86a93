"""Calls in turn: what a program asks of its rank, refused while another thread asks.

Launches of two threads would be analysed at once, in an order that no other rank has. Threads may follow one another:

    thread 1    launch, launch                  fence
    thread 2                    launch, read
    thread 3                           launch: refused, thread 2 still reads
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from maniple.regions.error import RequestError
from maniple.runtime.devices.processor import inside_task

if TYPE_CHECKING:
    from maniple.runtime.control.turn import Turn

__all__: list[str] = []

P = ParamSpec("P")
R = TypeVar("R")


def in_turn(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Have a method wait for no other thread, and be refused while one is inside of such a method of the same rank.

    Args:
        call: a method of what has a `turn`.
    """

    @wraps(call)
    def called(program: Any, /, *args: P.args, **named: P.kwargs) -> R:
        if inside_task():  # which the call refuses in its own words; nobody's turn is taken for it
            return call(program, *args, **named)
        turn: Turn = program.turn
        if not turn.take():
            raise RequestError(
                f"this thread makes launches or waits for some while thread {turn.holder()!r} does; a rank runs one "
                "program, in one thread at a time: make both in one thread, one after the other, or start a process "
                "for each program"
            )
        try:
            return call(program, *args, **named)
        finally:
            turn.give()

    return called
