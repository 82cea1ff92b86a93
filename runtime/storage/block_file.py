"""Block files: blocks of regions in the safetensors format, written as a stream and read piece by piece.

A file begins with the length of its header and the header, which says for every tensor its type, extents and place in
the bytes that follow. A block of a region is a tensor of its own, under the region's name and the block's bounds:

    the region w (4, 6), its home two blocks     file of memory 0     file of memory 1
    rows 0 to 1 in memory 0, 2 to 3 in memory 1  w[0:2,0:6]           w[2:4,0:6]

Every other program that knows the format reads them too. Who reads takes any rectangle of a region, from the blocks
that hold it, and no other bytes.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open

from maniple.process.digest import flat_bytes
from maniple.process.error import RequestError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.copy_kernels import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

__all__: list[str] = []

PIECE = 8 << 20
"""Bytes that are written at a time."""
CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What the format calls the types of elements."""


@final
@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a region, as a file holds it.

    Args:
        name: of the region.
        dtype: of its elements.
        rect: which elements.
    """

    name: str
    dtype: str
    rect: Rect

    @property
    def key(self) -> str:
        """The block's name in a file."""
        sides = (f"{low}:{high}" for low, high in zip(self.rect.lo, self.rect.hi, strict=True))
        return f"{self.name}[{','.join(sides)}]"

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.rect.volume * LogicalRegion(0, self.name, self.rect, self.dtype).itemsize


SEAL = Block("crc32 of all before", "uint8", Rect((0,), (4,)))
"""What a file ends with that tells damage: a checksum, for digests take the writer's core twice as long and more."""


def make_header(tensors: Sequence[tuple[str, str, tuple[int, ...], int]], about: Mapping[str, str]) -> bytes:
    """Give the bytes before the first tensor's.

    Args:
        tensors: name, type, extents and bytes of each, in order.
        about: what else a reader may want to know.
    """
    table: dict[str, object] = {"__metadata__": dict(about)} if about else {}
    place = 0
    for name, dtype, shape, size in tensors:
        table[name] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": (place, place + size)}
        place += size
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def header_of(blocks: Sequence[Block]) -> bytes:
    """Give the header of a file of some blocks."""
    return make_header([(block.key, block.dtype, block.rect.shape, block.size) for block in blocks], {})


def file_size(blocks: Sequence[Block]) -> int:
    """Give the bytes of a file of some blocks."""
    return len(header_of(blocks)) + sum(block.size for block in blocks)


