"""The watch over bodies: what a body on a device does that stops the host or that a second run could not repeat.

A lane runs ahead of its device, and a captured segment is issued again without its bodies. Both hold for a body that
puts work into its stream and does nothing else:

    what is heard of                                       why it is wrong on a device
    a value is read: item, bool, float, tolist, numpy      the host waits for the stream
    a shape depends on values: nonzero, a mask as index    likewise
    host and device are copied between, and waited for     likewise
    values of the host are put on the device               likewise: they lie in pageable memory
    torch's own random numbers are drawn                   no plan could draw the same; a capture repeats them
    memory is taken from the device's own allocator        the device stops; a captured address would be another
    what was made is there when the body has ended         every run takes more
"""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch.overrides import TorchFunctionMode

from maniple.process.torch_internals import DispatchMode, Overload, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__: list[str] = []

_READS = {
    **{name: f".{name}()" for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__array__", "__dlpack__")},
    **{f"__{name}__": f"{name}()" for name in ("bool", "float", "int", "index", "complex")},
}
_MAKES = {name: f"torch.{name}()" for name in ("tensor", "as_tensor", "from_numpy", "asarray", "frombuffer")}
_OF_VALUES = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
_MASKS = frozenset((torch.bool, torch.uint8))

Call = tuple[object, ...]
"""A call below autograd as a captured segment would hold it: the operator, where tensors lie, and all else by value."""


@final
class BodyWatch:
    """Hears of what bodies do on this thread, inside.

    Args:
        ours: whether a tensor lies in the memory of a device.
        found: told what a body must not do; raises, or lets it go on.
    """

    def __init__(self, ours: Callable[[object], bool], found: Callable[[str], object]) -> None:
        self.found = found
        self.calls: list[Call] = []
        self.on_host = False
        """Whether what is made now lies in memory of the host, as its maker says."""
        self._above, self._below = _Above(self, ours), _Below(self)
        self._made: list[weakref.ref[object]] = []
        self._both = ExitStack()

    def __enter__(self) -> BodyWatch:
        """Begin to listen."""
        self._both = ExitStack()
        self._both.enter_context(self._below)
        self._both.enter_context(self._above)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Listen no more; what is left of what was made is found too, unless the body failed."""
        self._both.close()
        if kind is None and self._left():
            gc.collect()
            if left := self._left():
                self.found(f"it keeps {left} tensors that it made: every run takes more")

    def made(self, tensor: torch.Tensor) -> None:
        """Take note of memory that the body took."""
        self._made.append(weakref.ref(tensor.untyped_storage()))

    def _left(self) -> int:
        return sum(made() is not None for made in self._made)


@final
class _Above(TorchFunctionMode):
    """Hears of calls as bodies make them, under the names that their authors know."""

    def __init__(self, watch: BodyWatch, ours: Callable[[object], bool]) -> None:
        super().__init__()
        self._watch, self._ours = watch, ours

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Look, and make the call."""
        del types
        name, given = getattr(func, "__name__", ""), [*_flat((*args, *(kwargs or {}).values()))]
        near = [self._ours(tensor) for tensor in given]
        if any(near) and name in _READS:
            self._watch.found(f"{_READS[name]} brings values to the host, which waits for the stream")
        if not any(near) and name in _MAKES:
            self._watch.found(f"{_MAKES[name]} puts values of the host on the device, which waits for the stream")
        copies = name in {"copy_", "__setitem__"} and any(near) and not all(near)
        if copies and not (kwargs or {}).get("non_blocking", len(args) > 2 and args[2]):
            self._watch.found(f"{name} between host and device without non_blocking waits for the stream")
        before, watch = self._watch.on_host, self._watch
        watch.on_host = str((kwargs or {}).get("device", "")) == "cpu"
        try:
            return func(*args, **(kwargs or {}))
        finally:
            watch.on_host = before


@final
class _Below(DispatchMode):
    """Hears of calls below autograd, those that torch makes of others among them."""

    def __init__(self, watch: BodyWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(
        self, func: Overload, types: object, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        """Look, and make the call."""
        del types
        watch, name = self._watch, func.overloadpacket.__name__
        if name in {"_local_scalar_dense", "equal"}:
            watch.found(f"torch reads a value ({name}), for which the host waits for the stream")
        elif name in {"index", "index_put", "index_put_"}:
            if any(mask.dtype in _MASKS for mask in _indices(args)):
                watch.found("a mask as index gives a shape that depends on values: the host waits for the stream")
        elif not _OF_VALUES.isdisjoint(func.tags):
            watch.found(f"the shape that torch.{name} gives depends on values, for which the host waits for the stream")
        elif torch.Tag.nondeterministic_seeded in func.tags and not name.startswith("_scaled_dot_product_"):
            watch.found(f"torch.{name} draws of torch's own random numbers")
        given = [*_flat((*args, *(kwargs or {}).values()))]
        made = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        is_view = any(end.alias_info is not None for end in schema_of(func).returns)
        for tensor in _flat((made,)):
            if not (is_view or watch.on_host) and tensor.untyped_storage().data_ptr() not in known:
                watch.made(tensor)
        watch.calls.append(
            (str(func), *map(_shown, args), *((key, _shown(item)) for key, item in (kwargs or {}).items()))
        )
        return made


def _indices(args: Sequence[object]) -> list[torch.Tensor]:
    """The index of an indexing call, which is its second argument."""
    return [*_flat(cast("Iterable[object]", args[1]))] if len(args) > 1 and isinstance(args[1], list | tuple) else []


def _shown(item: object) -> object:
    """An argument of a call as a capture holds it: a tensor by how it lies, for where scratch lies may change."""
    if isinstance(item, torch.Tensor):
        return "tensor", tuple(item.shape), tuple(item.stride()), item.dtype
    if isinstance(item, list | tuple):
        return tuple(_shown(each) for each in item)
    return repr(item) if isinstance(item, int | float | bool | str | torch.dtype | None) else type(item).__name__


def _flat(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)
