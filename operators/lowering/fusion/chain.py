"""Chains: operators that follow one another, element by element or row by row, as one operator.

    links         add(0, 1)    layer_norm(~0, 2, 3)         reads the first link's value
    operands      x, branch, weight, bias
    results       what others read: here both links' values
    saved         the means and deviations that layer_norm's backward reads

A value between two links that nobody else reads is no region. Where backward needs it, and it follows from one operand
of its size, backward computes it again; of what follows from several the chain gives it to itself, as a result: one
tensor is kept until then, and not several. What torch calls in either pass is compiled to one function
(``operators/recording/inductor_tape.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast, final

from maniple.operators.library.elementwise.aten import Aten, AtenCall, AtenDetached, AtenLinear
from maniple.operators.library.elementwise.pointwise import Add, ReLU
from maniple.operators.library.norms.normalization import LayerNorm
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Saved, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from maniple.operators.operator.operator import TileContext
    from maniple.operators.rules.tile import Tile

__all__: list[str] = []

LINKED = (Add, ReLU, Aten, AtenLinear, AtenDetached, LayerNorm)
"""What may be a link: operators that go over memory and compute little."""
_WORD = re.compile(r"[A-Za-z_]\w*")


@final
@dataclass(frozen=True, slots=True)
class Link:
    """An operator of a chain.

    Args:
        operator: the operator.
        reads: for every operand of it the chain's operand, by place; ``~n`` is what link n gives; None: absent.
    """

    operator: AbstractOperator
    reads: tuple[int | None, ...]


@final
@dataclass(frozen=True, slots=True)
class Chain(TorchOperator):
    """Operators as one.

    Args:
        links: in order; each gives one value.
        gives: the links whose values are the results.
        text: the factor rule.
        dtypes: of the results.
        kept: the saved regions.
        compiled: whether torch compiles what its bodies call.
    """

    links: tuple[Link, ...]
    gives: tuple[int, ...]
    text: str
    dtypes: tuple[str, ...]
    kept: tuple[Saved, ...] = ()
    compiled: bool = True

    name: ClassVar[str] = "chain"
    gradients_together: ClassVar[bool] = True

    @property
    def backward_reads(self) -> BackwardReads:  # type: ignore[override]  # the links decide it
        """See ``AbstractOperator``: a result where there is one, else the operands from which a value follows."""
        needs = needed(self.links)
        read = {end for value in needs for end in sources(self.links, self.gives, value)}
        results = sorted(self.gives.index(~end) for end in read if end < 0)
        operands = sorted(end for end in read if end >= 0)
        return BackwardReads(tuple(operands), tuple(results), tuple(range(len(self.kept))))

    @property
    def differentiable(self) -> tuple[int, ...]:  # type: ignore[override]  # the links decide it
        """See ``AbstractOperator``: the operands through which some link's gradient can leave."""
        found = set()
        for link in self.links:
            places = link.operator.differentiable
            for place, read in enumerate(link.reads):
                if read is not None and read >= 0 and (places is None or place in places):
                    found.add(read)
        return tuple(sorted(found))

    @property
    def detached(self) -> tuple[int, ...]:  # type: ignore[override]  # the links decide it
        """See ``AbstractOperator``."""
        return tuple(at for at, place in enumerate(self.gives) if self.links[place].operator.detached)

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``."""
        own = [link.operator.saves for link in self.links if isinstance(link.operator, TorchOperator)]
        return tuple(item for each in own for item in each)

    @property
    def is_compiled(self) -> bool:
        """See ``TorchOperator.is_compiled``."""
        return self.compiled

    def attributes(self) -> dict[str, object]:
        """See ``AbstractOperator.attributes``; no file brings a chain back, for lowering makes it."""
        links = tuple((link.operator, link.reads) for link in self.links)
        kept = tuple((item.name, item.dimensions, item.dtype) for item in self.kept)
        found = {"links": links, "gives": self.gives, "text": self.text, "dtypes": self.dtypes}
        return {**found, "kept": kept, "compiled": self.compiled}

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule of the links together; see ``AbstractOperator.rule``."""
        del shapes
        return Rule.parse(self.text, saved=self.kept)

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        del dtypes, where
        return self.dtypes

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: each link's, for each point of the chain's iteration space."""
        forward = len(self.links) * tile.volume
        return Cost(forward, 2 * forward)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """The links, one after the other; see ``TorchOperator.forward``."""
        values: list[Tensor] = []
        for link in self.links:
            given = tuple(None if r is None else operands[r] if r >= 0 else values[~r] for r in link.reads)
            value = _computed(link.operator, context, given)
            values.append(value.detach() if link.operator.detached else value)
        return tuple(values[place] for place in self.gives)


def needed(links: Sequence[Link]) -> list[int]:
    """The values that backward of some links needs: operands by place, and of link n what it gives as ``~n``."""
    found: dict[int, None] = {}
    for place, link in enumerate(links):
        if not link.operator.detached:
            reads = link.operator.backward_reads
            places = reads.operand_places(len(link.reads))
            # torch's backward of a norm is given the bias, though it does not look at it.
            values = link.reads if isinstance(link.operator, LayerNorm) else [link.reads[place] for place in places]
            found.update(dict.fromkeys([value for value in values if value is not None]))
            if reads.results:
                found[~place] = None
    return list(found)


def sources(links: Sequence[Link], gives: Sequence[int], value: int) -> set[int]:
    """The operands and results of a chain from which a value follows: itself where it is one of them."""
    if value >= 0 or ~value in gives:
        return {value}
    reads = [read for read in links[~value].reads if read is not None]
    return {end for read in reads for end in sources(links, gives, read)}


def _computed(operator: AbstractOperator, context: TileContext, given: Sequence[Tensor | None]) -> Tensor:
    """What a link gives."""
    import torch

    if isinstance(operator, TorchOperator):
        return cast("Tensor", operator.forward(replace(context, operator=operator), tuple(given)))
    tensors = [cast("Tensor", tensor) for tensor in given]
    return torch.add(*tensors) if isinstance(operator, Add) else torch.relu(*tensors)


def is_linked(operator: AbstractOperator, factors: Sequence[str]) -> bool:
    """Whether an operator may be a link: its call names neither extents nor shapes, and it draws nothing.

    Args:
        operator: the operator.
        factors: of its rule.
    """
    if not isinstance(operator, LINKED) or operator.random:
        return False
    if not isinstance(operator, AtenCall):
        return True
    words = set(_WORD.findall(operator.call))
    extents = words.intersection(factors) or any(word.startswith("shape") for word in words)
    return not (extents or operator.windows or operator.sizes or operator.counts_storage or operator.source)
