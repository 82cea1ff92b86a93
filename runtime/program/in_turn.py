"""Calls in turn: what a program asks of its rank, refused while another thread asks.

Launches of two threads would be analysed at once, in an order that no other rank has. Threads may follow one another;
see `Turn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from maniple.runtime.devices.processor import inside_task

if TYPE_CHECKING:
    from maniple.runtime.control.turn import Turn

__all__: list[str] = []

P = ParamSpec("P")
R = TypeVar("R")


def in_turn(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Have a call wait for no other thread, and be refused while one is inside of such a call of the same rank.

    Args:
        call: a method of what has a `turn`, or a function that is given such a thing first.
    """

    @wraps(call)
    def called(program: Any, /, *args: P.args, **named: P.kwargs) -> R:
        turn: Turn = program.turn
        if turn.mine or inside_task():  # the latter is refused in the call's own words; nobody's turn is taken for it
            return call(program, *args, **named)
        try:
            try:
                turn.take()
                return call(program, *args, **named)
            finally:
                turn.give()
        finally:  # Ctrl-C may come as the turn is taken, or before it is given; it does not come twice
            turn.give()

    return called
