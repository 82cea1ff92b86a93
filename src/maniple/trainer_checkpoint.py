"""What a trainer does with files: it saves checkpoints, and goes on from one."""

from __future__ import annotations

import json
from abc import abstractmethod
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from maniple import checkpoint, checkpoint_saving
from maniple.checkpoint import Manifest, read_manifest
from maniple.checkpoint_saving import Saving
from maniple.home_files import HomeFiles
from maniple.memory_use import checked_limit
from maniple.operators.lowering.weight import drop_weights
from maniple.operators.plan.plan import Plan
from maniple.operators.training import loss_scale
from maniple.operators.training.optimizer_text import optimizer_of, plain_optimizer
from maniple.process.error import RequestError
from maniple.process.file_system import Disk
from maniple.process.inventory import announce
from maniple.runtime.control.world import World, current
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.storage.block_file import BlockReader, check_seal
from maniple.torch_compilation import checked_compilation
from maniple.trainer_inspection import TrainerInspection

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import torch

    from maniple.hyper import Hyper
    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.process.file_system import AbstractFileSystem
    from maniple.runtime.program.mapper import Mapper
    from maniple.runtime.storage.block_file import Block
    from maniple.runtime.storage.memory import Memory
    from maniple.strategies.interface.plan_frontier import Frontier
    from maniple.trained_module import TrainedModule

__all__: list[str] = []


