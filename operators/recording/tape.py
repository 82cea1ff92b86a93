"""Tapes: what torch calls for an operator's forward and backward pass, recorded once and cut to what a body needs.

`gelu` on a tile, recorded with its gradient, and the tape that backward runs:

    value  call                      needed for the gradient, of operand 0 and the result's gradient 1
    2      gelu(0)                   no: it is not run again
    3      gelu_backward(1, 0)       yes

What backward reads of forward is an operand, a result, or a value that forward saves; the cut stops there. A call of
forward that is left on backward's tape is computed again, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maniple.process.torch_internals import DispatchMode, Overload, memory_of, schema_of

__all__: list[str] = []

_LOOKS = frozenset(("_local_scalar_dense", "equal"))
"""What torch calls where a program asks for values."""
_ASKS = frozenset(
    (
        *("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "numel", "dim", "device"),
        *("layout", "is_contiguous", "is_same_size", "is_strides_like_format", "is_non_overlapping_and_dense"),
    )
)
"""What torch calls where a program asks of what shape a tensor is, and how it lies."""
_TELLS = "_scaled_dot_product_flash_attention"
"""What gives extents of what it read beside tensors."""
_OF_VALUES = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
Made = tuple[torch.Size, torch.dtype, tuple[int, ...]]
_SAME = frozenset((torch.ops.aten.detach.default, torch.ops.aten.alias.default))
"""What torch calls for another tensor of the same value, as autograd keeps one."""
_LEAVES = frozenset(("numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage"))
"""Methods by which values leave torch, of which a `Recorder` does not hear."""


class NotRecordable(Exception):  # noqa: N818  (it tells what a body is, and ends nothing)
    """A body does something whose next run may be another: its calls are no tape."""


@final
@dataclass(frozen=True, slots=True)
class Value:
    """A tensor on a tape, by its number."""

    number: int


@final
@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator of torch.

    Args:
        function: the operator.
        args: by position, with a `Value` for each tensor.
        named: by name.
        results: the numbers of what it gives; None for what is no tensor.
        several: whether it gives a list or tuple.
        is_view: whether it computes nothing.
        changes: the value whose memory it writes to; what is there then is another value.
        made: shape, dtype and stride of each result; None for what is no tensor.
    """

    function: Overload
    args: tuple[object, ...]
    named: Mapping[str, object]
    results: tuple[int | None, ...]
    several: bool
    is_view: bool
    changes: int | None = None
    made: tuple[Made | None, ...] = ()

    @property
    def name(self) -> str:
        """The operator's, without its signature: ``"gelu"``."""
        return str(self.function.overloadpacket.__name__)

    def reads(self) -> Iterator[int]:
        """The values that it reads."""
        yield from _numbers((self.args, list(self.named.values())))


