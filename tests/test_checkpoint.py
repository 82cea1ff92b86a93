"""Checkpoints as files: whole or not there whatever operation fails, the newest found, the old ones gone."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from failing_files import FailingFiles, Gone

from maniple import checkpoint, checkpoint_saving
from maniple.checkpoint import MANIFEST, Manifest, SavedFile, find, numbered, read_manifest
from maniple.process.error import RequestError
from maniple.process.file_system import AbstractFileSystem
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.storage.block_file import SEAL, Block, BlockReader, file_size, in_order

SHAPE = (8, 4)


def manifest(step: int, fingerprint: str = "f") -> Manifest:
    halves = Rect.of_shape(SHAPE).split(0, 2)
    blocks = [in_order([Block("w", "float32", half), Block("w.exp_avg", "float32", half)]) for half in halves]
    files = tuple(
        SavedFile(f"memory-{n}.safetensors", n, held, file_size((*held, SEAL))) for n, held in enumerate(blocks)
    )
    return Manifest("g", fingerprint, ["SGD", {"lr": 0.1}], [{"lr": 0.1}], 0, step, step, None, {}, {}, files)


def give(step: int, block: Block) -> torch.Tensor:
    return torch.full(block.rect.shape, float(step))


def save(path: Path, step: int, files: AbstractFileSystem, keep: int = 2, *, late: bool = False) -> bool:
    """Write a checkpoint of two memories, as one rank that has both; or as two, the one that made it as the last."""
    told = manifest(step)
    saving = checkpoint_saving.make_folder(World.solo(), files, path, told)
    if saving.folder is None:
        return False
    values: dict[int, Callable[[Block], torch.Tensor]] = dict.fromkeys((0, 1), partial(give, step))
    if late:
        other, theirs = checkpoint_saving.Saving(saving.folder), {1: values.pop(1)}
        other.attempt(lambda: checkpoint_saving.write_files(files, other, told, theirs, keep))
        if other.error:
            return False
    saving.attempt(lambda: checkpoint_saving.write_files(files, saving, told, values, keep))
    return not saving.error


def step_of(path: Path) -> int:
    """The step of the newest whole checkpoint, whose values must be those of that step."""
    folder, _ = find(path)
    found = read_manifest(folder)
    with BlockReader(found.blocks(folder)) as reader:
        for name in ("w", "w.exp_avg"):
            assert torch.equal(reader.read(name, Rect.of_shape(SHAPE), "float32"), torch.full(SHAPE, float(found.step)))
    return found.step


def operations(tmp_path: Path) -> int:
    """How many operations the third save of a folder takes."""
    path = tmp_path / "counted"
    files = FailingFiles(-1)
    for step in range(2):
        save(path, step, files)
    before = files.done
    save(path, 2, files)
    assert files.done - before > 20
    return files.done - before


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    files = FailingFiles(-1)
    assert save(tmp_path / "a" / "b", 3, files)
    folder, passed = find(tmp_path / "a" / "b")
    assert (read_manifest(folder), passed, folder.name) == (manifest(3), [], "checkpoint-0000001")
    assert sorted(file.name for file in folder.iterdir()) == [MANIFEST, "memory-0.safetensors", "memory-1.safetensors"]


def test_each_file_is_on_storage_before_it_has_its_name(tmp_path: Path) -> None:
    save(tmp_path, 0, files := FailingFiles(-1))
    said = [each for each in files.said if each != "append"]
    name = "checkpoint-0000001"
    assert said == [
        f"make_folder {name}",
        f"sync_folder {tmp_path.name}",
        *(each for file in (MANIFEST, *(f"memory-{n}.safetensors" for n in (0, 1))) for each in _written(file, name)),
        f"sync_folder {name}",
        f"sync_folder {tmp_path.name}",
    ]


def _written(file: str, folder: str) -> list[str]:
    return [f"create {file}.partial", "sync", f"rename {file}", f"sync_folder {folder}"]


def test_so_many_stay_as_were_wanted(tmp_path: Path) -> None:
    for step in range(4):
        assert save(tmp_path, step, FailingFiles(-1), keep=1 if step == 3 else 2)
        assert [number for number, _ in numbered(tmp_path)] == [[1], [2, 1], [3, 2], [4]][step]
    assert step_of(tmp_path) == 3


@pytest.mark.parametrize("late", [False, True])
def test_whatever_operation_fails_a_whole_checkpoint_is_found_and_the_next_is_saved(tmp_path: Path, late: bool) -> None:
    for at in range(operations(tmp_path)):
        path = tmp_path / f"full {at}"
        for step in range(2):
            assert save(path, step, FailingFiles(-1))
        files = FailingFiles(at, "full")
        saved = save(path, 2, files, late=late)
        assert step_of(path) == 2 if saved else step_of(path) in {1, 2}
        files.free()
        assert save(path, 3, files)
        assert step_of(path) == 3
        assert [number for number, folder in numbered(path) if checkpoint.is_whole(folder)] == [
            number for number, _ in numbered(path)
        ], "nothing is left of what failed"
        assert len(numbered(path)) <= 2


@pytest.mark.parametrize("late", [False, True])
def test_a_machine_that_goes_off_at_any_operation_has_the_last_whole_one(tmp_path: Path, late: bool) -> None:
    """What was not synchronized is lost then, names and bytes."""
    for at in range(operations(tmp_path)):
        path = tmp_path / f"off {at}"
        for step in range(2):
            assert save(path, step, FailingFiles(-1))
        with pytest.raises(Gone):
            save(path, 2, FailingFiles(at, "off"), late=late)
        assert step_of(path) in {1, 2}
        assert save(path, 3, FailingFiles(-1))
        assert step_of(path) == 3


KILLED = """
import os, shutil, signal, sys
sys.path[:0] = {paths!r}
import test_checkpoint as t
from failing_files import FailingFiles
from pathlib import Path
from maniple.runtime.storage import block_file
block_file.PIECE = 64
begun = Path(sys.argv[1]) / "begun"
for step in range(2):
    assert t.save(begun, step, FailingFiles(-1))
