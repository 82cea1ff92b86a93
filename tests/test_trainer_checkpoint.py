"""Trainers and checkpoints: a training goes on as if nothing had been, on whatever ranks, from the bytes it needs."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from continued_training import (
    OPTIMIZERS,
    WORLDS,
    assert_same,
    batch,
    everything,
    network,
    new,
    on_ranks,
    plan_of,
    train,
    unbroken,
)
from failing_files import FailingFiles

import maniple as mp
from maniple.checkpoint import find, numbered, read_manifest
from maniple.process.error import RequestError
from maniple.process.file_system import AbstractFileSystem, Disk
from maniple.runtime.control.world import World


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_resumed_on_the_same_plan_the_next_ten_losses_are_the_same_bit_for_bit(tmp_path: Path, optimizer: Any) -> None:
    def first(world: World) -> list[float]:
        with new(world, optimizer) as trainer:
            train(trainer, 0, 3)
            trainer.hyper["lr"] = 0.05
            train(trainer, 3, 5)
            assert trainer.save(tmp_path, scalars={"best": [0.25, None], "name": "é"}).wait()
            return train(trainer, 5, 15)

    def again(world: World) -> list[float]:
        given = plan_of(world, 0)
        plan = given if world.rank == 0 else None  # the checkpoint's own, which is the same
        with mp.Trainer.resume(tmp_path, network(), plan, world=world) as trainer:
            assert trainer.hyper["lr"] == 0.05
            assert trainer.scalars == {"best": [0.25, None], "name": "é"}
            return train(trainer, 5, 15)

    expected = on_ranks(2, first, processors=2)
    assert on_ranks(2, again, processors=2) == expected


def needed(trainer: mp.Trainer) -> int:
    """The bytes that live with a rank."""
    return sum(
        region.itemsize * rect.volume
        for weight in trainer._weights.values()
        for region in weight.regions
        for memory, rects in weight.home
        if memory in trainer._runtime.memories
        for rect in rects
    )


@pytest.mark.parametrize("number", range(8))
def test_run_5_and_resume_elsewhere_for_5_is_run_10(tmp_path: Path, number: int) -> None:
    chance = Random(number)
    optimizer, (before, after) = chance.choice(OPTIMIZERS), chance.sample(WORLDS, 2)

    def first(world: World) -> list[float]:
        with new(world, optimizer, seed=number) as trainer:
            losses = train(trainer, 0, 5)
            assert trainer.save(tmp_path, wait=number % 2 == 0).wait()
        return losses

    def second(world: World) -> tuple[list[float], dict[str, torch.Tensor]]:
        with mp.Trainer.resume(tmp_path, network(), plan_of(world, 100 + number), world=world) as trainer:
            assert trainer.bytes_read == needed(trainer)
            return train(trainer, 5, 10), everything(trainer)

    expected, state = unbroken(optimizer)
    losses = on_ranks(before[0], first, processors=before[1])[0]
    found = on_ranks(after[0], second, processors=after[1])
    assert losses + found[0][0] == pytest.approx(expected, rel=1e-10)
    for _, mine in found:
        assert_same(mine, state, 1e-10)


class Held(AbstractFileSystem):
    """A disk that writes nothing before it is let."""

    def __init__(self) -> None:
        self.let, self.writes, self.disk = threading.Event(), threading.Event(), Disk()

    def append(self, file: int, data: memoryview) -> None:
        self.disk.append(file, data)

    def create(self, path: Path) -> int:
        if path.name.startswith("memory"):
            self.writes.set()
            assert self.let.wait(60)
        return self.disk.create(path)

    def make_folder(self, path: Path) -> None:
        self.disk.make_folder(path)

    def sync(self, file: int) -> None:
        self.disk.sync(file)

    def close(self, file: int) -> None:
        self.disk.close(file)

    def rename(self, old: Path, new: Path) -> None:
        self.disk.rename(old, new)

    def sync_folder(self, path: Path) -> None:
        self.disk.sync_folder(path)

    def remove(self, path: Path) -> None:
        self.disk.remove(path)

    def remove_folder(self, path: Path) -> None:
        self.disk.remove_folder(path)


def test_steps_while_a_checkpoint_is_written_change_nothing_in_it(tmp_path: Path) -> None:
    def body(world: World) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        with new(world, OPTIMIZERS[2]) as trainer:
            trainer._files = held = Held()
            train(trainer, 0, 3)
            saved = everything(trainer)
            saving = trainer.save(tmp_path, wait=False)
            assert held.writes.wait(60)
            train(trainer, 3, 6)  # to their end, before the first byte is written
            held.let.set()
            assert saving.wait()
            changed = everything(trainer)
        with mp.Trainer.resume(tmp_path, network(), world=world) as trainer:
            assert_same(everything(trainer), saved)
        return saved, changed

    for saved, changed in on_ranks(2, body):
        assert any(not torch.equal(saved[name], changed[name]) for name in saved)


class Threads(FailingFiles):
    """A disk that notes which thread asks for what."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.asked: list[tuple[str, bool]] = []

    def _do(self, what: str) -> None:
        self.asked.append((what.split(maxsplit=1)[0], threading.current_thread().name.startswith("saves ")))
        super()._do(what)


