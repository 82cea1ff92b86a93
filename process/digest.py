"""Digests: what a call was given, as a few bytes that ranks can compare."""

from __future__ import annotations

import threading
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import msgpack
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__: list[str] = []

_OF_NUMPY = frozenset((torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool))
"""Types that numpy has too, by whose view bytes are had in a third of the time that a chain of torch's views takes."""
SAMPLES = 128
"""Elements of a sampled tensor. Each may be a miss of all caches, and batches that differ do in most elements."""


class _Kept(threading.local):
    """A thread's packer: to make one takes longer than to pack with it."""

    def __init__(self) -> None:
        super().__init__()
        self.packer = msgpack.Packer()

    def pack(self, given: list[object]) -> bytes:
        try:
            return cast("bytes", self.packer.pack(given))
        except BaseException:
            self.packer.reset()
            raise


_kept = _Kept()


def digest(values: Iterable[object], *, sampled: bool = False) -> bytes:
    """Give 16 bytes that stand for values: equal for equal ones on any rank, whatever their addresses.

    Args:
        values: plain data, tensors, containers of these; of any other object only the type counts.
        sampled: look at some elements of a large tensor only.
    """
    given = list(values)
    try:
        # Plain data, which most values are, is packed at once; floats, integers and truth values stay apart.
        return blake2b(_kept.pack(given), digest_size=16).digest()
    except (TypeError, ValueError, OverflowError):
        return _digest_each(given, sampled=sampled)


def digest_tensors(values: Iterable[torch.Tensor], *, sampled: bool = False) -> bytes:
    """What `digest` gives, of tensors alone, which it would try to pack first.

    Args:
        values: the tensors.
        sampled: look at some elements of a large tensor only.
    """
    return _digest_each(values, sampled=sampled)


def flat_bytes(value: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements, in order; in its own memory where they lie so.

    Args:
        value: of any shape and strides.
    """
    flat = value.detach().reshape(-1)
    # torch takes one element for contiguous whatever its stride, and then refuses a view of its bytes.
    dense = flat if flat.stride() == (1,) else flat.clone(memory_format=torch.contiguous_format)
    return dense.view(torch.uint8)


def _digest_each(values: Iterable[object], *, sampled: bool) -> bytes:
    found = blake2b(digest_size=16)
    for value in values:
        for part in _parts(value, sampled=sampled):
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
    return found.digest()


def _parts(value: object, *, sampled: bool) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield _form(value.dtype, value.shape)
        yield _elements(value, sampled=sampled)
    elif isinstance(value, list | tuple):
        yield f"{len(value)} of".encode()
        for item in value:
            yield from _parts(item, sampled=sampled)
    elif isinstance(value, dict):
        yield f"{len(value)} by key".encode()
        for key, item in value.items():
            yield from _parts((key, item), sampled=sampled)
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        yield f"{type(value).__name__} {value!r}".encode()
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()


@lru_cache(maxsize=256)
def _form(dtype: torch.dtype, shape: torch.Size) -> bytes:
    return f"{dtype} {tuple(shape)}".encode()


def _elements(value: torch.Tensor, *, sampled: bool) -> bytes:
    """The bytes of a tensor's elements, or of some of them."""
    count = value.numel()
    step = count // SAMPLES if sampled and count > SAMPLES else 1
    if value.is_cpu and value.dtype in _OF_NUMPY and value.is_contiguous():
        return value.detach().numpy().reshape(-1)[::step].tobytes()
    return flat_bytes(value.detach().reshape(-1)[::step].cpu()).numpy().tobytes()
