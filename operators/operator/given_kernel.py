"""Kernels that a user gives: functions that write a tile's results or gradients in place of autograd.

    kind          processor  is given                                         runs
    cpu           CPU        torch tensors                                    as it is
    numba         CPU        numpy arrays                                     compiled, without the interpreter lock
    cuda          GPU        torch tensors in the GPU's memory                as it is
    numba.cuda    GPU        numba device arrays; it launches its kernels     in the turn of torch's stream

A forward body takes the operands and then the results; a backward body the results' gradients, the operands and then
the operands' gradients. Each writes the last ones, whole. None stands for an operand that is absent, and for a gradient
that there is not or that nobody wants.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, final

from maniple.process.error import RequestError
from maniple.runtime.program.variant import Variant, make_variant

if TYPE_CHECKING:
    import torch

    from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext

__all__: list[str] = []

Body = Callable[..., object]
Tensors = tuple["torch.Tensor | None", ...]


@final
@dataclass(frozen=True, slots=True)
class GivenKernel:
    """A body of a user's, for one kind of processor.

    Args:
        variant: what it is.
    """

    variant: Variant

    @staticmethod
    def made(kind: str, function: Body, wanted: str, names: tuple[str, ...]) -> GivenKernel:
        """The kernel of a body.

        Args:
            kind: ``cpu``, ``numba``, ``cuda`` or ``numba.cuda``.
            function: the body; one that ``numba.njit`` was given already is as good.
            wanted: how messages say what it takes by position.
            names: what it takes by position: so many.

        Raises:
            RequestError: there is no such kind, or the body does not take so many.
        """
        function = getattr(function, "py_func", function)
        variant = make_variant(kind, function)
        try:
            inspect.signature(function).bind_partial(*names)
        except TypeError as error:
            shown = ", ".join(inspect.signature(function).parameters)
            raise RequestError(f"expected a body that takes {wanted}: {', '.join(names)}; got ({shown})") from error
        return GivenKernel(variant)

    def bound(self, tensors: Tensors, arguments: Mapping[str, object], context: TileContext) -> Callable[[], object]:
        """The body with its tensors, compiled where it has to be.

        Args:
            tensors: what it takes by position; they stay where they are.
            arguments: the operator's keyword arguments.
            context: the tile, for a body that has a parameter ``tile``.
        """
        function, kind = self.variant.function, self.variant.kind
        signature = inspect.signature(function)
        extra = {"tile": context} if "tile" in signature.parameters else {}
        arrays = tuple(None if tensor is None else self.variant.array(tensor) for tensor in tensors)
        given = signature.bind(*arrays, **arguments, **extra)
        given.apply_defaults()
        if kind == "numba":
            from maniple.operators.operator.compiled_kernel import compile_kernel

            return compile_kernel(_dispatcher(function), (*given.args, *given.kwargs.values()))
        return lambda: self.variant.call(*given.args, **given.kwargs)


@final
@dataclass(frozen=True, slots=True)
class ForwardKernel:
    """Binds a forward body; see ``maniple.operators.operator.operator.BindForward``.

    Args:
        kernel: of the body.
        arguments: the operator's keyword arguments.
    """

    kernel: GivenKernel
    arguments: Mapping[str, object]

    def __call__(self, context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
        """The body with the tile's operands and results."""
        body = self.kernel.bound((*tensors.operands, *tensors.results), self.arguments, context)

        def run() -> None:
            body()

        return run


@final
@dataclass(frozen=True, slots=True)
class BackwardKernel:
    """Binds a backward body; see ``maniple.operators.operator.operator.BindBackward``.

    Args:
        kernel: of the body.
        arguments: the operator's keyword arguments.
    """

    kernel: GivenKernel
    arguments: Mapping[str, object]

    def __call__(self, context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
        """The body with the tile's operands and gradients.

        Rows that a window steps over are in a gradient and not in its operand: the body is not shown them, and they are
        zero.
        """
        from maniple.operators.operator.autograd_kernel import gradient_targets

        operands, operand_gradients = tensors.operands, tensors.operand_gradients
        targets = gradient_targets(context, operands, operand_gradients)
        stepped_over = [
            whole
            for whole, target in zip(operand_gradients, targets, strict=True)
            if whole is not None and (target is None or target.shape != whole.shape)
        ]
        body = self.kernel.bound((*tensors.result_gradients, *operands, *targets), self.arguments, context)

        def run() -> None:
            for whole in stepped_over:
                whole.zero_()
            body()

        return run


@cache
def _dispatcher(function: Body) -> Any:
    """A body for numba, one for all tiles."""
    import numba

    return numba.njit(nogil=True)(function)
