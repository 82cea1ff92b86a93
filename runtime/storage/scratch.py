"""Scratch: the memory that bodies take beside their instances, measured, never estimated.

A body is measured once in each form of its arguments, by the allocator of its device:

    recorded    a task, in the run in which its trace is recorded
    rehearsed   an operator's body, on blank tensors, when a step is loaded that leaves a memory little room; on a CPU
                by a thread that ends, so that what it leaves lies in no heap of a step

A processor runs one task at a time, so a memory must have room for the scratch of one task of each of its processors,
the largest, for the memory that its bodies take turns with (see `scratchpad`), and for all that each keeps from when it
is bound. Numbers are of the rank that measured them; ranks exchange them where they decide together.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from maniple.process.host_allocation import watch_host_run
from maniple.process.taken_memory import Taken
from maniple.runtime.analysis.capacity import Resident
from maniple.runtime.schedule.accumulation import scratch_bytes
from maniple.runtime.schedule.launch import Binder
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.storage.copy_kernels import torch_dtype
from maniple.runtime.storage.scratchpad import taken_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.storage.scratchpad import Scratchpad

__all__: list[str] = []

Form = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, strides and dtype of a view."""
Key = tuple[Hashable, ...]
MEASURED = ("recorded", "rehearsed")
"""How a number was found; any other source says why there is none."""
UNHEARD = (
    "not measured: a profiler was under way besides the one that hears what is allocated, or torch has no such one"
)
EXHAUSTED = "not measured: memory ran out while it was rehearsed, and may do so in the step; use smaller tiles"


@runtime_checkable
class Signed(Binder, Protocol):
    """A binder that says what its bodies are, apart from their views."""

    @property
    def pure(self) -> bool:
        """Whether bodies do nothing but write their views, so that they may run on others first."""
        ...

    def signature(self, point: int) -> Hashable | None:
        """What tells the body of a point from others; None if no allocator hears what it takes."""
        ...

    def pad(self, point: int) -> Scratchpad | None:
        """The memory that the body of a point takes turns with others with."""
        ...


@dataclass(frozen=True, slots=True)
class Scratch:
    """What one body takes beside its instances.

    Args:
        kept: bytes of its own, from when it is bound.
        peak: bytes more while it runs, at most.
        source: `recorded` or `rehearsed`, or why it was not measured.
        ends: what it has taken, as it was bound, of the scratchpad that it shares with others; see `Scratchpad.ends`.
    """

    kept: int
    peak: int
    source: str
    ends: tuple[int, ...] = ()


class ScratchTable:
    """What was measured at one rank."""

    def __init__(self) -> None:
        self._known: dict[Key, Scratch] = {}

    def watch(
        self, launch: Launch, point: int, processor: Processor, call: Callable[[], object]
    ) -> Callable[[], object]:
        """Give what runs a task, and measures it where it was not yet."""
        key = _key(launch, point, processor)
        if not key or key in self._known:
            return call

        def measure() -> None:
            found = watch_run(processor, call)
            before = self._known.get(key)  # of another processor, which ran it meanwhile
            if found is None:
                self._known.setdefault(key, Scratch(0, 0, UNHEARD))
            else:
                self._known[key] = Scratch(0, max(found.peak, 0 if before is None else before.peak), "recorded")

        return measure

    def rehearse(
        self, schedule: Schedule, processors: Mapping[int, Processor], wait: Callable[[threading.Event], object]
    ) -> None:
        """Measure the operators' bodies of a schedule that were not yet, one by one; nothing else is under way.

        Args:
            schedule: its instances are known to fit.
            processors: those of this rank.
            wait: blocks until an event is set, or raises if it never will be.
        """
        exhausted: list[str] = []
        with ExitStack() as opened:
            apart: dict[int, Processor] = {}
            for row, processor in _tasks(schedule, processors):
                launch, point = schedule.launches[int(schedule.launch[row])], int(schedule.point[row])
                binder = launch.binder
                if isinstance(binder, Signed) and binder.pure and self.of(schedule, row, processor) is None:
                    if processor.id not in apart:
                        apart[processor.id] = opened.enter_context(processor.apart())
                    forms = _forms(schedule, row)
                    found = _rehearse(binder, point, apart[processor.id], forms, wait)
                    self._known[_key(launch, point, processor, forms)] = found
                    if found.source == EXHAUSTED:
                        exhausted.append(schedule.label(row))
        if exhausted:
            more = f" and {len(exhausted) - 1} more" if len(exhausted) > 1 else ""
            warnings.warn(f"scratch of {exhausted[0]}{more} is {EXHAUSTED}", stacklevel=2)

    def of(self, schedule: Schedule, row: int, processor: Processor) -> Scratch | None:
        """Give what the body of a task takes; None if it was not measured."""
        launch, point = schedule.launches[int(schedule.launch[row])], int(schedule.point[row])
        pure = isinstance(launch.binder, Signed) and launch.binder.pure
        return self._known.get(_key(launch, point, processor, _forms(schedule, row) if pure else None))

    def residents(self, schedule: Schedule, processors: Mapping[int, Processor]) -> dict[int, list[Resident]]:
        """Give, by memory, what the scratch of a schedule takes there: what is kept, and the most of each processor."""
        kept: dict[int, int] = {}
        most: dict[int, Resident] = {}
        unknown: dict[int, list[Resident]] = {}
        ends: dict[Processor, list[int]] = {}
        for row, processor in _tasks(schedule, processors):
            found = self.of(schedule, row, processor)
            if found is None:
                continue
            memory = schedule.machine.memory_of(processor.id)
            resident = Resident(f"scratch of {schedule.label(row)} ({found.source})", found.peak)
            kept[memory] = kept.get(memory, 0) + found.kept
            ends.setdefault(processor, []).extend(found.ends)
            if found.source not in MEASURED:
                unknown.setdefault(memory, []).append(resident)
            elif found.peak > 0 and (processor.id not in most or found.peak > most[processor.id].size):
                most[processor.id] = resident
        for number, size in scratch_bytes(schedule).items():
            if number in processors:
                memory = schedule.machine.memory_of(number)
                kept[memory] = kept.get(memory, 0) + size
        residents = unknown
        for memory, size in sorted(kept.items()):
            if size:
                residents.setdefault(memory, []).append(Resident("scratch that bodies keep", size))
        for processor, taken in sorted(ends.items(), key=lambda each: each[0].id):
            if size := taken_bytes(taken, on_host=processor.device is None):
                told = Resident(f"scratch that bodies of p{processor.id} take turns with", size)
                residents.setdefault(schedule.machine.memory_of(processor.id), []).append(told)
        for number, resident in sorted(most.items()):
            residents.setdefault(schedule.machine.memory_of(number), []).append(resident)
        return residents