def test_a_save_that_waits_for_nothing_leaves_all_that_waits_for_storage_to_its_thread(tmp_path: Path) -> None:
    """The program's thread makes folders and copies; copies go into memory that the first of them took."""

    def body(world: World) -> None:
        with new(world, OPTIMIZERS[2]) as trainer:
            trainer._files = files = Threads()
            places = []
            for step in range(3):
                train(trainer, step, step + 1)
                assert trainer.save(tmp_path / "a" / "b", wait=False, keep=1).wait()
                assert trainer._homes is not None
                copies = trainer._homes._copies
                assert copies is not None
                places.append({copy.data_ptr() for held in copies._copies.values() for _, _, copy in held})
            assert len(places[0]) > 4
            assert places == [places[0]] * 3
            assert {what for what, inside in files.asked if not inside} <= {"make_folder"}
            assert {what for what, inside in files.asked if inside} >= {"create", "sync", "rename", "sync_folder"}

    on_ranks(2, body)
    assert [read_manifest(folder).step for _, folder in numbered(tmp_path / "a" / "b")] == [3]


def test_a_checkpoint_after_a_plan_was_adopted_is_of_the_new_homes(tmp_path: Path) -> None:
    def body(world: World) -> dict[str, torch.Tensor]:
        with new(world, OPTIMIZERS[2]) as trainer:
            train(trainer, 0, 1)
            assert trainer.save(tmp_path, wait=False).wait()
            trainer.adopt(plan_of(world, 9))
            train(trainer, 1, 2)
            saved = everything(trainer)
            assert trainer.save(tmp_path, wait=False).wait()
            train(trainer, 2, 3)
        with mp.Trainer.resume(tmp_path, network(), world=world) as trainer:
            assert trainer.plan == plan_of(world, 9)
            assert_same(everything(trainer), saved)
        return saved

    on_ranks(2, body)


