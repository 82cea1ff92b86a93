"""Operators: what a node of a graph computes, said once for shapes, splits, costs and kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal, Self, final

from maniple.operators.rules.rule import Rule, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.random_stream import RandomStream
    from maniple.operators.rules.view import Rearrangement
    from maniple.runtime.storage.scratchpad import ScratchTurn

FLOAT_DTYPES = ("float32", "float64")
"""What parameters and the operands of kernels may be."""
HALF_DTYPES = ("bfloat16", "float16")
"""What values may be beside that under a plan of such a precision; see ``mixed_precision``."""
REAL_DTYPES = FLOAT_DTYPES + HALF_DTYPES
"""The dtypes of values that have gradients."""


@final
@dataclass(frozen=True, slots=True)
class Initial:
    """The distribution of a parameter's or buffer's initial values.

    Args:
        kind: ``"uniform"`` in (-scale, scale), ``"normal"`` of mean 0 and deviation ``scale``, or ``"constant"``.
        scale: The bound, the deviation, or the value itself.
    """

    kind: Literal["uniform", "normal", "constant"]
    scale: float

    @staticmethod
    def fan_in(inputs: int) -> Initial:
        """torch.nn's default for linear layers and convolutions, of so many inputs for one output element."""
        return Initial("uniform", 1.0 / sqrt(inputs))


@final
@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter that an operator brings along.

    Args:
        name: ``"weight"`` or ``"bias"``.
        shape: As torch.nn has it.
        initial: Its initial values.
    """

    name: str
    shape: Shape
    initial: Initial


@final
@dataclass(frozen=True, slots=True)
class BackwardReads:
    """What an operator's backward reads besides the results' gradients.

    Args:
        operands: The operands, by place; None: all of them.
        results: The results, by place.
        saved: The saved regions, by place.
    """

    operands: tuple[int, ...] | None = ()
    results: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()

    def operand_places(self, count: int) -> tuple[int, ...]:
        """The places of the operands read, of ``count`` in all."""
        return tuple(range(count)) if self.operands is None else tuple(i for i in self.operands if i < count)


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """An amount (floating-point operations, or bytes) of forward and of backward of one tile."""

    forward: int
    backward: int


@final
@dataclass(frozen=True, slots=True)
class TileContext:
    """What a kernel is bound to besides its tensors.

    Args:
        tile: The tile.
        extents: Every factor's name and whole extent, in rule order.
        operator: The operator, for its attributes.
        cores: The cores that the processor owns.
        training: Whether a training step runs, and no evaluation.
        stream: The random numbers of an operator that is ``random``; else None.
        scratch: What the body has, in its turn, of memory that those of the processor share; None: it takes its own.
    """

    tile: Tile
    extents: tuple[tuple[str, int], ...]
    operator: AbstractOperator
    cores: int = 1
    training: bool = True
    stream: RandomStream | None = None
    scratch: ScratchTurn | None = None

    def extent(self, factor: str) -> int:
        """The whole extent of a factor."""
        return dict(self.extents)[factor]


@final
@dataclass(frozen=True, slots=True)
class ForwardTensors:
    """What a forward kernel works on. The tensors stay where they are between calls; they may be strided views.

    Args:
        operands: One per operand, of the tile's operand rect; None where that is None.
        results: One per result, of its rect: this tile's contribution, written entirely.
        saved: One per saved region, written entirely.
    """

    operands: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]
    saved: tuple[Tensor, ...] = ()

    def operand(self, place: int) -> Tensor:
        """An operand that the kernel cannot do without."""
        return _there("operand", place, self.operands)


@final
@dataclass(frozen=True, slots=True)
class BackwardTensors:
    """What a backward kernel works on.

    Args:
        result_gradients: One per result, of its rect (1 for the loss itself); None where nobody uses the result, or it
            has no gradient.
        operands: One per operand; None where ``backward_reads`` does not name it or the tile does not use it.
        results: One per result; None where ``backward_reads`` does not name it.
        saved: One per saved region.
        operand_gradients: Written entirely: one per operand, of the tile's gradient rect (its operand rect is accepted
            as well); None where it is not wanted.
        adds: The operands, by place, whose gradient is not written but added to what is there; of those alone to which
            the kernels say that they add (``Kernels.accumulates``).
    """

    result_gradients: tuple[Tensor | None, ...]
    operands: tuple[Tensor | None, ...]
    results: tuple[Tensor | None, ...]
    saved: tuple[Tensor, ...]
    operand_gradients: tuple[Tensor | None, ...]
    adds: frozenset[int] = frozenset()

    def gradient(self, place: int = 0) -> Tensor:
        """A result's gradient that the kernel cannot do without."""
        return _there("gradient of result", place, self.result_gradients)

    def operand(self, place: int) -> Tensor:
        """An operand that the kernel cannot do without."""
        return _there("operand", place, self.operands)

    def result(self, place: int = 0) -> Tensor:
        """A result that the kernel cannot do without."""
        return _there("result", place, self.results)

    def target(self, place: int = 0) -> Tensor:
        """Where an operand's gradient goes, of a kernel that computes no other."""
        return _there("gradient of operand", place, self.operand_gradients)


def _there(what: str, place: int, tensors: tuple[Tensor | None, ...]) -> Tensor:
    found = tensors[place]
    if found is None:
        raise TypeError(f"the kernel needs {what} {place}, and is given none")
    return found


