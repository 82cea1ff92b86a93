"""What is used of numba that it does not document as its face: all of it is named here, and nowhere else.

Its face is `numba`, `numba.cuda`, `numba.types`, `numba.extending`; LLVM's is `llvmlite.ir`. What lies in `numba.core`
and `numba.np` is numba's own. Checked with numba 0.68, and with no other.

Imports numba, so it is imported where something is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numba.core.cgutils import alloca_once as alloca_once
from numba.core.cgutils import pack_array
from numba.core.cgutils import raw_memcpy as raw_memcpy
from numba.core.compiler_lock import global_compiler_lock as global_compiler_lock
from numba.core.types import unliteral

if TYPE_CHECKING:
    from numba import types
    from numba.core.dispatcher import Dispatcher as Dispatcher
    from numba.core.types import Type as Type

__all__: list[str] = []


def array_value(
    context: Any, builder: Any, kind: types.Array, data: Any, shape: Sequence[Any], strides: Sequence[Any], word: Any
) -> Any:
    """A value of an array type, of elements that lie where they lie and that it does not own.

    Args:
        context: The target, as an intrinsic is given it.
        builder: Writes the instructions.
        kind: The type.
        data: The place of the first element.
        shape: Extents.
        strides: In bytes.
        word: The type of these numbers.
    """
    from numba.np.arrayobj import make_array, populate_array

    array = make_array(kind)(context, builder)
    populate_array(
        array,
        data=data,
        shape=pack_array(builder, shape, word),
        strides=pack_array(builder, strides, word),
        itemsize=word(context.get_abi_sizeof(context.get_data_type(kind.dtype))),
        meminfo=None,
    )
    return array._getvalue()  # noqa: SLF001


def ignore_literals(dispatcher: Any) -> None:
    """Have a function compiled once for all numbers that its callers write down, and not once for each.

        step(x, 0), step(x, 1), step(x, n)      numba: three functions      so: one, for an integer

    LLVM knows the numbers again wherever it inlines the function.

    Args:
        dispatcher: what ``numba.njit`` gave, for a function that needs no constant, such as an index of a tuple.
    """
    find = dispatcher.get_call_template

    def find_for_any(arguments: Sequence[Type], keywords: dict[str, Type]) -> object:
        return find(tuple(map(unliteral, arguments)), {name: unliteral(kind) for name, kind in keywords.items()})

    dispatcher.get_call_template = find_for_any
