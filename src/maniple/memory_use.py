"""Memory use of a training: what each rank will need, known before the first step, and the most that it had since."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, final

import torch

from maniple.process.compilation import linear_algebra
from maniple.process.compilation.compiled import pack
from maniple.process.error import RequestError
from maniple.process.file_entry import Entry
from maniple.process.malloc_tuning import give_back, giving_back
from maniple.runtime.observe.peak import Peak, Watch

if TYPE_CHECKING:
    from maniple.runtime.devices.device import Device
    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.execution.replay import Replay

__all__: list[str] = []

FIGURES = ("measured", "host", "shared", "devices", "reserved")
"""What is known once a step has begun."""


@final
class MemoryUse:
    """The memory of one rank's share of a training.

    Args:
        runtime: the rank's, whose memories hold nothing of the training yet.
    """

    def __init__(self, runtime: RankRuntime) -> None:
        if runtime.world.device == "cpu":
            load_compiler()
        load_libraries(runtime)
        self._runtime = runtime
        devices = [memory.device for memory in runtime.memories.values()]
        shared = runtime.world.shared
        self._watch = Watch(
            None if shared is None else shared.arena,
            [found for device in devices if device is not None and (found := device.torch_device) is not None],
        )
        self._most: Peak | None = None
        self._begun = self._rehearsed = False

    def begin(self) -> None:
        """Watch from now on, if it was not watched before: the first step begins.

        What lowering and initial values have freed goes back to the system: steps take other sizes, and it would stay.
        """
        if not self._begun:
            self._begun = True
            pack()
            give_back()
            self._watch.begin()

    def expect_others(self) -> None:
        """Measure anew from the next step on: what runs then are other programs."""
        self._begun = self._rehearsed = False
        self._most = None

    def end(self) -> None:
        """Watch no more."""
        self._watch.end()

    def gather(self, replay: Replay) -> dict[int, dict[str, int]]:
        """Give the figures of all ranks; each must ask, with nothing under way.

        Args:
            replay: the program of a step.
        """
        measured = self._measure()  # before bodies are rehearsed
        mine = [self._predict(replay), *measured]
        told = [
            Entry("memory of a rank", "", json.loads(part)).elements()
            for part in self._runtime.world.control.gather(json.dumps(mine).encode())
        ]
        names = ("predicted", *FIGURES)
        return {
            rank: {name: entry.integer(0) for name, entry in zip(names, entries, strict=False)}
            for rank, entries in enumerate(told)
        }

    def _measure(self) -> list[int]:
        """The most since the first step, as FIGURES; nothing before."""
        if not self._begun:
            return []
        found, before = self._watch.peak(), self._most
        if before is None or found.total > before.total:
            self._most = before = found
        return [before.total, before.host, before.shared, before.devices, before.reserved]

    def _predict(self, replay: Replay) -> int:
        """What the instances of a step take at this rank, and the most that bodies take beside them."""
        runtime = self._runtime
        if not self._rehearsed:
            self._rehearsed = True
            with self._watch.aside(), giving_back():
                runtime.scratch.rehearse(replay.schedule, runtime.processors, runtime.await_event)
        scratch = runtime.scratch.residents(replay.schedule, runtime.processors)
        return sum(replay.needs().values()) + sum(resident.size for found in scratch.values() for resident in found)


def checked_limit(memory: object) -> int:
    """A limit of memory as a program gives it.

    Raises:
        RequestError: it is no number of bytes above 0.
    """
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise RequestError(f"memory: expected the bytes of each memory, more than 0, got {memory!r}")
    return memory


def load_libraries(runtime: RankRuntime) -> None:
    """Have the libraries of devices keep what they keep for whoever calls them: it is of no training.

    The capacity of a memory is without it already; see `runtime.machine.gpu_machine`.
    """
    for processor in runtime.processors.values():
        if processor.device is not None:
            done = threading.Event()
            processor.enqueue(partial(_settle, processor, processor.device, done), 0)
            runtime.await_event(done)


def _settle(processor: Processor, device: Device, done: threading.Event) -> None:
    processor.submit(device.settle).wait()
    done.set()


def load_compiler() -> None:
    """Have the compiler loaded, as the first kernel in a process does: what is imported is of no training."""
    from maniple.operators.training.descent import SGD
    from maniple.operators.training.descent_kernels import bind_descent

    linear_algebra.defer()
    bind_descent(SGD(lr=0.0), torch.zeros(1), torch.zeros(1), (), 1)
