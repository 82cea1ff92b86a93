"""Calls under a mode: functions of torch that are written in Python, run so that a mode sees what they call.

torch asks a mode of a function once, where the function begins, and runs the function without the mode:

    F.multi_head_attention_forward(...)    looks for a mode; it is asked
        F.dropout(...)                     there is no mode any more

A call under a mode runs the same code, that does not look at its beginning, within the mode. The code is given global
names of its own for that, so those of torch stay as they are, for other threads and for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast, final

from torch.overrides import TorchFunctionMode

Asked = Callable[[Callable[..., Any], Sequence[type], Sequence[Any], Mapping[str, Any]], Any]
"""What a mode does with a call: as ``TorchFunctionMode.__torch_function__``."""

# How a function of torch looks for a mode, all of them names of torch.overrides.
_LOOKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@final
class _Inner(TorchFunctionMode):
    """A mode that asks another, which torch has put aside while it runs."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Ask about a call."""
        return self._asked(func, types, args, kwargs or {})


def call_under_mode(func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], asked: Asked) -> Any:
    """Call a function of torch, and ask about what it calls.

    Args:
        func: Written in Python.
        args: What it is called with.
        named: By name.
        asked: Of a mode that torch has put aside, since it was asked about this call.
    """
    given = cast("FunctionType", func)
    blind = {**given.__globals__, **dict.fromkeys(_LOOKS, _finds_none)}
    code = FunctionType(given.__code__, blind, given.__name__, given.__defaults__, given.__closure__)
    code.__kwdefaults__ = given.__kwdefaults__
    with _Inner(asked):
        return code(*args, **named)


def _finds_none(*_: object) -> bool:
    return False
