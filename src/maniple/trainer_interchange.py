"""What a trainer exchanges with torch and others: weights as safetensors files, and an optimizer's state as torch's."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from maniple import checkpoint
from maniple.checkpoint import SavedFile
from maniple.process.error import RequestError, RunError, nearest
from maniple.process.file_entry import read_json
from maniple.regions.rectangle import Rect
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.storage.block_file import (
    BlockReader,
    StoredBlock,
    bytes_of,
    file_size,
    in_order,
    make_header,
    pieces_of,
    whole_tensors,
)
from maniple.runtime.storage.copy_kernels import torch_dtype
from maniple.torch_state import TorchState
from maniple.trainer_measures import TrainerMeasures

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

__all__: list[str] = []

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
"""What Hugging Face calls the files of a model."""


class TrainerInterchange(TrainerMeasures):
    """What a trainer exchanges with torch and others; all ranks do the same."""

    @abstractmethod
    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Give what the optimizer keeps, whole, and the number of steps."""

    @abstractmethod
    def load_optimizer_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take what an optimizer of the same kind kept."""

    @in_turn
    def load_weights(self, path: str | os.PathLike[str], *, cast: bool = False) -> None:
        """Take parameters and persistent buffers from safetensors files, by torch's names; each rank reads its blocks.

        The optimizer's state stays. A further name of a tied tensor may stand for it, and buffers that are not
        persistent need not be there.

        Args:
            path: a file, or a folder as Hugging Face has them: with `model.safetensors`, or an index of several files.
            cast: whether values of another floating type are converted; else they are refused.

        Raises:
            RequestError: on all ranks, before anything is changed: a file that is missing or broken, a missing, unknown
                or misshaped tensor.
        """
        self._check_open()
        self._call(f"load_weights({Path(path).absolute()}, cast {cast})")
        self._drain()
        memories, fault, parts = self._runtime.memories, "", []
        try:
            found = self._match(Path(path))
            with BlockReader({name: [block] for name, block in found.items()}) as stored:
                for weight in (self._weights[name] for name in found):
                    for number, rects in weight.home:
                        for rect in rects if number in memories else ():
                            self._world.headway.step()
                            value = stored.read(weight.name, rect, None if cast else weight.value.dtype)
                            parts.append((number, weight.value, rect, _cast(weight.name, value, weight.value.dtype)))
        except RequestError as error:
            fault = f"{self._world.place()}: {error}"
        told = [part.decode() for part in self._world.control.gather(fault.encode()) if part]
        if told:
            raise RequestError(f"load_weights: {told[0]}")
        for number, region, rect, value in parts:
            memories[number].assign(region, rect, value)

    def _match(self, path: Path) -> dict[str, StoredBlock]:
        """The tensor of a file for each parameter and buffer that is to be read."""
        known = {tensor.name: tensor for tensor in self.graph.lasting}
        found: dict[str, StoredBlock] = {}
        for name, block in _tensors(path).items():
            own = self.graph.ties.get(name, name)
            if own not in known:
                raise RequestError(f"{block.file}: {name}: the graph has no such tensor{nearest(name, [*known])}")
            if block.rect.shape != known[own].shape:
                raise RequestError(f"{block.file}: {name}: expected {known[own].shape}, got {block.rect.shape}")
            found[own] = block
        lost = [name for name, tensor in known.items() if tensor.persistent and name not in found]
        if lost:
            raise RequestError(f"{path}: {len(lost)} of {len(known)} tensors are missing, the first is {lost[0]!r}")
        return found

    @in_turn
    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and persistent buffers to one safetensors file, by torch's names, ties under each of theirs.

        Each rank writes what lives with it to a file beside; rank 0 puts these together, a tensor at a time.

        Args:
            path: of the file; its folder is there, and all hosts share it.

        Raises:
            RequestError: a rank does not see the folder.
            RunError: it could not be written: what has the name then is whole, or what had it before.
        """
        self._check_open()
        target = Path(path).absolute()
        self._call(f"save_weights({target})")
        self._drain()
        self._await_saving()
        control, files = self._world.control, self._files
        mine = b"" if target.parent.is_dir() else self._world.place().encode()
        blind = [text.decode() for text in control.gather(mine)]
        if any(blind):
            raise RequestError(f"save_weights: {', '.join(filter(None, blind))}: there is no folder {target.parent}")
        saved = self._value_files(target.name)
        folder, fault = target.parent, ""
        try:
            for each in saved:
                if each.memory in self._runtime.memories:
                    files.write_beside(
                        folder / each.name, pieces_of(each.blocks, self._give(each.memory), self._world.headway.step)
                    )
        except OSError as error:
            fault = f"{self._world.place()}: {error}"
        told = [part.decode() for part in control.gather(fault.encode()) if part]
        if not told and self._world.rank == 0:
            try:
                files.write_beside(target, self._join(saved, folder))
            except (OSError, RequestError) as error:
                fault = f"{self._world.place()}: {error}"
        told = told or [part.decode() for part in control.gather(fault.encode()) if part]
        for each in saved:
            if each.memory in self._runtime.memories:
                with suppress(OSError):
                    files.remove(folder / each.name)
        if told:
            raise RunError(f"save_weights: {target} was not written: {told[0]}")

    def _value_files(self, name: str) -> tuple[SavedFile, ...]:
        """Files of values alone, to be joined."""
        values = {tensor.name for tensor in self.graph.lasting if tensor.persistent}
        files = []
        for each in checkpoint.files_of(self._weights):
            blocks = in_order(block for block in each.blocks if block.name in values)
            files.append(SavedFile(f".{name}.{each.name}", each.memory, blocks, file_size(blocks)))
        return tuple(files)

    def _join(self, saved: tuple[SavedFile, ...], folder: Path) -> Iterator[memoryview]:
        """The bytes of one file with each tensor whole."""
        held: dict[str, list[StoredBlock]] = {}
        for each in saved:
            for block in each.blocks:
                held.setdefault(block.name, []).append(StoredBlock(folder / each.name, block.key, block.rect))
        own = {tensor.name: tensor for tensor in self.graph.lasting if tensor.persistent}
        names = [*((name, name) for name in own), *((tie, of) for tie, of in self.graph.ties.items() if of in own)]
        names.sort(key=lambda pair: -torch_dtype(own[pair[1]].dtype).itemsize)
        rows = [
            (name, own[of].dtype, own[of].shape, prod(own[of].shape) * torch_dtype(own[of].dtype).itemsize)
            for name, of in names
        ]
        yield memoryview(make_header(rows, {"format": "pt"}))
        with BlockReader(held) as stored:
            for _, of in names:
                self._world.headway.step()
                yield from bytes_of(stored.read(of, Rect.of_shape(own[of].shape), own[of].dtype))

    @in_turn
    def torch_optimizer_state(self, kind: str | None = None, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Give what the state dict of torch's optimizer of this kind would be, whole, on every rank.

        Its groups are the parameters that no pattern names and then those of each pattern, with their names under
        `param_names`.

        Args:
            kind: torch's name of the optimizer, where groups have several: ``Muon``, ``AdamW``.
            names: the trained parameters in the order in which torch's optimizer has them, such as that of
                `module.named_parameters()`; default the graph's.

        Raises:
            RequestError: torch has no such optimizer, or the names are not those of the parameters.
        """
        form = TorchState.of(self._optimizer, self.graph, kind, names)
        return form.told(self.optimizer_state(), self.hyper.rows())

    @in_turn
    def load_torch_optimizer_state(
        self, given: Mapping[str, Any], kind: str | None = None, names: Sequence[str] | None = None
    ) -> None:
        """Take the state dict of torch's optimizer of this kind, by the names of its parameters, else in their order.

        Args:
            given: as `torch.optim.Optimizer.state_dict` gives it, the same on every rank.
            kind: see ``torch_optimizer_state``; the state of other kinds stays.
            names: see ``torch_optimizer_state``.

        Raises:
            RequestError: other groups or parameters, a parameter that has seen another number of steps, or state of
                another optimizer; nothing is changed then.
        """
        form = TorchState.of(self._optimizer, self.graph, kind, names)
        state, numbers = form.taken(given, self.optimizer_state(), self.hyper.rows())
        self.hyper.check(numbers)
        self.load_optimizer_state(state)
        self.hyper.restore(numbers)


def _tensors(path: Path) -> dict[str, StoredBlock]:
    """The tensors of a file, or of the files that an index in a folder names."""
    if not path.is_dir():
        return whole_tensors(path)
    if not (path / INDEX).exists():
        return whole_tensors(path / SINGLE)
    table = dict(read_json(path / INDEX).items())
    if "weight_map" not in table:
        raise RequestError(f"{path / INDEX}: weight_map: this key is missing")
    wanted = {name: entry.string() for name, entry in table["weight_map"].items()}
    if any("/" in file for file in wanted.values()):
        raise RequestError(f"{path / INDEX}: weight_map: expected files of the same folder")
    files = {file: whole_tensors(path / file) for file in sorted(set(wanted.values()))}
    for name, file in wanted.items():
        if name not in files[file]:
            raise RequestError(f"{path / file}: {name} is missing, which the index says is there")
    return {name: files[file][name] for name, file in wanted.items()}


def _cast(name: str, value: torch.Tensor, dtype: str) -> torch.Tensor:
    wanted = torch_dtype(dtype)
    if value.dtype == wanted:
        return value
    if not (value.is_floating_point() and wanted.is_floating_point):
        raise RequestError(f"{name}: expected {dtype}, got {str(value.dtype)[6:]}, which is not cast")
    return value.to(wanted)