for number in range({most}):  # killed at that operation of the third save
    path = Path(sys.argv[1]) / str(number)
    shutil.copytree(begun, path)
    child = os.fork()
    if not child:
        t.save(path, 2, FailingFiles(number, "kill"), late={late})
        os._exit(0)
    print("end", os.waitpid(child, 0)[1])
for number in {drawn}:  # killed from outside, some time after so many saves
    path = Path(sys.argv[1]) / f"stream {{number}}"
    read, write = os.pipe()
    child = os.fork()
    if not child:
        for step in range(1_000_000):
            assert t.save(path, step, FailingFiles(-1), late={late})
            os.write(write, b".")
    os.close(write)
    for _ in range(number):
        os.read(read, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("told", number, number + len(os.read(read, 1_000_000)))
"""
DRAWN = random.Random(20261125).sample(range(1, 16), 6)


@pytest.mark.parametrize("late", [False, True])
def test_a_process_that_is_killed_at_any_time_has_the_last_whole_one(tmp_path: Path, late: bool) -> None:
    """Real processes, real SIGKILL: one at each operation of a save, some from outside while they save and save."""
    here = Path(__file__).resolve().parent
    most = operations(tmp_path) + 8  # of which the last come after the save
    program = KILLED.format(paths=[str(here), str(here / "oracles")], most=most, drawn=DRAWN, late=late)
    command = [sys.executable, "-c", program, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split() for line in ran.stdout.splitlines()]
    ends = [int(line[1]) for line in lines if line[0] == "end"]
    assert len(ends) == most
    assert ends.count(signal.SIGKILL) >= 20
    assert ends[-1] == 0
    steps = [step_of(tmp_path / str(number)) for number in range(most)]
    assert set(steps) == {1, 2}
    assert steps == sorted(steps), "later operations come nearer to a whole one"
    told = {int(number): int(count) for kind, number, *rest in lines if kind == "told" for count in rest}
    assert sorted(told) == sorted(DRAWN)
    for number, count in told.items():
        assert count - 1 <= step_of(tmp_path / f"stream {number}") <= count


def test_a_newer_one_that_is_not_whole_is_told_and_passed_over(tmp_path: Path) -> None:
    for step in range(2):
        save(tmp_path, step, FailingFiles(-1))
    (tmp_path / "checkpoint-0000002" / "memory-1.safetensors").unlink()
    folder, passed = find(tmp_path)
    assert folder.name == "checkpoint-0000001"
    said = (
        f"{tmp_path / 'checkpoint-0000002'} is not whole: memory-1.safetensors is missing; "
        "resuming from checkpoint-0000001"
    )
    assert passed == [said]
    with pytest.raises(RequestError, match=r"not a whole checkpoint: memory-1\.safetensors is missing"):
        find(tmp_path / "checkpoint-0000002")
    assert find(tmp_path / "checkpoint-0000001")[0] == tmp_path / "checkpoint-0000001"


def test_what_is_damaged_newer_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no whole checkpoint there; name the folder"):
        find(tmp_path)
    save(tmp_path, 1, FailingFiles(-1))
    folder = tmp_path / "checkpoint-0000001"
    file = folder / "memory-0.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    with pytest.raises(RequestError, match=f"expected {len(whole)} bytes, got {len(whole) - 4}"):
        find(tmp_path)
    assert save(tmp_path, 2, FailingFiles(-1)), "what is damaged keeps nobody from saving"
    folder = tmp_path / "checkpoint-0000002"
    file = folder / MANIFEST
    told = file.read_text()
    for text, problem in [
        (told.replace('"version": 2', '"version": 3'), "a newer maniple wrote this checkpoint"),
        (told[:-9], "not a whole JSON document"),
        (told.replace('"step"', '"steps"'), "unknown key"),
        (told.replace('"memory-0.safetensors"', '"../x"'), "a file of the checkpoint's own folder"),
        (told.replace('"scalars": {}', '"scalars": []'), "expected a table"),
        (told.replace('"step": 2', '"step": 3'), "the file was damaged or edited after it was written"),
    ]:
        file.write_text(text)
        with pytest.raises(RequestError, match=problem):
            find(folder)


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, FailingFiles(-1))
    with pytest.raises(RequestError, match="has checkpoints of graph 'g', which is another one"):
        checkpoint_saving.make_folder(World.solo(), FailingFiles(-1), tmp_path, manifest(2, "other"))
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="expected a folder for checkpoints, got the file"):
        checkpoint_saving.make_folder(World.solo(), FailingFiles(-1), tmp_path / "file", manifest(2))
    assert len(numbered(tmp_path)) == 1
