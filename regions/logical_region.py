"""Logical regions: tensors as the program names them, without a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from maniple.process.error import RequestError, nearest
from maniple.regions.rectangle import Rect

_ITEMSIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@final
@dataclass(frozen=True, slots=True)
class LogicalRegion:
    """A named index space with elements of one type: a tensor before any memory holds a value of it.

    Args:
        id: number that orders regions; no two of one program share it.
        name: what messages call it; need not be unique.
        bounds: the index space.
        dtype: the elements' type, such as ``float32``.

    Raises:
        RequestError: the type is not one that regions may have.
    """

    id: int
    name: str
    bounds: Rect
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _ITEMSIZES:
            msg = f"region {self.name!r} has elements of the unknown type {self.dtype!r}"
            raise RequestError(msg + nearest(self.dtype, _ITEMSIZES))

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Bytes of one whole copy."""
        return self.bounds.volume * self.itemsize

    def __str__(self) -> str:
        return f"{self.name}#{self.id}{self.bounds} {self.dtype}"
