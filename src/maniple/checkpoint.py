"""Checkpoints: the state of a training in a folder, whole or not there.

    run/checkpoint-0000006/manifest.json               what the training is, and what every file holds
    run/checkpoint-0000006/memory-0.safetensors        the blocks whose home is memory 0: values and optimizer's state
    run/checkpoint-0000006/memory-1.safetensors        written by the rank that has memory 1, without any other's help
    run/checkpoint-0000007/manifest.json
    run/checkpoint-0000007/memory-0.safetensors.partial        a run that was killed while it wrote: not whole

The sizes of all files are known before the first is written, so the manifest comes first and nobody has to come last:
each file gets its name once it is on storage, and a checkpoint is whole as soon as all of its files have theirs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from maniple.process.error import RequestError
from maniple.process.file_entry import Entry, read_json
from maniple.process.file_system import PARTIAL
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.block_file import SEAL, Block, StoredBlock, file_size, in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maniple.operators.lowering.weight import Weight
    from maniple.process.file_system import AbstractFileSystem

__all__: list[str] = []

VERSION = 2
"""The version of checkpoints that this code writes; it reads the first one, too, which has no checksums."""
MANIFEST = "manifest.json"
DIGEST = "digest"
"""What a manifest ends with that says what it is."""
_NAME = re.compile(r"checkpoint-(\d{7,})")
_KEYS = (
    "version",
    "graph",
    "fingerprint",
    "optimizer",
    "hyper",
    "seed",
    "step",
    "updates",
    "position",
    "scalars",
    "plan",
    "files",
)


@final
@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a checkpoint.

    Args:
        name: in the folder.
        memory: whose blocks it holds.
        blocks: these, in order.
        size: bytes.
    """

    name: str
    memory: int
    blocks: tuple[Block, ...]
    size: int


@final
@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is of.

    Args:
        graph: the graph's name.
        fingerprint: the graph's.
        optimizer: as plain data.
        hyper: its numbers by group, in the order of its rows.
        seed: of the training.
        step: how many steps were submitted.
        updates: how many steps the optimizer counts.
        position: in the data, as a loader gave it; None where none was named.
        scalars: what the program wanted kept, by name.
        plan: as plain data.
        files: one for each memory that some block calls home.
        version: of what is written.
    """

    graph: str
    fingerprint: str
    optimizer: list[Any]
    hyper: list[dict[str, Any]]
    seed: int
    step: int
    updates: int
    position: Any
    scalars: dict[str, Any]
    plan: dict[str, object]
    files: tuple[SavedFile, ...]
    version: int = VERSION

    def text(self) -> str:
        """The manifest as the text of its file."""
        files = {
            each.name: {
                "memory": each.memory,
                "bytes": each.size,
                "blocks": [[block.name, block.dtype, block.rect.lo, block.rect.hi] for block in each.blocks],
            }
            for each in self.files
        }
        found = {name: getattr(self, name) for name in _KEYS[:-1]} | {"files": files}
        sealed = {DIGEST: _digest(found)} if self.version > 1 else {}
        return json.dumps(found | sealed, allow_nan=False, indent=1)

    @classmethod
    def of(cls, root: Entry) -> Self:
        """The manifest of a file.

        Raises:
            RequestError: it is none, or a newer version wrote it.
        """
        held = dict(root.items())
        version = held.get("version")
        if version is not None and version.integer(1) > VERSION:
            raise RequestError(
                f"{root.file}: version: expected {VERSION}, got {version.integer(1)}; a newer maniple wrote this "
                "checkpoint: resume with that one"
            )
        sealed = version is not None and version.integer(1) > 1
        table = root.table((*_KEYS, DIGEST) if sealed else _KEYS)
        for key, kind in (("optimizer", list), ("hyper", list), ("scalars", dict), ("plan", dict)):
            if not isinstance(table[key].value, kind):
                raise table[key].problem("a list" if kind is list else "a table")
        plain: dict[str, Any] = {key: table[key].value for key in ("optimizer", "hyper", "position", "scalars", "plan")}
        found = cls(
            graph=table["graph"].string(),
            fingerprint=table["fingerprint"].string(),
            seed=table["seed"].integer(-(1 << 127)),
            step=table["step"].integer(0),
            updates=table["updates"].integer(0),
            files=tuple(_file(name, entry) for name, entry in table["files"].items()),
            **plain,
            version=table["version"].integer(1),
        )
        if sealed and table[DIGEST].string() != (own := _digest({key: table[key].value for key in _KEYS})):
            raise RequestError(
                f"{root.file}: expected what has digest {table[DIGEST].string()}, got {own}: the file was damaged or "
                "edited after it was written; restore it, or name another checkpoint of the folder"
            )
        return found

    def blocks(self, folder: Path) -> dict[str, list[StoredBlock]]:
        """The blocks of every region, and where they lie in a folder."""
        found: dict[str, list[StoredBlock]] = {}
        for each in self.files:
            for block in each.blocks:
                found.setdefault(block.name, []).append(StoredBlock(folder / each.name, block.key, block.rect))
        return found


def _digest(found: Mapping[str, object]) -> str:
    """What stands for a manifest, as it is in its file: equal for what JSON writes equally."""
    return blake2b(json.dumps(found, allow_nan=False).encode(), digest_size=16).hexdigest()


def _file(name: str, entry: Entry) -> SavedFile:
    table = entry.table(("memory", "bytes", "blocks"))
    if "/" in name or name.startswith("."):
        raise entry.problem("a file of the checkpoint's own folder")
    blocks = []
    for each in table["blocks"].elements():
        parts = each.elements()
        if len(parts) != 4:
            raise each.problem("name, type and bounds of a block")
        lo, hi = (tuple(part.integer(0) for part in side.elements()) for side in parts[2:])
        blocks.append(Block(parts[0].string(), parts[1].string(), Rect(lo, hi)))
    return SavedFile(name, table["memory"].integer(0), tuple(blocks), table["bytes"].integer(0))


def files_of(weights: Mapping[str, Weight]) -> tuple[SavedFile, ...]:
    """The files of a checkpoint: each block in that of the first memory that it lives in.

    Args:
        weights: parameters and buffers by name, with their homes.
    """
    held: dict[int, list[Block]] = {}
    for weight in weights.values():
        for region in weight.regions:
            seen: set[Rect] = set()
            for memory, rects in weight.home:
                for rect in rects:
                    if rect not in seen:
                        held.setdefault(memory, []).append(Block(region.name, region.dtype, rect))
                    seen.add(rect)
    return tuple(
        SavedFile(f"memory-{memory}.safetensors", memory, blocks := in_order(found), file_size((*blocks, SEAL)))
        for memory, found in sorted(held.items())
    )


def numbered(path: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder, whole or not, the newest first."""
    if not path.is_dir():
        return []
    found = ((_NAME.fullmatch(each.name), each) for each in path.iterdir())
    return sorted(((int(name[1]), each) for name, each in found if name), reverse=True)


