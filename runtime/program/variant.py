"""Variants: the bodies of a task, each for a kind of processor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    import torch

__all__: list[str] = []

KINDS = {"cpu": "cpu", "numba": "cpu", "cuda": "gpu", "numba.cuda": "gpu"}
"""The kind of processor that each kind of variant runs on."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One body of a task.

    ============  =========  =============================================================
    kind          processor  what the body is given
    ============  =========  =============================================================
    `cpu`         CPU        torch tensors
    `numba`       CPU        numpy arrays; compiled, and run without the interpreter lock
    `cuda`        GPU        torch tensors in the GPU's memory
    `numba.cuda`  GPU        numba device arrays; the body launches its kernels
    ============  =========  =============================================================

    Args:
        kind: one of these.
        function: as it was written.
        call: what runs: the function, compiled on its first call if the kind asks for that.
        captured: whether a GPU may issue again what the body issued, in place of calling it.
    """

    kind: str
    function: Callable[..., Any]
    call: Callable[..., Any]
    captured: bool = False

    @property
    def processor(self) -> str:
        """The kind of processor that it runs on."""
        return KINDS[self.kind]

    def array(self, view: torch.Tensor) -> object:
        """Give a view as the body wants it."""
        if self.kind == "numba":
            return view.numpy()
        if self.kind == "numba.cuda":
            from numba import cuda

            return cast("Any", cuda).as_cuda_array(view)
        return view


class CompiledBody:
    """A function that numba compiles when it is first called; numba takes a second to import.

    Args:
        function: as it was written.
    """

    __slots__ = ("_dispatcher", "_function", "_leaves", "_lock")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._dispatcher: Any = None
        self._leaves: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: object) -> object:
        """Call it from the interpreter; it runs without the interpreter lock."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            with self._lock:
                dispatcher = self._compile()
        return dispatcher(*arguments)

    def leaf(self, given: tuple[Any, ...], make: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
        """Give what compiled code calls, the same for all threads: who has its address relies on it to stay.

        Args:
            given: types of the arguments.
            make: makes it of numba's function and these types; None where there cannot be one.
        """
        with self._lock:
            if given not in self._leaves:
                self._leaves[given] = make(self._compile(), given)
            return self._leaves[given]

    def _compile(self) -> Any:
        if self._dispatcher is None:
            import numba

            self._dispatcher = numba.njit(nogil=True)(self._function)
        return self._dispatcher


def make_variant(kind: str, function: Callable[..., Any], *, captured: bool = False) -> Variant:
    """Make a variant of a function.

    Raises:
        RequestError: there is no such kind, or what is to be captured runs on a CPU.
    """
    if kind not in KINDS:
        raise RequestError(f"there are no variants for {kind!r}{nearest(kind, tuple(KINDS))}")
    if captured and KINDS[kind] != "gpu":
        raise RequestError(f"a variant for {kind!r} runs on a CPU, where nothing is captured; leave captured out")
    calls: dict[str, Callable[..., Any]] = {"numba": CompiledBody, "numba.cuda": _in_turn}
    return Variant(kind, function, calls[kind](function) if kind in calls else function, captured)


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have the kernels that a function launches run in the turn of torch's stream; torch's CUDA is loaded on use."""

    def call(*arguments: object) -> object:
        from maniple.runtime.devices.cuda_device import in_turn

        return in_turn(function)(*arguments)

    return call
