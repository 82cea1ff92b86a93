"""Saving: one checkpoint on its way to storage, as one rank sees it."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from maniple.checkpoint import MANIFEST, find_missing, is_whole, next_name, numbered, prune, read_manifest, remove
from maniple.process.error import RequestError
from maniple.process.inventory import announce
from maniple.runtime.storage.block_file import pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from maniple.checkpoint import Manifest
    from maniple.process.file_system import AbstractFileSystem
    from maniple.runtime.control.world import World
    from maniple.runtime.storage.block_file import Block

__all__: list[str] = []


@final
@dataclass(eq=False)
class Saving:
    """A checkpoint that a rank writes its files of.

    Args:
        folder: of the checkpoint; nothing where none could be made.
        error: why it is not saved; empty while that is not known, and where it is.
    """

    folder: Path | None
    error: str = ""
    _thread: threading.Thread | None = field(default=None, repr=False)

    def wait(self) -> bool:
        """Wait until this rank has written its files; says whether it has."""
        if self._thread is not None:
            self._thread.join()
        return not self.error

    def write(self, work: Callable[[], None]) -> None:
        """Write this rank's files in the background."""

        def run() -> None:
            self.attempt(work)
            if self.error:
                announce(f"{self.error}; the run goes on")

        # No daemon: a program that ends waits for what it saves.
        self._thread = threading.Thread(target=run, name=f"saves {self.folder}")
        self._thread.start()

    def attempt(self, work: Callable[[], None]) -> None:
        """Write, and note why it failed where it did."""
        try:
            work()
        except (OSError, RequestError) as error:
            self.error = f"checkpoint {self.folder} is not saved: {error}"


def make_folder(world: World, files: AbstractFileSystem, path: Path, manifest: Manifest) -> Saving:
    """Have rank 0 make the folder of the next checkpoint, with its manifest, and all ranks see it.

    Args:
        world: the ranks; nothing of theirs is being saved.
        files: where it is written.
        path: the folder of the checkpoints.
        manifest: the same on every rank.

    Returns:
        The checkpoint; one that says why there is none where the file system refused.

    Raises:
        RequestError: the path is no folder, is another training's, or is not one that all hosts share.
    """
    world.control.gather(b"")  # nobody writes files of an earlier one any more
    said = {"folder": "", "refused": "", "failed": ""}
    if world.rank == 0:
        try:
            said["folder"] = _begin(files, path, manifest)
        except RequestError as error:
            said["refused"] = str(error)
        except OSError as error:
            said["failed"] = f"no checkpoint was saved in {path}: {error}"
    told = json.loads(world.control.gather(json.dumps(said).encode())[0])
    if told["refused"]:
        raise RequestError(told["refused"])
    if told["failed"]:
        return Saving(None, told["failed"])
    folder = path / told["folder"]
    seen = world.control.gather(b"" if (folder / MANIFEST).exists() else world.place().encode())
    blind = [name.decode() for name in seen if name]
    if blind:
        if world.rank == 0:
            remove(files, folder)
        raise RequestError(
            f"save: {', '.join(blind)} cannot see {folder}, which rank 0 made; a checkpoint over several hosts needs a "
            "folder that all of them share"
        )
    return Saving(folder)


def _begin(files: AbstractFileSystem, path: Path, manifest: Manifest) -> str:
    """Make the folder with its manifest, and give its name."""
    if path.exists() and not path.is_dir():
        raise RequestError(f"save: expected a folder for checkpoints, got the file {path}")
    newest = next((other for _, other in numbered(path) if is_whole(other)), None)
    held = manifest if newest is None else read_manifest(newest)
    if held.fingerprint != manifest.fingerprint:
        raise RequestError(
            f"save: {path} has checkpoints of graph {held.graph!r}, which is another one than {manifest.graph!r}; name "
            "another folder"
        )
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        files.make_folder(each)
        files.sync_folder(each.parent)
    for _, folder in numbered(path):  # what an earlier save could not finish; not what was damaged later
        with suppress(RequestError):
            if find_missing(folder):
                remove(files, folder)
    folder = path / next_name(path)
    files.make_folder(folder)
    try:
        files.write_beside(folder / MANIFEST, [memoryview(manifest.text().encode())])
        files.sync_folder(path)
    except OSError:
        with suppress(OSError):
            remove(files, folder)
        raise
    return folder.name


def write_files(
    files: AbstractFileSystem,
    folder: Path,
    manifest: Manifest,
    values: Mapping[int, Callable[[Block], torch.Tensor]],
    keep: int,
    get_on: Callable[[], object] = int,
) -> None:
    """Write the files of some memories, and remove what is too old once the checkpoint is whole.

    Args:
        files: where they are written.
        folder: of the checkpoint.
        manifest: what is in it.
        values: by memory, what gives the elements of a block.
        keep: how many checkpoints stay.
        get_on: see `pieces_of`.

    Raises:
        OSError: the file system refused.
    """
    for each in manifest.files:
        if each.memory in values:
            files.write_beside(folder / each.name, pieces_of(each.blocks, values[each.memory], get_on))
    if is_whole(folder):
        try:
            prune(files, folder.parent, keep)
        except FileNotFoundError:
            return  # another rank removes them too
        except OSError as error:
            announce(f"checkpoints of {folder.parent} that are older could not be removed: {error}; the run goes on")