def watch_run(processor: Processor, work: Callable[[], object]) -> Taken | None:
    """Run something where the tasks of a processor run, and say what it took of its memory."""
    return watch_host_run(work) if processor.device is None else processor.device.watch(work)


def _tasks(schedule: Schedule, processors: Mapping[int, Processor]) -> Iterator[tuple[int, Processor]]:
    """The tasks of a schedule that run here, in program order."""
    for row in range(len(schedule)):
        processor = processors.get(int(schedule.processor[row]))
        if schedule.kind[row] == RowKind.TASK and processor is not None:
            yield row, processor


def _key(launch: Launch, point: int, processor: Processor, forms: Sequence[Form | None] | None = None) -> Key:
    """What a measurement is remembered by, () if it cannot be; without forms, shapes are those that the launch says."""
    signature = launch.binder.signature(point) if isinstance(launch.binder, Signed) else None
    if signature is None:
        return ()
    if forms is None:
        uses = launch.requirements
        rects = [use.rects[point] for use in uses]
        forms = [
            None if rect.is_empty else (rect.bounds.shape, (), use.region.dtype)
            for use, rect in zip(uses, rects, strict=True)
        ]
    kind = "cpu" if processor.device is None else type(processor.device).__name__
    return (signature, tuple(forms), processor.cores, kind)


def _forms(schedule: Schedule, row: int) -> list[Form | None]:
    """How the views of a task will lie, one for each requirement."""
    launch = schedule.launches[int(schedule.launch[row])]
    found: list[Form | None] = [None] * len(launch.requirements)
    for access in schedule.accesses(row):
        extent, strides = schedule.instances[access.instance].rect.shape, [1]
        for size in extent[:0:-1]:
            strides.append(strides[-1] * size)
        shape, dtype = access.rect.bounds.shape, launch.requirements[access.slot].region.dtype
        found[access.slot] = shape, tuple(strides[::-1][: len(shape)]), dtype
    return found


def _rehearse(
    binder: Signed,
    point: int,
    processor: Processor,
    forms: Sequence[Form | None],
    wait: Callable[[threading.Event], object],
) -> Scratch:
    """Bind a body to blank tensors and run it, on its processor's thread."""
    found: list[Scratch] = []
    done = threading.Event()

    def rehearse() -> None:
        calls: list[Callable[[], object]] = []
        try:
            blanks = [None if form is None else _blank(*form) for form in forms]
            pad = binder.pad(point)
            with nullcontext() if pad is None else pad.apart():
                bound = watch_run(processor, lambda: calls.append(binder(point, blanks, processor.cores)))
                run = watch_run(processor, calls.pop())
                if bound is None or run is None:
                    found.append(Scratch(0, 0, UNHEARD))
                elif pad is None:
                    found.append(Scratch(bound.kept, run.peak, "rehearsed"))
                else:
                    kept = max(0, bound.kept - pad.allocated)
                    found.append(Scratch(kept, run.peak, "rehearsed", pad.ends))
        except Exception as error:  # noqa: BLE001  (blank values may be none that it takes)
            found.append(
                Scratch(
                    0, 0, EXHAUSTED if _is_out_of_memory(error) else f"not measured: {type(error).__name__}: {error}"
                )
            )

    def work() -> None:
        processor.submit(rehearse).wait()
        done.set()  # not after a failure, which the rank is told of and which ends the wait

    processor.enqueue(work, 0)
    wait(done)
    return found[0]


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; torch has a type for that of devices alone."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _blank(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Make a tensor of ones where none is an index, else of zeros, which lies as an instance's view does."""
    kind = torch_dtype(dtype)
    return torch.empty_strided(shape, strides, dtype=kind).fill_(kind.is_floating_point or kind == torch.bool)
