"""Calls under a mode: what a function of torch calls is seen, and torch is meanwhile as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from maniple.operators.operator.call_under_mode import call_under_mode


class Seen(TorchFunctionMode):
    """Notes what is called, and watches one function of torch."""

    def __init__(self, watched: Callable[..., Any]) -> None:
        super().__init__()
        self.watched, self.seen = watched, list[Any]()
        self.before = [dict(vars(holder)) for holder in (F, torch.Tensor)]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note a call."""
        self.seen.append(func)
        for holder, before in zip((F, torch.Tensor), self.before, strict=True):
            assert all(vars(holder)[name] is value for name, value in before.items())
        if func is self.watched:
            return call_under_mode(func, args, kwargs or {}, self.__torch_function__)
        return func(*args, **(kwargs or {}))


def test_what_a_function_calls_is_seen_in_order() -> None:
    x = torch.ones(2, 3)
    with Seen(F.gumbel_softmax) as watched:
        F.gumbel_softmax(x)
    assert watched.seen[:3] == [F.gumbel_softmax, torch.empty_like, torch.Tensor.exponential_]
    with Seen(F.dropout) as unwatched:
        F.gumbel_softmax(x)
    assert unwatched.seen == [F.gumbel_softmax]


def test_it_gives_what_the_function_gives() -> None:
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    with Seen(F.gumbel_softmax):
        torch.manual_seed(0)
        found = F.gumbel_softmax(x, tau=0.5, dim=0)
    torch.manual_seed(0)
    assert torch.equal(found, F.gumbel_softmax(x, tau=0.5, dim=0))


def test_a_tensor_of_a_type_of_its_own_is_passed_on() -> None:
    """A parameter is looked at in another way than a plain tensor by some functions."""
    with Seen(torch.svd_lowrank) as watched:
        torch.svd_lowrank(torch.nn.Parameter(torch.ones(4, 3)), q=2)
    assert torch.svd_lowrank in watched.seen
    assert torch.randn in watched.seen