@final
class Recorder(DispatchMode):
    """Records the calls below autograd.

    Args:
        given: the tensors that there are before; they get the first numbers.
    """

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        # Held, so that no two tensors have one id.
        self._held: list[Tensor] = list(given)
        self._same: list[Tensor] = []
        self._given = len(given)
        self._number = {id(tensor): number for number, tensor in enumerate(given)}

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor.

        Raises:
            NotRecordable: no call made it, and it was not given.
        """
        found = self._number.get(id(tensor))
        if found is None:
            raise NotRecordable("it reads a tensor that is no operand")
        return found

    def layout(self, number: int) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and the dtype of a value."""
        return tuple(self._held[number].shape), self._held[number].dtype

    def __torch_dispatch__(
        self, func: Overload, types: object, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        """Make a call, and note it."""
        del types
        schema = schema_of(func)
        if func.overloadpacket.__name__ in _LOOKS or not _OF_VALUES.isdisjoint(func.tags):
            raise NotRecordable("it looks at values")
        changed = self._changed(func, args) if schema.is_mutable else None
        # torch's attention draws where weights are dropped: here operators drop theirs themselves.
        attends = func.overloadpacket.__name__.startswith("_scaled_dot_product_")
        if torch.Tag.nondeterministic_seeded in func.tags and not attends:
            raise NotRecordable(f"{func} draws of torch's own random numbers")
        noted = (
            tuple(self._note(item) for item in args),
            {key: self._note(item) for key, item in (kwargs or {}).items()},
        )
        found = func(*args, **(kwargs or {}))
        several = isinstance(found, list | tuple)
        made = tuple(cast("Sequence[object]", found)) if several else (found,)
        name = func.overloadpacket.__name__
        if any(item is not None and not isinstance(item, Tensor) for item in made) and name != _TELLS:
            if name not in _ASKS:
                raise NotRecordable(f"{func} gives what is no tensor")
            return found
        if changed is not None:
            number = len(self._held)
            self._number[id(found)] = number
            self._held.append(cast("Tensor", found))
            layouts = _layouts(made)
            self.calls.append(
                Call(func, *noted, (number,), several=False, is_view=False, changes=changed, made=layouts)
            )
            return found
        is_view = any(end.alias_info is not None for end in schema.returns) or self._lies_in(made, *noted)
        if all(item is None or id(item) in self._number for item in made):
            return found
        if func in _SAME:
            self._number[id(found)] = self._number[id(args[0])]
            self._same.append(cast("Tensor", found))
            return found
        numbers = tuple(self._add(item) for item in made)
        self.calls.append(Call(func, *noted, numbers, several, is_view, made=_layouts(made)))
        return found

    def _lies_in(self, made: Sequence[object], args: object, named: Mapping[str, object]) -> bool:
        """Whether a call gave what lies in memory that it reads: not all schemas say so (`_unsafe_view`)."""
        read = {memory_of(self._held[number]) for number in _numbers((args, list(named.values())))}
        return any(isinstance(item, Tensor) and memory_of(item) in read for item in made)

    def _changed(self, func: Overload, args: Sequence[object]) -> int:
        """The number of the value that a call writes over: one that a call made, in memory of which there is no view.

        Raises:
            NotRecordable: it writes to another.
        """
        target = args[0] if args else None
        name = func.overloadpacket.__name__
        if not name.endswith("_") or not isinstance(target, Tensor) or self.number(target) < self._given:
            raise NotRecordable(f"{func} changes a tensor")
        memory = memory_of(target)
        if any(each is not target and memory_of(each) == memory for each in (*self._held, *self._same)):
            raise NotRecordable(f"{func} changes a tensor of which there is a view")
        return self.number(target)

    def _note(self, item: object) -> object:
        if isinstance(item, Tensor):
            return Value(self.number(item))
        if isinstance(item, list | tuple):
            return type(item)(self._note(each) for each in item)
        return item

    def _add(self, item: object) -> int | None:
        if not isinstance(item, Tensor):
            return None
        if id(item) not in self._number:
            self._number[id(item)] = len(self._held)
            self._held.append(item)
        return self._number[id(item)]


@final
class Watch(TorchFunctionMode):
    """Refuses that values leave torch, beside a `Recorder`."""

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: Sequence[object] = (), kwargs: Any = None
    ) -> object:
        """Make a call."""
        del types
        if getattr(func, "__name__", "") in _LEAVES:
            raise NotRecordable("it looks at values")
        return func(*args, **(kwargs or {}))


def cut(calls: Sequence[Call], wanted: Iterable[int], given: Iterable[int]) -> list[Call]:
    """Give the calls, in order, without which the wanted values do not follow from the given ones."""
    known, needed = set(given), set(wanted)
    needed -= known
    kept: list[Call] = []
    for call in reversed(calls):
        if needed.intersection(call.results):
            kept.append(call)
            needed.difference_update(number for number in call.results if number is not None)
            needed.update(number for number in call.reads() if number not in known)
    return kept[::-1]


def reads_of(calls: Sequence[Call], wanted: Sequence[int]) -> set[int]:
    """The values that calls read, or give on, and do not make."""
    made = {number for call in calls for number in call.results}
    return ({number for call in calls for number in call.reads()} | set(wanted)) - made


def source_of(item: object, name: str, names: dict[str, object]) -> str:
    """How a call's argument is written: a value by its number, what holds values piece by piece, else by a name."""
    if isinstance(item, Value):
        return f"v{item.number}"
    if isinstance(item, list | tuple) and any(True for _ in _numbers(item)):
        return f"[{', '.join(source_of(each, f'{name}_{at}', names) for at, each in enumerate(item))}]"
    names[name] = item
    return name


def _layouts(made: Sequence[object]) -> tuple[Made | None, ...]:
    return tuple((item.shape, item.dtype, item.stride()) if isinstance(item, Tensor) else None for item in made)


def _numbers(item: Any) -> Iterator[int]:
    if isinstance(item, Value):
        yield item.number
    elif isinstance(item, list | tuple):
        for each in item:
            yield from _numbers(each)
