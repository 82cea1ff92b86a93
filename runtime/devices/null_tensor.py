"""Tensors of null devices: memory of the host that only what a stream runs computes with.

See ``null_device``: what is made in a stream lies on its device, what lies elsewhere takes no part, and memory of
another device is left alone but for what torch orders itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from maniple.process.error import RunError

__all__: list[str] = []

_here = threading.local()

HOMES: dict[int, str] = {}
"""The device that memory is of, by its address."""

_PLAIN = torch.Tensor
_LOOKED_AT = ("shape", "dtype", "ndim", "device", "layout", "requires_grad", "is_cuda")
# What the host may do with a tensor of a device: look at how it lies, and cut views.
_VIEWS = frozenset(
    {
        *(_PLAIN.permute, _PLAIN.view, _PLAIN.reshape, _PLAIN.transpose, _PLAIN.t, _PLAIN.detach, _PLAIN.expand),
        *(_PLAIN.numel, _PLAIN.element_size, _PLAIN.data_ptr, _PLAIN.dim, _PLAIN.size, _PLAIN.stride),
        *(_PLAIN.is_contiguous, _PLAIN.is_floating_point, _PLAIN.as_subclass, _PLAIN.__len__, _PLAIN.__hash__),
        _PLAIN.untyped_storage,
        *(getattr(_PLAIN, name).__get__ for name in _LOOKED_AT),
    }
)
# What moves values between the memories of host and device.
_COPIES = frozenset({_PLAIN.copy_, _PLAIN.__setitem__})


class NullTensor(torch.Tensor):
    """A tensor in the memory of a null device.

    Raises:
        RunError: the host computes with it.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check who asks, and do it."""
        if not getattr(_here, "inside", False) and not _looks(func, args):
            name = getattr(func, "__name__", str(func))
            raise RunError(
                f"{name} of a tensor on a null device outside of its streams: the host does not see that memory; "
                "submit the work to a stream, or copy the values and wait for the event of the copy"
            )
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def _looks(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a call leaves values alone."""
    if func is _PLAIN.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in index)
    return func in _VIEWS


class _Placement(TorchFunctionMode):
    """What is made is made on the device, and what lies elsewhere takes no part."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check where the arguments lie, do it, and place the result."""
        given = list(_tensors((*args, *(kwargs or {}).values())))
        ours = [tensor for tensor in given if isinstance(tensor, NullTensor)]
        host = [tensor for tensor in given if not isinstance(tensor, NullTensor) and tensor.ndim]
        if ours and host and func not in _COPIES:
            name = getattr(func, "__name__", str(func))
            raise RunError(
                f"{name} was given tensors on a null device and on the host, of shapes {tuple(ours[0].shape)} and "
                f"{tuple(host[0].shape)}; a body on a device uses its arguments and what it makes itself"
            )
        if ours and not _looks(func, args):
            _check_current(func, args, ours)
        found = func(*args, **(kwargs or {}))
        if "device" in (kwargs or {}):
            return _cast(found, torch.Tensor)
        return found if given else _cast(found, NullTensor)


def _home(tensor: torch.Tensor) -> str:
    """The device whose memory a tensor lies in; "" for scratch of a body, which is of the stream that runs it."""
    return HOMES.get(tensor.untyped_storage().data_ptr(), "")


def _check_current(func: Callable[..., Any], args: Sequence[Any], ours: Sequence[torch.Tensor]) -> None:
    """Refuse what would run in a stream that has waited for nothing.

    Raises:
        RunError: a tensor is of another device than the stream that runs.
    """
    current = getattr(_here, "device", "")
    other = next((tensor for tensor in ours if _home(tensor) not in {"", current}), None)
    if other is None:
        return
    if func is _PLAIN.copy_ and all(tensor.is_contiguous() for tensor in ours if tensor is not args[0]):
        return  # torch has both devices' current streams wait for each other around it
    name = getattr(func, "__name__", str(func))
    raise RunError(
        f"{name} in a stream of {current} was given memory of {_home(other)}: it would run in that device's current "
        "stream, which waited for nothing; do it in a stream of its own device, and copy what lies without gaps"
    )


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _cast(found: Any, kind: type[torch.Tensor]) -> Any:
    if isinstance(found, torch.Tensor) and type(found) is not kind:
        return found.as_subclass(kind)
    return found


@contextmanager
def inside(device: str) -> Iterator[None]:
    """Compute on a device, on this thread: its stream is the current one."""
    before = getattr(_here, "inside", False), getattr(_here, "device", "")
    _here.inside, _here.device = True, device
    try:
        with _Placement():
            yield
    finally:
        _here.inside, _here.device = before


def lies_on_a_device(tensor: object) -> bool:
    return isinstance(tensor, NullTensor)


def is_inside() -> bool:
    """Whether this thread computes on a device."""
    return bool(getattr(_here, "inside", False))
