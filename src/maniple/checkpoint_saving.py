"""Saving: one checkpoint on its way to storage, as one rank sees it.

What keeps the program is to agree on a folder; all that waits for storage may be done by another thread:

    rank    the program's thread               the thread that writes
    0       makes the folder, tells its name   removes what is not whole, syncs names, the manifest, its memories' files
    1       sees the folder                    its memories' files
"""

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
from maniple.runtime.storage.block_file import sealed_pieces

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
        made: the folders that this rank made for it, from the outermost to its own; their names may not be on storage.
    """

    folder: Path | None
    error: str = ""
    made: tuple[Path, ...] = field(default=(), repr=False)
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


def make_folder(
    world: World, files: AbstractFileSystem, path: Path, manifest: Manifest, last: Path | None = None
) -> Saving:
    """Have rank 0 make the folder of the next checkpoint, and all ranks see it. Nobody waits for storage.

    Args:
        world: the ranks; nothing of this one's is being saved.
        files: where it is written.
        path: the folder of the checkpoints.
        manifest: the same on every rank.
        last: the checkpoint that the same training has saved before this.

    Returns:
        The checkpoint; one that says why there is none where the file system refused.

    Raises:
        RequestError: the path is no folder, is another training's, or is not one that all hosts share.
    """
    said, made = {"folder": "", "refused": "", "failed": ""}, tuple[Path, ...]()
    if world.rank == 0:
        try:
            made = _begin(files, path, manifest, last)
            said["folder"] = made[-1].name
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
    seen = world.control.gather(b"" if folder.is_dir() else world.place().encode())
    blind = [name.decode() for name in seen if name]
    if blind:
        if world.rank == 0:
            remove(files, folder)
        raise RequestError(
            f"save: {', '.join(blind)} cannot see {folder}, which rank 0 made; a checkpoint over several hosts needs a "
            "folder that all of them share"
        )
    return Saving(folder, made=made)


def _begin(files: AbstractFileSystem, path: Path, manifest: Manifest, last: Path | None) -> tuple[Path, ...]:
    """Make the folder and those that it lies in, and give what was made, the outermost first."""
    if path.exists() and not path.is_dir():
        raise RequestError(f"save: expected a folder for checkpoints, got the file {path}")
    for _, other in numbered(path):
        if other == last:
            break  # this training's, as what is older
        if is_whole(other):
            held = read_manifest(other)
            if held.fingerprint != manifest.fingerprint:
                raise RequestError(
                    f"save: {path} has checkpoints of graph {held.graph!r}, which is another one than "
                    f"{manifest.graph!r}; name another folder"
                )
            break
    missing = [each for each in (path, *path.parents) if not each.exists()]
    made = (*reversed(missing), path / next_name(path))
    begun: list[Path] = []
    try:
        for each in made:
            files.make_folder(each)
            begun.append(each)
    except OSError:
        for each in reversed(begun):  # a later save would take it for one whose name lasts
            with suppress(OSError):
                files.remove_folder(each)
        raise
    return made


def write_files(
    files: AbstractFileSystem,
    saving: Saving,
    manifest: Manifest,
    values: Mapping[int, Callable[[Block], torch.Tensor]],
    keep: int,
    get_on: Callable[[], object] = int,
) -> None:
    """Write a rank's part of a checkpoint, and remove what is too old once all of it is there.

    Args:
        files: where it is written.
        saving: the checkpoint; whoever made its folder writes the manifest.
        manifest: what is in it.
        values: by memory, what gives the elements of a block.
        keep: how many checkpoints stay.
        get_on: see `sealed_pieces`.

    Raises:
        OSError: the file system refused.
    """
    folder = saving.folder
    if folder is None:
        return
    if saving.made:
        _write_manifest(files, saving.made, manifest)
    for each in manifest.files:
        if each.memory in values:
            files.write_beside(folder / each.name, sealed_pieces(each.blocks, values[each.memory], get_on))
    if is_whole(folder):
        try:
            prune(files, folder.parent, keep)
        except FileNotFoundError:
            return  # another rank removes them too
        except OSError as error:
            announce(f"checkpoints of {folder.parent} that are older could not be removed: {error}; the run goes on")


def _write_manifest(files: AbstractFileSystem, made: tuple[Path, ...], manifest: Manifest) -> None:
    """Write what makes a checkpoint of a folder, once the names that lead to it last."""
    folder = made[-1]
    for _, other in numbered(folder.parent):  # what an earlier save could not finish; not what was damaged later
        with suppress(RequestError):
            if other != folder and find_missing(other):
                remove(files, other)
    for each in made:
        files.sync_folder(each.parent)
    files.write_beside(folder / MANIFEST, [memoryview(manifest.text().encode())])