def test_two_savings_follow_one_another_and_closing_waits_for_the_last(tmp_path: Path) -> None:
    def body(world: World) -> None:
        with new(world) as trainer:
            for step in range(4):
                train(trainer, step, step + 1)
                trainer.save(tmp_path, wait=False, keep=2)

    on_ranks(2, body, nodes=2)
    assert [read_manifest(folder).step for _, folder in numbered(tmp_path)] == [4, 3]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_is_told_and_the_run_goes_on(
    tmp_path: Path, wait: bool, full: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def body(world: World) -> tuple[str, list[float]]:
        with new(world) as trainer:
            train(trainer, 0, 1)
            assert trainer.save(tmp_path).wait()
            if world.rank == full:  # rank 1's fails in a file, rank 0's as the folder is made
                trainer._files = FailingFiles(2 if world.rank else 0, "full")
            train(trainer, 1, 2)
            saving = trainer.save(tmp_path, wait=wait)
            saving.wait()
            losses = train(trainer, 2, 4)
            trainer._files = Disk()
            assert trainer.save(tmp_path).wait()
        return saving.error, losses

    def unsaved(world: World) -> list[float]:
        with new(world) as trainer:
            return train(trainer, 0, 4)

    found = on_ranks(2, body)
    assert "No space left on device" in found[full][0]
    assert all(error for error, _ in found) or not wait, "with wait=True every rank knows"
    assert [losses for _, losses in found] == [one[2:] for one in on_ranks(2, unsaved)]
    assert "No space left on device" in (said := capfd.readouterr().err)
    assert "the run goes on" in said
    assert [read_manifest(folder).step for _, folder in numbered(tmp_path)] == [4, 1]


def test_a_folder_that_a_host_does_not_see_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """Two folders stand for those of two hosts."""

    def body(world: World) -> None:
        with new(world) as trainer:
            trainer._call = lambda *_args, **_named: None  # type: ignore[method-assign]  # the paths are one there
            with pytest.raises(RequestError, match=r"node 1 \(rank 1\) cannot see .*all of them share"):
                trainer.save(tmp_path / str(world.rank))
            train(trainer, 0, 1)

    on_ranks(2, body)
    assert numbered(tmp_path / "0") == []


def test_what_does_not_fit_is_refused_before_a_trainer_is_made(tmp_path: Path) -> None:
    world = World.solo(2, 1)
    with new(world, OPTIMIZERS[2]) as trainer:
        for bad in (0, True, 1.5):
            with pytest.raises(RequestError, match="keep: expected how many checkpoints stay"):
                trainer.save(tmp_path, keep=bad)  # type: ignore[arg-type]
        for bad in ({1: 2}, float("nan"), object()):
            with pytest.raises(RequestError, match="expected texts, finite numbers"):
                trainer.save(tmp_path, data=bad)
        train(trainer, 0, 2)
        assert trainer.save(tmp_path).wait()
    other = network().with_batch(6)
    with pytest.raises(RequestError, match="another fingerprint than graph 'small'"):
        mp.Trainer.resume(tmp_path, other, world=world)
    with pytest.raises(RequestError, match="is of optimizer AdamW, not SGD; leave optimizer out"):
        mp.Trainer.resume(tmp_path, network(), world=world, optimizer=mp.SGD(lr=0.1))
    with pytest.raises(RequestError, match="no whole checkpoint there; name the folder"):
        mp.Trainer.resume(tmp_path / "elsewhere", network(), world=world)
    with mp.Trainer.resume(tmp_path, network(), world=world, optimizer=OPTIMIZERS[2]) as trainer:
        assert int(trainer.optimizer_state()["step"]) == 2


def test_a_damaged_checkpoint_is_refused_on_all_ranks(tmp_path: Path) -> None:
    def first(world: World) -> None:
        with new(world, OPTIMIZERS[2]) as trainer:
            train(trainer, 0, 1)
            trainer.save(tmp_path)

    on_ranks(2, first)
    folder, _ = find(tmp_path)
    file = folder / "memory-0.safetensors"
    whole = file.read_bytes()

    def again(world: World) -> str:
        with pytest.raises(RequestError) as raised:
            mp.Trainer.resume(tmp_path, network(), plan_of(world, 5), world=world)
        return str(raised.value)

    for damage, problem in [
        (whole[:-8], "the file was damaged after it was written"),
        (b"x" * len(whole), "the file was damaged after it was written"),
        (whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], f"{file}: expected bytes of checksum"),
        (b"", "the file was damaged"),
        (None, "no whole checkpoint there"),
    ]:
        file.unlink() if damage is None else file.write_bytes(damage)
        found = on_ranks(2, again)
        assert len(set(found)) == 1
        assert problem in found[0]
    file.write_bytes(whole)
    manifest = folder / "manifest.json"
    told = re.sub(r',\s*"digest": "\w+"', "", manifest.read_text()).replace('"version": 2', '"version": 1')
    for before, after, problem in [
        ('"version": 1', '"version": 3', "a newer maniple"),
        ('"AdamW"', '"Adam2"', "optimizer: expected one of"),
        ('"lr": 0.01', '"lr": NaN', "NaN is no number"),
        ('"lr": 0.01', '"lr": -1', "expected a finite number"),
    ]:
        manifest.write_text(told.replace(before, after))
        found = on_ranks(2, again)
        assert len(set(found)) == 1
        assert problem in found[0]


def test_a_scheduler_of_torch_goes_on(tmp_path: Path) -> None:
    def rates(trainer: mp.Trainer, scheduler: Any, first: int, last: int) -> list[float]:
        found = []
        for step in range(first, last):
            trainer.step(**batch(step))
            scheduler.step()
            found.append(trainer.hyper["lr"])
        return found

    def schedule(trainer: mp.Trainer) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(trainer.torch_optimizer(), T_max=10)

    world = World.solo(1, 1)
    with new(world, OPTIMIZERS[3]) as trainer:
        scheduler = schedule(trainer)
        rates(trainer, scheduler, 0, 4)
        held = trainer.torch_optimizer().state_dict()
        trainer.save(tmp_path, scalars={"scheduler": scheduler.state_dict(), "optimizer": held})
        expected = rates(trainer, scheduler, 4, 8)
    with mp.Trainer.resume(tmp_path, network(), world=world) as trainer:
        scheduler = schedule(trainer)
        scheduler.load_state_dict(trainer.scalars["scheduler"])
        trainer.torch_optimizer().load_state_dict(trainer.scalars["optimizer"])
        assert rates(trainer, scheduler, 4, 8) == expected