class TrainerCheckpoint(TrainerInspection):
    """What a trainer does with files; all ranks do the same."""

    hyper: Hyper
    position: Any = None
    """Where in its data the checkpoint was that this trainer goes on from, for `mp.data.Loader(start=...)`."""
    scalars: Mapping[str, Any] = {}
    """What that checkpoint had been given by name."""
    bytes_read: int = 0
    """The bytes of values that this rank read from it."""
    _weights: dict[str, Weight]
    _seed: int
    _steps: int
    _steps_before: int
    _files: AbstractFileSystem = Disk()
    _saving: Saving | None = None
    _homes: HomeFiles | None = None
    """What its checkpoints share, once it has saved one and until it adopts a plan."""
    _asked: int | None = None
    """The most bytes of each memory, as the program has said last."""
    _compiled: bool = False
    """Whether torch compiles what chains of operators call."""
    _in_place: bool = False
    """Whether the graph's module is trained, and no copy of its values."""
    _module: TrainedModule | None = None

    @in_turn
    def save(
        self,
        path: str | os.PathLike[str],
        *,
        wait: bool = True,
        keep: int = 2,
        data: Any = None,
        scalars: Mapping[str, Any] | None = None,
    ) -> Saving:
        """Save a checkpoint: a folder of its own in a folder of them, by numbers; each rank writes what lives with it.

        A run that is killed at any time has the last whole one left. Where the file system fails, that is said, and the
        run goes on.

        Args:
            path: the folder of checkpoints, which all hosts share; made where there is none.
            wait: whether it is on storage when this returns; else what is saved is copied, and written meanwhile.
            keep: how many whole checkpoints stay.
            data: the loader that the batches come from, or whatever else JSON can hold of a place in the data.
            scalars: by name what else is to be kept, as far as JSON can hold it: the state of a scheduler.

        Raises:
            RequestError: a folder that is another training's or that not all ranks see, or what JSON cannot hold.
        """
        self._check_open()
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise RequestError(f"save: keep: expected how many checkpoints stay, at least 1, got {keep!r}")
        manifest, folder = self._manifest(data, dict(scalars or {})), Path(path).absolute()
        self._call(f"save({folder}) at step {self._steps}, keep {keep}: {manifest.position} {manifest.scalars}")
        self._await_saving()
        self._drain()
        last = None if self._saving is None else self._saving.folder
        self._saving = saving = checkpoint_saving.make_folder(self._world, self._files, folder, manifest, last)
        if saving.folder is None:
            self._say(saving.error)
            return saving
        if wait:
            values = {memory: self._give(memory) for memory in self._runtime.memories}
        else:
            values = dict.fromkeys(self._runtime.memories, self._home_files().copy(self._runtime.memories))
        files, made, get_on = self._files, saving.folder, self._world.headway.step
        work = lambda: checkpoint_saving.write_files(files, saving, manifest, values, keep, get_on)  # noqa: E731
        if not wait:
            saving.write(work)
            return saving
        saving.attempt(work)
        told = [part.decode() for part in self._world.control.gather(saving.error.encode()) if part]
        if told:
            saving.error = told[0]
            self._say(saving.error)
            if self._world.rank == 0:
                saving.attempt(lambda: checkpoint.remove(files, made))
                saving.error = told[0]
        return saving

    def _say(self, error: str) -> None:
        if self._world.rank == 0:
            announce(f"{error}; the run goes on")

    def _await_saving(self) -> None:
        """Wait until this rank has written what it was to write."""
        if self._saving is not None:
            self._saving.wait()

    def _manifest(self, data: Any, scalars: dict[str, Any]) -> Manifest:
        position, homes = data.position() if hasattr(data, "position") else data, self._home_files()
        return Manifest(
            graph=self.graph.name,
            fingerprint=homes.fingerprint,
            optimizer=plain_optimizer(self._optimizer),
            hyper=self.hyper.rows(),
            seed=self._seed,
            step=self._steps,
            updates=self._steps_before + self._steps,
            position=_plain("data", position),
            scalars=_plain("scalars", scalars),
            plan=homes.plan,
            files=homes.files,
        )

    def _give(self, number: int) -> Callable[[Block], torch.Tensor]:
        """What gives the blocks that live in a memory of this rank, as they are."""
        memory = self._runtime.memories[number]
        regions = {region.name: region for weight in self._weights.values() for region in weight.regions}

        def give(block: Block) -> torch.Tensor:
            region = regions[block.name]
            return memory.view(region, block.rect) if memory.device is None else memory.read(region, block.rect)

        return give

    def _home_files(self) -> HomeFiles:
        """What checkpoints of the present homes share."""
        if self._homes is None:
            self._homes = HomeFiles(self.graph, self.plan, self._weights)
        return self._homes

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        graph: Graph,
        plan: Plan | Frontier | None = None,
        *,
        optimizer: AbstractOptimizer | None = None,
        world: World | None = None,
        mapper: Mapper | None = None,
        begin: bool = False,
        seed: int = 0,
        memory: int | None = None,
        compile: bool | None = None,  # noqa: A002  (torch's word)
        in_place: bool = False,
    ) -> Self:
        """Make a trainer that goes on from a checkpoint, under any plan, on any ranks.

        Files are held against their checksums, each by one rank; then each rank reads what lives with it and no more.
        The seed, the optimizer with its numbers, and the next step's number are those of the checkpoint.

        Args:
            path: the folder that was given to `save`, of which the newest whole checkpoint is taken; or a checkpoint.
            graph: the graph that was trained.
            plan: how it goes on; the checkpoint's own where none is given, of a frontier the fastest that fits.
            optimizer: one of your own, which no file can hold; default the checkpoint's.
            world: the ranks; default those of this launch.
            mapper: see `Trainer`.
            begin: whether the training begins where the folder has no whole checkpoint yet, as the first time that a
                program runs which goes on by itself: with this plan, optimizer and seed.
            seed: of the parameters' initial values, where it begins.
            memory: see `Trainer`.
            compile: see `Trainer`.
            in_place: see `Trainer`.

        Raises:
            RequestError: no whole checkpoint, or one of another graph or optimizer, of a newer version, or damaged.
        """
        where = world if world is not None else current()
        trainer = cls.__new__(cls)
        trainer._asked = None if memory is None else checked_limit(memory)  # noqa: SLF001  (its own class)
        trainer._compiled = checked_compilation(compile, where)  # noqa: SLF001  (its own class)
        trainer._in_place = in_place  # noqa: SLF001  (its own class)
        agreed = _agree(where, Path(path).absolute(), begin=begin)
        if agreed is None:
            if plan is None or optimizer is None:
                raise RequestError(f"{path}: no whole checkpoint there; to begin, give a plan and an optimizer")
            trainer._begin(graph, plan, optimizer, seed, where, mapper, None)  # noqa: SLF001  (its own class)
            return trainer
        folder, manifest = agreed
        name = folder.name
        _check_graph(manifest, graph, name)
        made = _optimizer(manifest, optimizer, name)
        if plan is None:
            plan = Plan.parse(json.dumps(manifest.plan), f"{name}: plan")
        with BlockReader(manifest.blocks(folder)) as stored:
            trainer._begin(graph, plan, made, manifest.seed, where, mapper, stored)  # noqa: SLF001  (its own class)
            trainer.bytes_read = stored.bytes_read
        trainer._continue(manifest)  # noqa: SLF001  (its own class)
        return trainer

    def _continue(self, manifest: Manifest) -> None:
        """Take what no block holds."""
        self.hyper.restore(manifest.hyper)
        self.position, self.scalars = manifest.position, manifest.scalars
        self._steps, self._steps_before = manifest.step, manifest.updates - manifest.step
        self._world.headway.train(manifest.step)

    @abstractmethod
    def _begin(
        self,
        graph: Graph,
        plan: Plan | Frontier,
        optimizer: AbstractOptimizer,
        seed: int,
        world: World,
        mapper: Mapper | None,
        stored: BlockReader | None,
    ) -> None:
        """Make the trainer."""