@final
@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of an operator: each is bound to a tile and its tensors once, and then called again and again.

    Args:
        bind_forward: Gives a function that computes the tile. It is called with grad mode disabled.
        bind_backward: Gives a function that computes the tile's contributions to the operands' gradients.
        accumulates: The operands, by place, to whose gradients backward can also add, None for all. For others the
            runtime gives it scratch, and adds what it leaves there.
    """

    bind_forward: Callable[[TileContext, ForwardTensors], Callable[[], None]]
    bind_backward: Callable[[TileContext, BackwardTensors], Callable[[], None]]
    accumulates: tuple[int, ...] | None = ()


@final
@dataclass(frozen=True, slots=True)
class Keeping:
    """What the forward of a torch operator gives that says itself which values backward reads.

    Args:
        results: The results.
        saved: One per saved region of the rule.
    """

    results: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]


def results_of(found: Tensor | tuple[Tensor, ...] | Keeping) -> tuple[Tensor, ...]:
    """The results among what a forward gave."""
    if isinstance(found, Keeping):
        return found.results
    return found if isinstance(found, tuple) else (found,)


class AbstractOperator(ABC):
    """An operator: a frozen value of attributes.

    Subclasses are final frozen dataclasses whose fields are the attributes, named as torch.nn names them: numbers,
    strings, None, and tuples of these.

    A class says beside its name

    - ``backward_reads``: what its backward reads besides the results' gradients;
    - ``differentiable``: the places of the operands that have gradients, None for all; an operand that is no float has
      none in any case;
    - ``detached``: the places of float results through which no gradient flows;
    - ``passes``: the places of the operands whose gradients are the gradient of result 0, as it is;
    - ``random``: whether it draws random numbers; its context then has a stream;
    - ``gradients_together``: whether the gradients of its inputs and of its parameters come of one computation: they
      are then computed in one task, which makes it once.
    """

    __slots__ = ()

    name: ClassVar[str]
    backward_reads: ClassVar[BackwardReads]
    differentiable: ClassVar[tuple[int, ...] | None] = None
    detached: ClassVar[tuple[int, ...]] = ()
    passes: ClassVar[tuple[int, ...]] = ()
    random: ClassVar[bool] = False
    gradients_together: ClassVar[bool] = False

    @abstractmethod
    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The factor rule for operands of those shapes (None: absent).

        Raises:
            RequestError: No rule fits operands of those ranks.
        """

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """The parameters that it brings along, in torch.nn's order; they are the last operands."""
        return ()

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """The results' dtypes; by default one result of the operands' one float dtype.

        Args:
            dtypes: Of every operand; None: absent.
            where: Whom messages name.

        Raises:
            RequestError: An operand's dtype does not fit.
        """
        return (float_dtype(dtypes, where),)

    @abstractmethod
    def flops(self, tile: Tile) -> Cost:
        """Floating-point operations of one tile."""

    @abstractmethod
    def kernels(self) -> Kernels:
        """The kernels; imports torch."""

    def gpu_kernels(self) -> Kernels:
        """The kernels for tensors in a GPU's memory, where an operator has others for these."""
        return self.kernels()

    def variant(self, tensors: Iterable[Tensor | None]) -> Kernels:
        """The kernels for tensors that lie where these do."""
        near = any(tensor is not None and tensor.is_cuda for tensor in tensors)
        return self.gpu_kernels() if near else self.kernels()

    def under(self, semantics: Mapping[str, str]) -> AbstractOperator:
        """The operator that runs instead under a plan that changes results by intent; itself where nothing changes.

        Args:
            semantics: Of the plan.
        """
        del semantics
        return self

    @property
    def multiplies_in(self) -> str:
        """The type in which a GPU multiplies, where it is not that of the values; "": it is."""
        return ""

    def rows_named(self, place: int) -> int:
        """How many rows an operand's whole numbers name; 1 where the operator does not know, so that all may be 0."""
        del place
        return 1

    def reads_as(self, place: int) -> str:
        """The half that it rounds an operand's values to as it reads them; "": it reads them as they come."""
        del place
        return ""

    def rearrangement(self, operand: Shape, result: Shape) -> Rearrangement | None:
        """How its result lies in its only operand, if it computes nothing: then it may need no task.

        Args:
            operand: The operand's shape.
            result: The result's.
        """
        del operand, result
        return None

    def exchanges(self) -> tuple[str, ...]:
        """The factors whose split needs an exchange inside the operator: ``compose`` then takes its place."""
        return ()

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """Write the operator as primitives with regions between them; see ``maniple.operators.lowering.composite``.

        Args:
            composition: Takes the primitives.
            operands: The operands.

        Returns:
            The results.
        """
        del composition, operands
        raise NotImplementedError(f"{self.name} exchanges nothing")

    @property
    def opaque_source(self) -> str:
        """What an operator without a rule of its own stands for, with file and line; empty for all others."""
        return ""

    def attributes(self) -> dict[str, object]:
        """The attributes as a graph file writes them: the fields of the dataclass."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def of_attributes(cls, attributes: Mapping[str, object]) -> Self:
        """The operator of those attributes, as ``attributes`` gave them.

        Raises:
            RequestError: The attributes are not an operator's.
        """
        return cls(**attributes)

    def with_batch(self, before: int, after: int) -> Self:
        """The operator for another number of samples; itself unless an attribute counts samples.

        Args:
            before: The samples that its attributes are for.
            after: The samples wanted.
        """
        del before, after
        return self


def float_dtype(dtypes: tuple[str | None, ...], where: str) -> str:
    """The one float dtype that all present operands have.

    Raises:
        RequestError: An operand is no float, or two operands differ.
    """
    present = [dtype for dtype in dtypes if dtype is not None]
    for dtype in present:
        if dtype not in FLOAT_DTYPES:
            raise RequestError(f"{where}: expected operands of dtype {' or '.join(FLOAT_DTYPES)}, got {dtype}")
        if dtype != present[0]:
            raise RequestError(f"{where}: expected operands of one dtype, got {present[0]} and {dtype}")
    return present[0]
