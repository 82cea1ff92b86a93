"""Batches named by their samples' numbers: ranks agree on the numbers, and each reads the rows that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch

from maniple.operators.graph.batch import check_batch
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from maniple.operators.graph.batch import BatchForm
    from maniple.operators.graph.graph import Graph
    from maniple.step_run import LoadedProgram

__all__: list[str] = []


WHOLE = ""
"""The column of samples that are read whole."""


@final
@dataclass(frozen=True, eq=False)
class SampleBatch:
    """A batch of a loader: which samples, and how some of its rows are read.

    Args:
        numbers: of the samples, in order.
        told: what ranks compare beside them: the loader's seed, epoch and so on.
        columns: what is read apart, by an argument's or an input's name; `WHOLE` alone where samples are read whole.
        read: gives, by column, some rows of the batch, collated, as the graph takes them.
    """

    numbers: Sequence[int]
    told: str
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, Any]] = field(repr=False)

    def __len__(self) -> int:
        """How many samples it has."""
        return len(self.numbers)


@final
class Rows:
    """Some rows of an input, which stands for the whole where only they are looked at.

    Args:
        places: row by row, where it is in `values`; only of those that are there.
        values: the rows that are there.
    """

    __slots__ = ("_places", "_values")

    def __init__(self, places: Mapping[int, int], values: torch.Tensor) -> None:
        self._places, self._values = places, values

    @property
    def ndim(self) -> int:
        """The dimensions of the input."""
        return self._values.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """None that a box has: of what stands for the whole every box is cut out."""
        return ()

    def __getitem__(self, where: tuple[slice, ...]) -> torch.Tensor:
        """Give a box of the input."""
        rows, *others = where
        first = self._places[rows.start]
        return self._values[(slice(first, first + rows.stop - rows.start), *others)]


@final
@dataclass(frozen=True, eq=False)
class GivenBatch:
    """What a call was given: the inputs themselves, or the numbers of samples.

    Args:
        size: samples.
        inputs: by name; nothing where samples are named.
        samples: those that are named.
    """

    size: int
    inputs: Mapping[str, torch.Tensor]
    samples: SampleBatch | None = None

    @classmethod
    def of(
        cls,
        form: BatchForm,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        names: Sequence[str] | None = None,
    ) -> GivenBatch:
        """Check what a call was given.

        Args:
            form: what batches of the graph are.
            args: by position; or a batch of a loader alone.
            kwargs: by name.
            names: the inputs that the program needs; None: all.

        Raises:
            RequestError: it does not fit the graph.
        """
        if len(args) == 1 and isinstance(args[0], SampleBatch):
            size = len(args[0])
            if kwargs:
                raise RequestError(f"expected a batch of a loader alone, got {', '.join(kwargs)} beside it")
            if not 0 < size <= form.batch:
                raise RequestError(f"the batch has {size} samples, the graph {form.batch}; give the loader batch=")
            return cls(size, {}, args[0])
        inputs, size = form.check(args, kwargs, names)
        return cls(size, inputs)

    def told(self) -> dict[str, torch.Tensor]:
        """What ranks compare."""
        if self.samples is None:
            return dict(self.inputs)
        text = torch.frombuffer(bytearray(self.samples.told.encode()), dtype=torch.uint8)
        return {"numbers": torch.as_tensor(self.samples.numbers), "told": text}

    def fetch(self, graph: Graph, loaded: LoadedProgram, here: Collection[int], *, keep: bool) -> dict[str, Any]:
        """The inputs as the tasks of this rank take them; of samples, the rows that they take are read now.

        Args:
            graph: the graph.
            loaded: the program.
            here: the rank's memories.
            keep: whether what was given may be changed after this.

        Raises:
            RequestError: a sample does not fit the graph.
        """
        if self.samples is None:
            return {name: value.clone() for name, value in self.inputs.items()} if keep else dict(self.inputs)
        needs, found = needed_rows(loaded, here), dict.fromkeys(loaded.inputs)
        inputs = {column: _inputs_of(graph, column, loaded) for column in self.samples.columns}
        lost = set(needs).difference(*inputs.values())
        if lost:
            raise RequestError(f"the loader has no column for input {min(lost)!r}; it has {', '.join(inputs)}")
        rows = {
            column: tuple(sorted({row for name in names for row in needs.get(name, ())}))
            for column, names in inputs.items()
        }
        for column, value in self.samples.read({each: taken for each, taken in rows.items() if taken}).items():
            args, kwargs = _as_arguments(column, value)
            values, count = check_batch(graph, args, kwargs, inputs[column])
            if count != len(rows[column]):
                raise RequestError(f"the loader's collate gave {count} rows for {len(rows[column])} samples")
            places = {row: place for place, row in enumerate(rows[column])}
            found.update({name: Rows(places, tensor) for name, tensor in values.items()})
        return found


def _inputs_of(graph: Graph, column: str, loaded: LoadedProgram) -> list[str]:
    """The inputs of a program that a column gives."""
    if column == WHOLE:
        return list(loaded.inputs)
    held = graph.arguments.inputs
    column = graph.arguments.renamed.get(column, column)
    known = {*held, *(tensor.name for tensor in graph.inputs)}
    if column not in known:
        raise RequestError(f"the loader has a column {column!r}, which graph {graph.name!r} has no input for")
    return [name for name in held.get(column, (column,)) if name in loaded.inputs]


def _as_arguments(column: str, value: Any) -> tuple[tuple[object, ...], dict[str, object]]:
    """What was read, as a call gives it."""
    if column != WHOLE:
        return (), {column: value}
    return ((value,) if isinstance(value, Mapping | torch.Tensor) else tuple(value)), {}


def needed_rows(loaded: LoadedProgram, here: Collection[int]) -> dict[str, tuple[int, ...]]:
    """The rows of each input that the tasks of a rank take, in order.

    Args:
        loaded: the program.
        here: the rank's memories.
    """
    rows: dict[str, set[int]] = {}
    for name, ports in loaded.inputs.items():
        for port in ports.values():
            for memory, rect in zip(port.memories, port.rects, strict=True):
                if memory in here:
                    rows.setdefault(name, set()).update(range(rect.lo[0], rect.hi[0]))
    return {name: tuple(sorted(taken)) for name, taken in rows.items()}


def collate(samples: Iterable[Any]) -> Any:
    """Samples as a batch: tensors, arrays and numbers are stacked, within tuples, lists and dictionaries.

    Raises:
        RequestError: a sample is something else, or they differ in shape.
    """
    from torch.utils.data import default_collate

    try:
        return default_collate(list(samples))
    except (TypeError, RuntimeError) as error:
        raise RequestError(f"Loader: these samples make no batch ({error}); give collate=") from error