def in_order(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Give blocks in the order of a file: those of wide elements first, so that each lies where its elements may."""
    return tuple(sorted(blocks, key=lambda block: -torch_dtype(block.dtype).itemsize))


def pieces_of(
    blocks: Sequence[Block], values: Callable[[Block], torch.Tensor], get_on: Callable[[], object] = int
) -> Iterator[memoryview]:
    """Give the bytes of a file of some blocks, piece by piece; one block is copied at a time where it must be.

    Args:
        blocks: what it holds.
        values: gives the elements of a block, on the host.
        get_on: called before each piece, for whoever watches that this goes on.
    """
    yield memoryview(header_of(blocks))
    for block in blocks:
        for piece in bytes_of(values(block)):
            get_on()
            yield piece


def bytes_of(value: torch.Tensor) -> Iterator[memoryview]:
    """Give the bytes of a tensor of the host, piece by piece."""
    whole = flat_bytes(value).numpy().data
    for start in range(0, len(whole), PIECE):
        yield whole[start : start + PIECE]


def sealed_pieces(
    blocks: Sequence[Block], values: Callable[[Block], torch.Tensor], get_on: Callable[[], object] = int
) -> Iterator[memoryview]:
    """Give the bytes of a file of some blocks and, as its last tensor, a checksum of all before: see `pieces_of`."""
    summed = 0

    def give(block: Block) -> torch.Tensor:
        if block is not SEAL:
            return values(block)
        return torch.frombuffer(bytearray(summed.to_bytes(SEAL.size, "little")), dtype=torch.uint8)

    for piece in pieces_of((*blocks, SEAL), give, get_on):
        yield piece
        summed = crc32(piece, summed)


def check_seal(path: Path, get_on: Callable[[], object] = int) -> None:
    """See that a file that `sealed_pieces` gave is as it was written.

    Args:
        path: the file.
        get_on: called before each piece, for whoever watches that this goes on.

    Raises:
        RequestError: it is not, or it cannot be read.
    """
    summed, room = 0, memoryview(bytearray(PIECE))
    try:
        with path.open("rb", buffering=0) as file:
            left = path.stat().st_size - SEAL.size
            while left > 0 and (count := file.readinto(room[: min(left, PIECE)]) or 0):
                get_on()
                summed = crc32(room[:count], summed)
                left -= count
            told = file.read()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error}); restore the file, or take another") from error
    if told != (own := summed.to_bytes(SEAL.size, "little")):
        raise RequestError(
            f"{path}: expected bytes of checksum {told.hex()}, got {own.hex()}: the file was damaged after it was "
            "written; restore it, or name another checkpoint of the folder"
        )


@final
@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Where a rectangle of a region lies in files.

    Args:
        file: which.
        key: its name there.
        rect: which elements of the region.
    """

    file: Path
    key: str
    rect: Rect


@final
class BlockReader:
    """Reads rectangles of regions from files, and counts the bytes that it asks for.

    Args:
        blocks: by region's name, where its elements are; no element is there twice.
    """

    def __init__(self, blocks: Mapping[str, Sequence[StoredBlock]]) -> None:
        self._blocks = blocks
        self._open: dict[Path, Any] = {}
        self._stack = ExitStack()
        self.bytes_read = 0
        """Bytes of the elements read so far."""

    @property
    def names(self) -> frozenset[str]:
        """The regions that are there."""
        return frozenset(self._blocks)

    def read(self, name: str, rect: Rect, dtype: str | None) -> torch.Tensor:
        """Give a rectangle of a region.

        Args:
            name: the region's.
            rect: which elements.
            dtype: of the elements, that they must have; None for any.

        Raises:
            RequestError: the files do not have it, or cannot be read.
        """
        found: torch.Tensor | None = None
        left = rect.volume
        for block in self._blocks.get(name, ()):
            part = block.rect.intersect(rect)
            if part.is_empty:
                continue
            values = self._read(block, part)
            if dtype is not None and values.dtype != torch_dtype(dtype):
                raise RequestError(f"{block.file}: {name}: expected {dtype}, got {str(values.dtype)[6:]}")
            self.bytes_read += values.numel() * values.element_size()
            if part == rect:
                return values.clone()
            if found is None:
                found = torch.empty(rect.shape, dtype=values.dtype)
            found[part.slices(rect.lo)] = values
            left -= part.volume
        if found is None or left:
            raise RequestError(f"{name}: the files have no values for {left} of its {rect.volume} elements in {rect}")
        return found

    def _read(self, block: StoredBlock, part: Rect) -> torch.Tensor:
        try:
            file = self._open.get(block.file)
            if file is None:
                file = self._stack.enter_context(safe_open(block.file, framework="pt"))
                self._open[block.file] = file
            piece = file.get_slice(block.key)
            if tuple(piece.get_shape()) != block.rect.shape:
                shape = tuple(piece.get_shape())
                raise RequestError(f"{block.file}: {block.key}: expected {block.rect.shape}, got {shape}")
            values: torch.Tensor = piece[part.slices(block.rect.lo) if part.ndim else ...]
        except (OSError, SafetensorError) as error:
            raise RequestError(f"{block.file}: cannot be read ({error}); restore the file, or take another") from error
        return values

    def __enter__(self) -> Self:
        """Give the reader."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._open.clear()
        self._stack.close()


def whole_tensors(path: Path) -> dict[str, StoredBlock]:
    """Give the tensors of a file that holds each of its tensors whole, by name.

    Raises:
        RequestError: it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except (OSError, SafetensorError) as error:
        raise RequestError(f"{path}: cannot be read as safetensors ({error})") from error
    return {name: StoredBlock(path, name, Rect.of_shape(shape)) for name, shape in shapes.items()}
