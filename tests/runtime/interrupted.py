"""Interruptions by Ctrl-C, at one instruction after another."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any


def interruptions(make: Callable[[], Callable[[], object]], codes: Collection[CodeType]) -> Iterator[int]:
    """Call something anew with a SIGINT at its first instruction, then at its second, and so on to its last.

    Args:
        make: prepares a call and gives it.
        codes: the functions whose instructions count.

    Yields:
        The instruction, after the call has raised KeyboardInterrupt, which it must; SIGINT is then as before.
    """
    before, tracing = signal.signal(signal.SIGINT, signal.default_int_handler), sys.gettrace()
    try:
        at = 0
        while True:
            passed = 0

            def trace(frame: FrameType, event: str, _: object) -> Any:
                nonlocal passed
                if frame.f_code not in codes:
                    return None
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
                if event == "opcode":
                    passed += 1
                    if passed == at + 1:  # noqa: B023 - within this round alone
                        signal.raise_signal(signal.SIGINT)
                return trace

            call = make()
            sys.settrace(trace)
            try:
                call()
            except KeyboardInterrupt:
                raised = True
            else:
                raised = False
            finally:
                sys.settrace(tracing)
            if passed <= at:
                assert at > 0
                assert not raised
                return
            assert raised, f"a SIGINT at instruction {at} was lost"
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            yield at
            at += 1
    finally:
        signal.signal(signal.SIGINT, before)