def next_name(path: Path) -> str:
    """The name of the next checkpoint of a folder."""
    return f"checkpoint-{next((number for number, _ in numbered(path)), 0) + 1:07}"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        RequestError: it is none.
    """
    return Manifest.of(read_json(folder / MANIFEST))


def find_missing(folder: Path) -> str:
    """What a checkpoint lacks: a file that an interrupted run did not come to name; nothing of a whole one.

    Raises:
        RequestError: it is damaged: a file has its name and not its size, or the manifest is none.
    """
    if not (folder / MANIFEST).exists():
        return MANIFEST
    for each in read_manifest(folder).files:
        file = folder / each.name
        if not file.exists():
            return each.name
        if (size := file.stat().st_size) != each.size:
            raise RequestError(
                f"{file}: expected {each.size} bytes, got {size}: the file was damaged after it was written; restore "
                "it, or name another checkpoint of the folder"
            )
    return ""


def find(path: Path) -> tuple[Path, list[str]]:
    """The newest whole checkpoint of a folder, or the folder itself where it is one.

    Returns:
        The checkpoint, and what is to be said of newer ones that are not whole.

    Raises:
        RequestError: there is none, or it is damaged.
    """
    if (path / MANIFEST).exists():
        if missing := find_missing(path):
            raise RequestError(f"{path}: not a whole checkpoint: {missing} is missing; restore it, or name another one")
        return path, []
    passed: list[str] = []
    for _, folder in numbered(path):
        missing = find_missing(folder)
        if not missing:
            return folder, [f"{each}; resuming from {folder.name}" for each in passed]
        passed.append(f"{folder} is not whole: {missing} is missing")
    found = f" ({passed[0]})" if passed else ""
    raise RequestError(f"{path}: no whole checkpoint there{found}; name the folder that was given to save")


def is_any(path: Path) -> bool:
    """Whether a folder is a checkpoint, or has one that is whole.

    Raises:
        RequestError: one is damaged.
    """
    return (path / MANIFEST).exists() or any(not find_missing(folder) for _, folder in numbered(path))


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint has all of its files, each of its size."""
    try:
        return not find_missing(folder)
    except RequestError:
        return False


def prune(files: AbstractFileSystem, path: Path, keep: int) -> None:
    """Remove the checkpoints of a folder that are older than the newest whole ones; a newer one may be under way.

    Args:
        files: the file system.
        path: the folder.
        keep: how many whole ones stay.

    Raises:
        OSError: one could not be removed.
    """
    kept = 0
    for _, folder in numbered(path):
        whole = is_whole(folder)
        if kept == keep or (kept and not whole):
            remove(files, folder)
        elif whole:
            if not kept:  # its names last before those of older ones go
                files.sync_folder(folder)
                files.sync_folder(path)
            kept += 1


def remove(files: AbstractFileSystem, folder: Path) -> None:
    """Remove a checkpoint, its manifest first, so that what is left of it at any time is not taken for one.

    Raises:
        OSError: it could not be removed.
    """
    found: Iterable[Path] = folder.iterdir() if folder.is_dir() else ()
    for file in sorted(found, key=lambda each: each.name != MANIFEST):
        if file.name.removesuffix(PARTIAL) == MANIFEST or file.name.startswith("memory-"):
            files.remove(file)
    files.remove_folder(folder)
