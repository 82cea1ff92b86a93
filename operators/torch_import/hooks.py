"""Hooks: what changes gradients beside the operators of forward, and is refused, for no exported program has it.

Nothing of torch is replaced. What a module's forward adds to backward is found by looking, on the thread that exports:

    forward calls                     seen
    x.register_hook(f)                torch asks the mode, as of every method of a tensor
    F.apply(x), of an own Function    whatever its forward calls, the mode is asked from within apply
    F.apply(x), which calls nothing   its node is in the graph of the results' gradients
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from maniple.operators.operator.call_under_mode import call_under_mode
from maniple.process.error import RequestError
from maniple.process.torch_internals import has_gradient_hook, only_saves

_HERE = Path(__file__).resolve().parent
_TORCH = Path(torch.__file__).resolve().parent

_HOOKS = frozenset((torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook))
_APPLY = torch.autograd.Function.apply.__code__
_OWN = "a function with a backward of its own"
# The functions of torch that call one of the user's: without the mode, unless they are watched.
_CALLING = frozenset((F.triplet_margin_with_distance_loss,))


def check_hooks(module: nn.Module) -> None:
    """Refuse a parameter with a hook, which torch would call with its gradient.

    Raises:
        RequestError: Names the parameter.
    """
    for name, parameter in module.named_parameters():
        if has_gradient_hook(parameter):
            raise RequestError(
                f"from_torch: parameter '{name}' has a hook for its gradient, which would not be called; remove it"
            )


@final
class Unhooked(TorchFunctionMode):
    """A stretch in which this thread runs a module's forward, and what it adds to backward is refused.

    That is also a checkpoint with ``use_reentrant=True``; without, torch's checkpoints add nothing.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch; refuse one that adds to backward.

        Raises:
            RequestError: A function with a backward of its own, or a hook; names the line.
        """
        if func in _HOOKS:
            raise _refusal(
                f"{func.__name__}, whose hook is called with a gradient on its way", traceback.extract_stack()
            )
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code is _APPLY and not only_saves(frame.f_locals["cls"]):
                raise _refusal(f"{frame.f_locals['cls'].__name__}, {_OWN}", traceback.extract_stack(frame))
            frame = frame.f_back
        if func in _CALLING:
            return call_under_mode(func, args, kwargs or {}, self.__torch_function__)
        return func(*args, **(kwargs or {}))


def check_gradients(results: Iterable[torch.Tensor]) -> None:
    """Refuse results whose gradients would go through a function with a backward of its own.

    Raises:
        RequestError: Names the function.
    """
    left: list[Any] = [result.grad_fn for result in results]
    known: set[object] = set()
    while left:
        node = left.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if isinstance(node, BackwardCFunction):
            raise _refusal(f"{type(node).__name__.removesuffix('Backward')}, {_OWN}")
        left += [before for before, _ in node.next_functions]


def _refusal(what: str, stack: traceback.StackSummary | None = None) -> RequestError:
    """The refusal of what changes gradients.

    Args:
        what: It is.
        stack: Where it was called, where that is known.
    """
    own = users_frames(stack or traceback.StackSummary())
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
