"""Substitution: functions of torch that no exported program can hold, computed by others that give the same.

| function | why it cannot be held | instead |
|---|---|---|
| ``gaussian_nll_loss`` | raises if a variance is negative, so it looks at values | a negative variance is a NaN |
| ``instance_norm`` with statistics | what it writes to them is not in the program | it is computed beside it |
| a batch norm without momentum | asks how many batches there were | the share of this one is a tensor |
| ``ctc_loss`` | torch has no form of it without values | refused |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from maniple.operators.operator.call_under_mode import call_under_mode
from maniple.process.error import RequestError


@final
class Substitution(TorchFunctionMode):
    """A stretch in which these functions are computed by others."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or what stands for it."""
        if func not in _BY:
            return func(*args, **(kwargs or {}))
        signature, substitute = _BY[func]
        bound = signature.bind(*args, **(kwargs or {}))
        bound.apply_defaults()
        return substitute(**bound.arguments)


@contextmanager
def counted_norms(module: nn.Module) -> Iterator[None]:
    """A stretch in which batch norms whose momentum is None average over all batches by their count as a tensor."""
    changed = [
        part
        for part in module.modules()
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
        and part.training
        and part.track_running_stats
        and part.momentum is None
        and "forward" not in vars(part)
    ]
    for part in changed:
        vars(part)["forward"] = partial(_counted_norm, part)
    try:
        yield
    finally:
        for part in changed:
            del vars(part)["forward"]


def _counted_norm(norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, x: torch.Tensor) -> torch.Tensor:
    """The norm by the batch's statistics, which it gives too: the running ones are the means of all batches'."""
    running, count = (norm.running_mean, norm.running_var), norm.num_batches_tracked
    if running[0] is None or running[1] is None or count is None:
        raise TypeError("a batch norm that tracks statistics has none")
    mean, variance = torch.zeros_like(running[0]), torch.zeros_like(running[1])
    found = F.batch_norm(x, mean, variance, norm.weight, norm.bias, training=True, momentum=1.0, eps=norm.eps)
    with torch.no_grad():
        count.add_(1)
        share = 1 / count.to(mean.dtype)
        running[0].mul_(1 - share).add_(mean * share)
        running[1].mul_(1 - share).add_(variance * share)
    return found


def _gaussian_nll_loss(**given: Any) -> Any:
    """The code of torch, which is told that no variance is negative: those that are have become NaNs."""
    if isinstance(given["var"], torch.Tensor):
        given["var"] = torch.where(given["var"] < 0, torch.nan, given["var"])
    return call_under_mode(F.gaussian_nll_loss, (), given, _answer)


def _answer(func: Callable[..., Any], types: Sequence[type], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Call what the loss calls; whether any variance is negative is all that it asks."""
    return False if func is torch.any else func(*args, **named)


def _instance_norm(
    *,
    input: torch.Tensor,  # noqa: A002 (torch's name)
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    **given: Any,
) -> Any:
    """The norm without statistics; theirs are the means over the samples of what each sample adds (unbiased)."""
    if running_mean is None or running_var is None or not use_input_stats:
        return F.instance_norm(
            input, running_mean, running_var, use_input_stats=use_input_stats, momentum=momentum, **given
        )
    found = F.instance_norm(input, use_input_stats=True, **given)
    spatial = list(range(2, input.dim()))
    with torch.no_grad():
        running_mean.mul_(1 - momentum).add_(input.mean(spatial).mean(0), alpha=momentum)
        running_var.mul_(1 - momentum).add_(input.var(spatial).mean(0), alpha=momentum)
    return found


def _ctc_loss(**_: Any) -> Any:
    """Refuse it: what torch says is the name of a kernel that nobody calls."""
    raise RequestError(
        "from_torch: ctc_loss cannot be imported: torch computes it on values alone, and it sums over whole sequences, "
        "of which no split is known here; import the module with another loss, or write the graph by hand, where "
        'Graph.call(ctc, logarithms, labels, lengths, results=[((), "float32")]) runs a function whole'
    )


_BY: dict[Callable[..., Any], tuple[inspect.Signature, Callable[..., Any]]] = {
    F.gaussian_nll_loss: (inspect.signature(F.gaussian_nll_loss), _gaussian_nll_loss),
    F.instance_norm: (inspect.signature(F.instance_norm), _instance_norm),
    F.ctc_loss: (inspect.signature(F.ctc_loss), _ctc_loss),
}
