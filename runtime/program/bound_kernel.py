"""Bound kernels: compiled bodies bound to arguments, as functions of two addresses that compiled code can call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from llvmlite import ir
from numba import cfunc, typeof, types
from numba.extending import intrinsic

from maniple.process.compilation.numba_internals import array_value

if TYPE_CHECKING:
    from maniple.runtime.program.variant import CompiledBody

__all__: list[str] = []

_INT64 = ir.IntType(64)
Value = Callable[..., Any]


class Hole(NamedTuple):
    """An argument by value: a number that every run is given anew, at an offset from where the run's values lie.

    Args:
        offset: in bytes.
        like: a number of its type.
    """

    offset: int
    like: float


class BoundKernel(NamedTuple):
    """A compiled body with its arguments.

    Args:
        function: address of `int64 (int64 block, int64 values)`, which gives 0, or 1 where the body raised.
        block: the words of what it is given first: the places of arrays, the colour, and where its values lie.
    """

    function: int
    block: list[int]


def bind_kernel(body: CompiledBody, arguments: Sequence[object]) -> BoundKernel | None:
    """Bind a compiled body; None where it returns something, or is given what is no colour or array.

    Args:
        body: the body.
        arguments: as it is called with, a `Hole` where a value goes.
    """
    kinds: list[types.Type] = []
    words: list[int] = []
    for argument in arguments:
        if isinstance(argument, Hole):
            kinds.append(typeof(argument.like))
            words.append(argument.offset)
        elif isinstance(argument, np.ndarray):
            kinds.append(typeof(argument))
            words += (int(argument.ctypes.data), *argument.shape, *argument.strides)
        elif isinstance(argument, tuple) and argument and all(type(index) is int for index in argument):
            kinds.append(typeof(argument))
            words += argument
        else:
            return None
    function = body.leaf(tuple(kinds), _compile)
    return None if function is None else BoundKernel(function.address, words)


def _compile(dispatcher: Any, given: tuple[types.Type, ...]) -> Any:
    """Compile the function of two addresses that calls a body on arguments of some types."""
    dispatcher.compile(given)
    if dispatcher.overloads[given].signature.return_type != types.none:
        return None
    load = _loader(given)

    # What a body raised cannot leave a C function; whoever called it calls the body again to see.
    def call(block: int, values: int) -> int:
        try:
            dispatcher(*load(block, values))
        except Exception:  # noqa: BLE001  (all that compiled code can catch)
            return 1
        return 0

    return cfunc(types.int64(types.int64, types.int64))(call)


def _loader(given: tuple[types.Type, ...]) -> Value:
    """Make what loads arguments of some types from a block and the values of a run."""

    def loading(typing: object, block: object, values: object) -> tuple[object, Value]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words = builder.inttoptr(arguments[0], _INT64.as_pointer())
            loaded, at = [], 0
            for kind in given:
                if isinstance(kind, types.Array):
                    loaded.append(_array(context, builder, kind, _words(builder, words, at, 1 + 2 * kind.ndim)))
                    at += 1 + 2 * kind.ndim
                elif isinstance(kind, types.BaseTuple):
                    loaded.append(context.make_tuple(builder, kind, _words(builder, words, at, len(kind))))
                    at += len(kind)
                else:
                    (offset,) = _words(builder, words, at, 1)
                    loaded.append(_number(builder, kind, builder.add(arguments[1], offset)))
                    at += 1
            return context.make_tuple(builder, signature.return_type, loaded)

        together: Any = types.BaseTuple.from_types(given)
        return together(types.int64, types.int64), generate

    return cast("Value", intrinsic(loading))


def _words(builder: Any, words: Any, start: int, count: int) -> list[Any]:
    return [builder.load(builder.gep(words, [_INT64(start + number)])) for number in range(count)]


def _number(builder: Any, kind: types.Type, address: Any) -> Any:
    if kind == types.float64:
        return builder.load(builder.inttoptr(address, ir.DoubleType().as_pointer()))
    whole = builder.load(builder.inttoptr(address, _INT64.as_pointer()))
    return builder.icmp_signed("!=", whole, _INT64(0)) if kind == types.boolean else whole


def _array(context: Any, builder: Any, kind: types.Array, words: list[Any]) -> Any:
    data = builder.inttoptr(words[0], context.get_data_type(kind.dtype).as_pointer())
    return array_value(context, builder, kind, data, words[1 : 1 + kind.ndim], words[1 + kind.ndim :], _INT64)
