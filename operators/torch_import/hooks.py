"""Hooks: what changes gradients beside the operators of forward, and is refused, for no exported program has it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maniple.regions.error import RequestError

_HERE = Path(__file__).resolve().parent
_TORCH = Path(torch.__file__).resolve().parent

_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
_HELD = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Where a tensor holds them, which no public name of torch tells."""


def check_hooks(module: nn.Module) -> None:
    """Refuse a parameter with a hook, which torch would call with its gradient.

    Raises:
        RequestError: Names the parameter.
    """
    for name, parameter in module.named_parameters():
        if any(getattr(parameter, held, None) for held in _HELD):
            raise RequestError(
                f"from_torch: parameter '{name}' has a hook for its gradient, which would not be called; remove it"
            )


@contextmanager
def without_hooks() -> Iterator[None]:
    """A stretch in which this thread runs a module's forward, and what it adds to backward is refused.

    That is also a checkpoint with ``use_reentrant=True``; without, torch's checkpoints add nothing.

    Raises:
        RequestError: A function with a backward of its own, or a hook; names the line.
    """
    thread, function = threading.get_ident(), torch.autograd.Function
    apply = vars(function)["apply"]
    hooks = {name: getattr(torch.Tensor, name) for name in _HOOKS}

    def applied(cls: type[torch.autograd.Function], *args: Any, **named: Any) -> Any:
        if threading.get_ident() == thread:
            raise _refusal(f"{cls.__name__}, a function with a backward of its own")
        return apply.__get__(None, cls)(*args, **named)

    def refusing(name: str, register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(tensor: torch.Tensor, hook: Any) -> Any:
            if threading.get_ident() == thread:
                raise _refusal(f"{name}, whose hook is called with a gradient on its way")
            return register(tensor, hook)

        return registered

    function.apply = classmethod(applied)  # type: ignore[assignment, method-assign]
    for name, register in hooks.items():
        setattr(torch.Tensor, name, refusing(name, register))
    try:
        yield
    finally:
        function.apply = apply  # type: ignore[method-assign]
        for name, register in hooks.items():
            setattr(torch.Tensor, name, register)


def _refusal(what: str) -> RequestError:
    """The refusal of what changes gradients."""
    own = users_frames(traceback.extract_stack())
    place = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return RequestError(
        f"from_torch: forward uses {what}{place}, and gradients here are those of forward's operators alone; write it "
        "with operators of torch (x + (f(x) - x).detach() has the value of f and the gradient of x), or call it in the "
        "body of an mp.operator, in a graph built by hand"
    )


def users_frames(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The frames of neither torch nor this package, nor of the machinery between them."""
    found = []
    for frame in frames:
        path = Path(frame.filename)
        if path.exists() and not path.resolve().is_relative_to(_TORCH) and path.resolve().parent != _HERE:
            found.append(frame)
    return found