def _check_seals(world: World, folder: Path, manifest: Manifest) -> None:
    """See that the files of a checkpoint are as they were written: each rank looks at its share of them, whole.

    Raises:
        RequestError: on all ranks, if one is not; says which.
    """
    fault = ""
    try:
        for each in manifest.files[world.rank :: world.size] if manifest.version > 1 else ():
            check_seal(folder / each.name, world.headway.step)
    except RequestError as error:
        fault = str(error)
    told = [part.decode() for part in world.control.gather(fault.encode()) if part]
    if told:
        raise RequestError(f"resume: {told[0]}")
    if manifest.version == 1 and world.rank == 0:
        announce(
            f"{folder} was written without checksums, by an earlier maniple: what its files hold is taken as it is"
        )


def take_stored(
    world: World, weights: Mapping[str, Weight], memories: Mapping[int, Memory], stored: BlockReader
) -> None:
    """Give what lives with this rank the values that are stored.

    Raises:
        RequestError: on all ranks, if one cannot read its own; says which.
    """
    scaled, was = loss_scale.NAME in weights, loss_scale.NAME in stored.names
    if scaled != was:
        here, there = ("is", "was not") if scaled else ("is not", "was")
        drop_weights(weights, memories)
        raise RequestError(
            f"resume: the loss {here} scaled under this plan and {there} in the checkpoint; resume under a plan of the "
            "same semantics.precision, or load the parameters alone"
        )
    fault = ""
    try:
        for weight in weights.values():
            for region in weight.regions:
                for number, rects in weight.home:
                    for rect in rects if number in memories else ():
                        world.headway.step()
                        memories[number].assign(region, rect, stored.read(region.name, rect, region.dtype))
    except RequestError as error:
        fault = f"{world.place()}: {error}"
    told = [part.decode() for part in world.control.gather(fault.encode()) if part]
    if told:
        drop_weights(weights, memories)
        raise RequestError(f"resume: {told[0]}")


def _plain(what: str, value: Any) -> Any:
    """A value as JSON gives it back.

    Raises:
        RequestError: it would not be the same.
    """
    if isinstance(value, list | tuple):
        return [_plain(what, part) for part in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(what, part) for key, part in value.items()}
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    raise RequestError(f"save: {what}: expected texts, finite numbers, lists and tables by text, got {value!r}")


@in_turn
def _agree(world: World, path: Path, *, begin: bool) -> tuple[Path, Manifest] | None:
    """The checkpoint that rank 0 finds, which all ranks must see alike; None where there is none and one may begin."""
    said = {"folder": "", "refused": ""}
    if world.rank == 0:
        try:
            if not begin or checkpoint.is_any(path):
                folder, passed = checkpoint.find(path)
                said["folder"] = str(folder)
                for each in passed:
                    announce(each)
        except RequestError as error:
            said["refused"] = str(error)
    told = json.loads(world.control.gather(json.dumps(said).encode())[0])
    if told["refused"]:
        raise RequestError(told["refused"])
    if not told["folder"]:
        return None
    folder, manifest, mine = Path(told["folder"]), None, ""
    try:
        manifest = read_manifest(folder)
        mine = blake2b(manifest.text().encode(), digest_size=16).hexdigest()
    except RequestError as error:
        mine = str(error)
    gathered = world.control.gather(mine.encode())
    others = [rank for rank, text in enumerate(gathered) if text != gathered[0]]
    if manifest is None or others:
        ranks = f"ranks {others} read other things than rank 0" if others else mine
        raise RequestError(f"{folder}: {ranks}; resume needs a folder that all hosts share")
    _check_seals(world, folder, manifest)
    return folder, manifest


def _check_graph(manifest: Manifest, graph: Graph, name: str) -> None:
    """Refuse a graph that is not the one that was trained."""
    if manifest.fingerprint != graph.fingerprint():
        raise RequestError(
            f"{name}: is of graph {manifest.graph!r} with another fingerprint than graph {graph.name!r}: layers, "
            "extents or the batch differ; give the graph that was trained"
        )


def _optimizer(manifest: Manifest, given: AbstractOptimizer | None, name: str) -> AbstractOptimizer:
    kind = manifest.optimizer[0] if manifest.optimizer else None
    if given is not None:
        if type(given).__name__ != kind:
            raise RequestError(
                f"{name}: is of optimizer {kind}, not {type(given).__name__}; leave optimizer out to go on with it"
            )
        return given
    try:
        found = optimizer_of(manifest.optimizer)
    except (RequestError, TypeError, ValueError) as error:
        raise RequestError(f"{name}: optimizer: {error}; pass optimizer= where it is one of your own") from error
    if found is None:
        raise RequestError(f"{name}: optimizer: expected one, got none")
    return found
