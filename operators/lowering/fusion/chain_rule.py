"""The factor rule of several operators as one: factors that meet in a tensor are one factor.

    add            b s c, b s c -> b s c
    layer_norm     b s c, [c], [c] -> b s c           c is exchanged where it is split
    together       b s c!, b s c!, c!, c! -> b s c!, b s c!

What some operator keeps whole, exchanges where it is split, or adds up along, the chain keeps whole. Operators with
windows, compounds or picked rows have no such rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.operators.rules.rule import Saved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.rules.pattern import Pattern

__all__: list[str] = []

Factor = tuple[int, str]
"""The place of an operator among those of the chain, and one of its factors."""


@final
@dataclass(frozen=True, slots=True)
class ChainRule:
    """A rule, and what became of its operators' factors.

    Args:
        text: the rule.
        saved: what its operators save.
        names: by operator and factor, the factor of the chain.
    """

    text: str
    saved: tuple[Saved, ...]
    names: Mapping[Factor, str]


def chain_rule(
    graph: Graph, nodes: Sequence[Node], operands: Sequence[int], results: Sequence[int]
) -> ChainRule | None:
    """The rule of some operators as one; None where they have none.

    Args:
        graph: their graph.
        nodes: the operators, in the graph's order.
        operands: the tensors that they read of others.
        results: the tensors that they give to others.
    """
    classes, whole = _Classes(), set[Factor]()
    seen: dict[int, tuple[int, Pattern]] = {}
    for place, node in enumerate(nodes):
        bound = graph.bound(node)
        rule, exchanged = bound.rule, node.operator.exchanges()
        if rule.windows or rule.sizes:
            return None
        factors = [(place, factor.name) for factor in bound.factors]
        whole |= {(place, f.name) for f in rule.factors if f.whole or f.reduction or f.name in exchanged}
        patterns = zip((*rule.operands, *rule.results), (*node.operands, *node.results), strict=True)
        for pattern, tensor in patterns:
            if tensor is not None and not _meet(classes, seen.setdefault(tensor, (place, pattern)), (place, pattern)):
                return None
        if len({classes.find(factor) for factor in factors}) < len(factors):
            return None
    kept = {classes.find(factor) for factor in whole}
    named: dict[Factor, str] = {}
    for tensor in (*results, *operands):
        place, pattern = seen[tensor]
        for factor in pattern.factors:
            named.setdefault(classes.find((place, factor)), _fresh(factor, named.values()))
    every = [(place, factor.name) for place, node in enumerate(nodes) for factor in graph.bound(node).factors]
    if any(classes.find(factor) not in named for factor in every):
        return None

    def written(place: int, pattern: Pattern) -> str:
        found = []
        for dimension in pattern.dimensions:
            own = [classes.find((place, term.factor)) for term in dimension.terms]
            found.append(f"{named[own[0]]}{'!' * (own[0] in kept)}" if own else str(dimension.extent))
        return " ".join(found)

    text = f"{', '.join(written(*seen[t]) for t in operands)} -> {', '.join(written(*seen[t]) for t in results)}"
    saved = tuple(
        Saved(f"{node.name}.{item.name}", written(place, pattern), item.dtype or graph.tensors[node.results[0]].dtype)
        for place, node in enumerate(nodes)
        for item, pattern in graph.bound(node).rule.saved
    )
    return ChainRule(text, saved, {factor: named[classes.find(factor)] for factor in every})


def _meet(classes: _Classes, first: tuple[int, Pattern], other: tuple[int, Pattern]) -> bool:
    """Whether two operators see a tensor alike; then the factors of each dimension are one."""
    (one, mine), (two, theirs) = first, other
    if mine.joins or theirs.joins or len(mine.dimensions) != len(theirs.dimensions):
        return False
    for here, there in zip(mine.dimensions, theirs.dimensions, strict=True):
        terms = here.terms + there.terms
        single = len(here.terms) == len(there.terms) <= 1
        if not single or any(term.halo or term.gathered for term in terms):
            return False
        if terms:
            classes.join((one, here.terms[0].factor), (two, there.terms[0].factor))
    return True


def _fresh(name: str, taken: Iterable[str]) -> str:
    """A name that is not taken: the factor's own, or with a number behind it."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


@final
class _Classes:
    """Factors that are one."""

    def __init__(self) -> None:
        self._of: dict[Factor, Factor] = {}

    def find(self, factor: Factor) -> Factor:
        """The factor that stands for all that are one with it."""
        while (other := self._of.get(factor, factor)) != factor:
            factor = other
        return factor

    def join(self, one: Factor, other: Factor) -> None:
        """Make two factors one."""
        first, second = self.find(one), self.find(other)
        if first != second:
            self._of[second] = first
