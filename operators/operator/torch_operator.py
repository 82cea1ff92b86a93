"""Torch operators: a pure function of a tile's tensors, from which forward and backward follow.

What lives from forward to backward is regions, which the region system places, moves, frees and counts; so torch's
autograd keeps nothing between the two. It is asked once, when a task is bound, for what it would call on a tile: see
``maniple.operators.recording.tape``. Backward makes the calls that lead from what it reads to the gradients; those of
forward among them are made again. A body that cannot be recorded (it draws numbers, or is a user's Python) is computed
again whole, under autograd.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from maniple.operators.operator.operator import (
    AbstractOperator,
    BackwardReads,
    Cost,
    Keeping,
    Kernels,
    results_of,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext
    from maniple.operators.operator.random_stream import RandomStream
    from maniple.operators.rules.tile import Tile


class AbstractDrawn(ABC):
    """A tensor of random numbers that a tile reads."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the tile's part."""

    @abstractmethod
    def draw(self, stream: RandomStream, dtype: torch.dtype) -> Tensor:
        """The numbers of the step that runs, where the stream's clock lies."""


class TorchOperator(AbstractOperator):
    """An operator given by ``forward``.

    Its backward reads all operands. A class whose gradients do not depend on the operands' values (a sum, a copy, a
    permutation) says ``backward_reads = BackwardReads()``: the operands may be freed, and where their shapes
    matter there are zeros. ``flops_per_point`` is the arithmetic of one point of the iteration space: 2 where products
    are added up.
    """

    __slots__ = ()

    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None)
    flops_per_point: ClassVar[int] = 1

    @property
    def is_recordable(self) -> bool:
        """Whether it calls the same operators of torch whatever the values: no function of a user's promises that."""
        return True

    @property
    def is_compiled(self) -> bool:
        """Whether torch compiles what its bodies call on CPUs."""
        return False

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """For every saved region of the rule the operator of torch that gives its value in forward, and at what place.

        E.g. ``("native_layer_norm", 1)``; in the order of these calls.
        """
        return ()

    @property
    def keeps(self) -> bool:
        """Whether ``forward`` gives what is saved itself, where there is a kernel that gives it: a ``Keeping``."""
        return False

    @property
    def served(self) -> tuple[int, ...] | None:
        """The operands whose gradients read what is saved; None: all."""
        return None

    def draws(self, context: TileContext) -> tuple[AbstractDrawn, ...]:
        """The random numbers of a tile: ``forward`` is given them behind the operands, in each pass the same."""
        del context
        return ()

    def compute(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """The tile's results, of the random numbers of the step that runs."""
        drawn = self.bind_draws(context, operands)
        return results_of(self.forward(context, (*operands, *(draw() for draw in drawn))))

    @property
    def counts_storage(self) -> bool:
        """Whether it counts elements from the start of a storage: then it is given tensors with one of their own."""
        return False

    @abstractmethod
    def forward(
        self, context: TileContext, operands: tuple[Tensor | None, ...]
    ) -> Tensor | tuple[Tensor, ...] | Keeping:
        """The tile's results, of the shapes of its result rects; where the result folds, its contribution.

        It writes to none of the operands, and reads nothing but them, the context and the attributes. It is called
        once more to be recorded, and in every backward where that cannot be.

        Args:
            context: The tile: ``context.tile.range("s")`` is where it lies along a factor, ``context.extent("s")`` the
                whole extent of that.
            operands: One per operand, of the tile's operand rect; None where that is empty or absent.
        """

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: backward computes twice as much, after forward again where it must."""
        forward = self.flops_per_point * tile.volume
        again = self.random or not self.is_recordable
        return Cost(forward, (2 + again) * forward)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.operator.autograd_kernel import KERNELS

        return KERNELS

    def bind_draws(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Callable[[], Tensor], ...]:
        """What draws each of a tile's tensors of random numbers, when it is called.

        Raises:
            TypeError: the operator draws, and its context has no stream.
        """
        wanted = self.draws(context)
        if not wanted:
            return ()
        if context.stream is None:
            raise TypeError(f"{self.name}: needs a random stream")
        stream = context.stream
        dtype = next(tensor.dtype for tensor in operands if tensor is not None and tensor.is_floating_point())
        return tuple(partial(each.draw, stream, dtype) for each in wanted)
