"""Rules of elements: an optimizer's arithmetic, written once for the host and for CUDA.

Most optimizers change each element of a weight by what is known of that element alone. Such a rule is two functions
that numba compiles for either. What surrounds them is the same for all rules: ``block_cuda_kernels`` makes a kernel of
a rule for any number of blocks in any dtypes, and a loop of the host calls the same two for one block.

    prepare   once a step: the numbers of the step, in double precision  ->  COUNT numbers in the elements' own
    element   value, gradient, three states, those numbers               ->  value, three states

A state that an optimizer does not keep is given as anything, and what comes of it is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import numba
import numpy as np

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.training.clipping import Clipping, Floats, scale

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.block import Block
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []

COUNT = 12
"""How many numbers an element is given; a rule that needs fewer leaves the rest."""
MOST_STATES = 3
HELD, FLAG = 3, 6
"""Where settings begin to say which states are kept, and where what the rule's flag is."""
Numbers = Any
"""COUNT numbers, as a tuple."""


@final
class ElementRule(NamedTuple):
    """How an element is updated.

    Args:
        states: the names of the states that it knows, MOST_STATES at most.
        flag: the option that changes it, and no number; "" if there is none.
        prepare: ``prepare(row, settings, numbers)``; after ``begin``.
        element: ``element(value, gradient, a, b, c, numbers)``; the gradient is clipped.
        run: the loop of the host: ``run(value, gradient, a, b, c, row, squares, settings, numbers)``; what is not kept
            is an empty array. None: it is for CUDA alone.
    """

    states: tuple[str, ...]
    flag: str
    prepare: Callable[..., None]
    element: Callable[..., tuple[float, float, float, float]]
    run: Callable[..., None] | None = None

    def settings(self, optimizer: AbstractOptimizer) -> Floats:
        """What no step changes of an optimizer: ``Clipping.limits``, for each state whether it is kept, the flag."""
        held = [float(name in optimizer.state_names) for name in self.states]
        flag = float(bool(self.flag) and optimizer.option(self.flag))
        return np.asarray([*Clipping(optimizer).limits, *held, *[0.0] * (MOST_STATES - len(held)), flag])

    def places(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Where each of its states is among those that are kept, -1 of one that is not."""
        found = [names.index(name) if name in names else -1 for name in self.states]
        return (*found, *[-1] * (MOST_STATES - len(found)))

    def numbers(self, row: Floats, squares: Floats, settings: Floats) -> list[float]:
        """What elements are given in a step, in double precision, for torch's operations.

        Args:
            row: See ``AbstractOptimizer.bind_update``; on the host.
            squares: See ``begin``.
            settings: See ``settings``.
        """
        numbers = np.zeros(COUNT)
        first, then = cast("Any", begin), cast("Any", self.prepare)
        first.py_func(squares, settings, numbers)
        then.py_func(row, settings, numbers)
        return numbers.tolist()

    def bind(
        self, optimizer: AbstractOptimizer, block: Block, row: Tensor, squares: Tensor | None
    ) -> Callable[[], None]:
        """One pass over contiguous memory of the host.

        Args:
            optimizer: the optimizer.
            block: what it changes.
            row: See ``AbstractOptimizer.bind_update``.
            squares: See ``AbstractOptimizer.bind_update``.
        """
        if self.run is None:
            msg = "a rule for CUDA alone has no loop of the host"
            raise TypeError(msg)
        value, gradient, *states = [tensor.view(-1).numpy() for tensor in block.tensors]
        kept = [states[place] if place >= 0 else value[:0] for place in self.places(optimizer.state_names)]
        numbers = np.zeros(COUNT, dtype=value.dtype)
        read = row.numpy(), Clipping.of(squares), self.settings(optimizer)
        return compile_kernel(self.run, (value, gradient, *kept, *read, numbers))


@numba.njit(nogil=True)
def begin(squares: Floats, settings: Floats, numbers: Floats) -> None:
    """What is before every rule's ``prepare``: the factor (NaN of a NaN norm) and the bound of a gradient.

    Args:
        squares: the sum of squares of all gradients, or ``clipping.NO_NORM``.
        settings: see ``ElementRule.settings``.
        numbers: what elements are given; written.
    """
    numbers[0] = scale(squares[0], settings[0], settings[2])
    numbers[1] = settings[1]


@numba.njit(nogil=True)
def unpacked(numbers: Floats) -> Numbers:
    """The numbers as elements are given them."""
    n = numbers
    return n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11]
