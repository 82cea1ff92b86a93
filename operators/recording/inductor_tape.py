"""Inductor tapes: the calls of a tape as one function that torch's inductor compiles.

    tape                                         compiled, for tensors that lie as these do
    2  add(0, 1)                                 one loop for the sum and its rows' means and deviations, and one that
    3  native_layer_norm(2, ...)                 normalizes; both results are written where they belong

A function is compiled as a body is bound, before any lane runs, once in a process for all tapes that make the same
calls of tensors of the same shapes, strides and types. It is called without a guard: what it reads and writes stays
where it is. Tapes that change a tensor in place, that draw, or that have nothing to compute are bound as they are.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from maniple.operators.recording.compiled_tape import Written, bind_calls
from maniple.operators.recording.tape import Call, Value
from maniple.process import torch_internals

__all__: list[str] = []

_COMPILED: dict[Hashable, Callable[..., object]] = {}
"""What was compiled in this process."""
_COMPILING = threading.Lock()


def bind_compiled(
    calls: Sequence[Call],
    given: Mapping[int, Callable[[], Tensor] | Tensor],
    written: Sequence[Written],
    cores: int,
) -> Callable[[], None]:
    """The same as ``bind_calls``, compiled.

    Args:
        calls: in order.
        given: the values that there are before, by number.
        written: the values wanted.
        cores: that the function may use.
    """
    tensors = {number: value for number, value in given.items() if isinstance(value, Tensor)}
    targets = [item.target for item in written]
    every = [*tensors.values(), *targets]
    plain = len(tensors) == len(given) and all(call.changes is None for call in calls)
    computes = any(not call.is_view for call in calls)
    if not (plain and computes and all(tensor.numel() and not tensor.is_cuda for tensor in every)):
        return bind_calls(calls, given, written)
    key = _key(calls, tensors, written), tuple(map(_layout, every)), cores
    with _COMPILING:
        if key not in _COMPILED:
            module = _module(calls, list(tensors), written)
            examples = [torch.empty_strided(*_layout(tensor)[:2], dtype=tensor.dtype).zero_() for tensor in every]
            _COMPILED[key] = torch_internals.compiled_by_inductor(module, examples, cores)
        function = _COMPILED[key]

    def run() -> None:
        function(*every)

    return run


def _layout(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _key(calls: Sequence[Call], given: Mapping[int, Tensor], written: Sequence[Written]) -> Hashable:
    """What a function is, apart from how its tensors lie: values are numbered as they come."""
    numbers: dict[int, int] = {}

    def of(number: int | None) -> int | None:
        return None if number is None else numbers.setdefault(number, len(numbers))

    def text(item: object) -> object:
        if isinstance(item, Value):
            return "v", of(item.number)
        if isinstance(item, list | tuple):
            return tuple([text(each) for each in item])
        return repr(item)

    first = tuple([of(number) for number in given])
    made = tuple(
        [
            (
                str(call.function),
                text(call.args),
                tuple([(name, text(item)) for name, item in call.named.items()]),
                tuple([of(number) for number in call.results]),
            )
            for call in calls
        ]
    )
    return first, made, tuple([(of(item.number), item.adds) for item in written])


def _module(calls: Sequence[Call], given: Sequence[int], written: Sequence[Written]) -> fx.GraphModule:
    """The calls as a graph of torch's, whose last operands are what is written."""
    graph = fx.Graph()
    values: dict[int, fx.Node] = {number: graph.placeholder(f"v{number}") for number in given}
    targets = [graph.placeholder(f"t{place}") for place in range(len(written))]

    def of(item: object) -> Any:
        if isinstance(item, Value):
            return values[item.number]
        if isinstance(item, list | tuple):
            return type(item)(of(each) for each in item)
        return item

    for call in calls:
        named = {name: of(item) for name, item in call.named.items()}
        made = graph.call_function(call.function, tuple(map(of, call.args)), named)
        for place, number in enumerate(call.results):
            if number is not None and number not in values:
                one = graph.call_function(operator.getitem, (made, place)) if call.several else made
                values[number] = one
    for item, target in zip(written, targets, strict=True):
        put = torch.ops.aten.add_.Tensor if item.adds else torch.ops.aten.copy_.default
        graph.call_function(put, (target, values[item.number]))
    graph.output(())
    return fx.GraphModule(torch.nn.Module(), graph)
