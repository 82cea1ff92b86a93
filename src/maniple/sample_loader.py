"""The loader: a data set's samples, batch after batch, in an order that the seed decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, final

from maniple.process.error import RequestError
from maniple.sample_batch import WHOLE, SampleBatch, collate
from maniple.sample_order import order

__all__: list[str] = []

_KEYS = ("seed", "samples", "batch", "epoch", "batches")


class Dataset(Protocol):
    """Samples by number, as torch's data sets have them."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, index: int) -> Any:
        """Give one: a tuple or dictionary of what the graph takes."""
        ...


@final
class Loader:
    """The batches of a data set, epoch after epoch: ``for batch in loader: trainer.step(batch)`` is one epoch.

    Every rank makes the same loader and takes the same batches. A batch is the numbers of its samples; a trainer that
    is given it reads the rows that the tasks of its rank take, and no others. The order is a function of the seed and
    the epoch alone.

    Args:
        dataset: samples by number; or columns of them by what the graph calls its inputs, of which a rank reads each
            for the rows alone that it takes: a loss may take all labels where a rank takes few images. Workers call
            them from several threads.
        batch: samples of a batch; the last of an epoch has fewer.
        seed: of the order.
        workers: threads that read samples ahead; 0 reads when a batch is used, in the program's own.
        prefetch: batches that are read ahead.
        shuffle: whether the order is mixed.
        start: a position, as `position` or a checkpoint gave it, to go on from.
        collate: makes a batch of a list of samples; default as torch's loaders.

    Raises:
        RequestError: a number out of range, or a position in other data.
    """

    def __init__(
        self,
        dataset: Dataset | Mapping[str, Dataset],
        batch: int,
        seed: int = 0,
        *,
        workers: int = 0,
        prefetch: int = 2,
        shuffle: bool = True,
        start: Mapping[str, Any] | None = None,
        collate: Callable[[list[Any]], Any] = collate,
    ) -> None:
        for name, value, least in (("batch", batch, 1), ("workers", workers, 0), ("prefetch", prefetch, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RequestError(f"Loader: {name}: expected an integer >= {least}, got {value!r}")
        self._batch, self._seed, self._shuffle, self._collate = batch, seed, shuffle, collate
        self._columns = dict(dataset) if isinstance(dataset, Mapping) else {WHOLE: dataset}
        sizes = {name: len(column) for name, column in self._columns.items()}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
            raise RequestError(f"Loader: the columns hold different numbers of samples: {shown}")
        self._samples = next(iter(sizes.values()), 0)
        if self._samples < 1:
            raise RequestError("Loader: the data set is empty: expected at least 1 sample")
        self._epoch = self._done = 0
        self._workers, self._prefetch = workers, prefetch
        self._pool = ThreadPoolExecutor(workers, "loader") if workers else None
        self._rows: dict[int, Mapping[str, tuple[int, ...]]] = {}
        self.samples_read: dict[str, int] = {}
        """Samples that this rank has read, by column; of one that has none, under the empty name."""
        if start is not None:
            self._go_to(start)

    def position(self) -> dict[str, Any]:
        """The place behind the last batch that was taken, for `start`; batches read ahead do not count."""
        values = (self._seed, self._samples, self._batch, self._epoch, self._done)
        return dict(zip(_KEYS, values, strict=True))

    def _go_to(self, start: Mapping[str, Any]) -> None:
        mine = self.position()
        if not isinstance(start, Mapping) or sorted(start) != sorted(_KEYS):
            raise RequestError(f"Loader: start: expected what position() gave, got {start!r}")
        for key in ("seed", "samples"):
            if start[key] != mine[key]:
                raise RequestError(
                    f"Loader: start: is a place in data of {key} {start[key]!r}, this has {mine[key]!r}; make the "
                    "loader of the same data set and seed"
                )
        done = start["batches"] * start["batch"]
        if done % self._batch and done < self._samples:
            raise RequestError(
                f"Loader: start: {done} samples of the epoch are done, which are no whole number of batches of "
                f"{self._batch}; go on with batch={start['batch']} to the end of the epoch"
            )
        self._epoch, self._done = start["epoch"], -(-min(done, self._samples) // self._batch)

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return (self._samples + self._batch - 1) // self._batch

    def __iter__(self) -> Iterator[SampleBatch]:
        """Give the batches that are left of this epoch; at its end those of the next."""
        if self._done >= len(self):
            self._epoch, self._done = self._epoch + 1, 0
        epoch = self._epoch
        numbers = order(self._samples, self._seed, epoch) if self._shuffle else range(self._samples)
        ahead: deque[Ahead] = deque()
        made = self._done
        for done in range(made, len(self)):
            if (self._epoch, self._done) != (epoch, done):
                raise RequestError("Loader: another iteration has taken the next batch; iterate once at a time")
            while made < len(self) and len(ahead) <= (self._prefetch if self._workers else 0):
                cut = numbers[made * self._batch : (made + 1) * self._batch]
                ahead.append(Ahead(self, tuple(int(number) for number in cut)))
                made += 1
            for each in ahead:
                each.begin()
            first = ahead.popleft()
            told = f"seed {self._seed}, {self._samples} samples, epoch {epoch}, batch {done}"
            self._done += 1
            yield SampleBatch(first.numbers, told, tuple(self._columns), first.read)

    def rows_of(self, size: int) -> Mapping[str, tuple[int, ...]] | None:
        """The rows that were taken of the last batch of a size, by column."""
        return self._rows.get(size)

    def note_rows(self, size: int, rows: Mapping[str, tuple[int, ...]]) -> None:
        """Note which rows are taken of a batch of a size; they are read ahead from then on."""
        self._rows[size] = rows

    def begin(self, column: str, numbers: tuple[int, ...]) -> list[Future[list[Any]]]:
        """Begin to read samples ahead, in as many parts as there are workers."""
        if self._pool is None:
            return []
        share = -(-len(numbers) // self._workers)
        parts = [numbers[first : first + share] for first in range(0, len(numbers), share)]
        return [self._pool.submit(partial(self._take, column, part)) for part in parts]

    def load(self, column: str, numbers: tuple[int, ...], parts: list[Future[list[Any]]]) -> Any:
        """Give samples as a batch, from parts that were read ahead, or read now."""
        parts = parts or self.begin(column, numbers)
        samples = [each for part in parts for each in part.result()] if parts else self._take(column, numbers)
        self.samples_read[column] = self.samples_read.get(column, 0) + len(samples)
        return self._collate(samples)

    def _take(self, column: str, numbers: tuple[int, ...]) -> list[Any]:
        data = self._columns[column]
        return [data[number] for number in numbers]


@final
@dataclass(eq=False)
class Ahead:
    """A batch that may be read ahead, once it is known which rows of it will be taken.

    Args:
        loader: whose.
        numbers: of its samples.
    """

    loader: Loader
    numbers: tuple[int, ...]
    _rows: Mapping[str, tuple[int, ...]] | None = None
    _parts: dict[str, list[Future[list[Any]]]] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin to read what is expected to be taken, unless that has begun."""
        if self._rows is None:
            self._rows = self.loader.rows_of(len(self.numbers))
            for column, rows in (self._rows or {}).items():
                self._parts[column] = self.loader.begin(column, self._pick(rows))

    def read(self, rows: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Give some rows of the batch, by column."""
        self.loader.note_rows(len(self.numbers), rows)
        expected = self._rows or {}
        return {
            column: self.loader.load(
                column,
                self._pick(taken),
                self._parts[column] if expected.get(column) == taken else [],  # another plan takes others
            )
            for column, taken in rows.items()
        }

    def _pick(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.numbers[row] for row in rows)
