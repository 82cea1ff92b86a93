"""Closure: what a module's forward takes from anywhere but its arguments, and must not change or train."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from maniple.operators.graph.nesting import leaves, tensors
from maniple.operators.torch_import.hooks import users_frames
from maniple.process.error import RequestError


def attributes(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a module and those inside hold as plain attributes, also in lists, by dotted name."""
    for prefix, part in module.named_modules():
        for key, held in vars(part).items():
            for path, leaf in () if key.startswith("_") else leaves(f"{prefix}.{key}" if prefix else key, held):
                if isinstance(leaf, Tensor):
                    yield path, leaf
                elif isinstance(leaf, nn.Module):  # one in a plain list, of which the module knows nothing
                    yield from ((f"{path}.{name}", value) for name, value in leaf.named_parameters())


@contextmanager
def preserve(values: Iterable[Tensor]) -> Iterator[None]:
    """A stretch after which tensors have the values that they had, whatever wrote to them meanwhile."""
    before = [(value, value.detach().clone()) for value in values if not value.is_meta]
    try:
        yield
    finally:
        with torch.no_grad():
            for value, old in before:
                if not torch.equal(value, old):
                    value.copy_(old)


@contextmanager
def in_modes(modes: Sequence[tuple[nn.Module, bool]]) -> Iterator[None]:
    """A stretch in which modules are in training, or are not, as they were; afterwards they are as they are."""
    now = [(part, part.training) for part, _ in modes]
    try:
        for part, mode in modes:
            part.training = mode  # not train(), which changes the modules inside
        yield
    finally:
        for part, mode in now:
            part.training = mode


@final
class Untrained(TorchFunctionMode):
    """A stretch in which a tensor that requires a gradient and is no parameter of the module is refused.

    While torch exports a module, its parameters and inputs have no values and are of a type of their own; what is a
    plain tensor or parameter comes from elsewhere, and would become a constant.

    Args:
        name: What messages call the module.
        named: The tensors of which it is known where they are held.
    """

    def __init__(self, name: str, named: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._name = name
        self._named = named

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch; refuse one through which such a gradient would flow."""
        found = func(*args, **(kwargs or {}))
        if any(result.requires_grad for _, result in tensors("", found)):
            for _, value in tensors("", [*args, *(kwargs or {}).values()]):
                if type(value) in {Tensor, nn.Parameter} and value.requires_grad:
                    raise self._refusal(value)
        return found

    def _refusal(self, value: Tensor) -> RequestError:
        own = users_frames(traceback.extract_stack())
        place = f", read at {own[-1].filename}:{own[-1].lineno}," if own else ""
        name = next((repr(key) for key, held in self._named.items() if held is value), "")
        return RequestError(
            f"from_torch: {self._name}: {name or f'a tensor of shape {tuple(value.shape)}'}{place} requires a gradient "
            "and is no parameter of the module, so it would not be trained; register it (nn.Parameter, nn.ModuleList, "
            "nn.ParameterList), or detach it"
        )
