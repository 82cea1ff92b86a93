"""Moves: the proposals of the search, each with the ratio that keeps the chain's detailed balance.

A move changes the choices of some operators. The chain accepts a proposal from x to y with probability
min(1, p(y) q(y -> x) / p(x) q(x -> y)) (W. K. Hastings, Monte Carlo sampling methods using Markov chains and their
applications, Biometrika 57, 1970), where q is the probability that *this* move proposes it. Moves are picked with fixed
probabilities, so if each keeps detailed balance, the mixture does.

    move      changes                                              q(y -> x) / q(x -> y)
    redraw    one operator: a choice drawn from its whole space    the ratio of the two draws
    degree    one factor's degree                                  1
    shift     the start of the processors                          1
    stride    their stride                                         1
    swap      two operators exchange their processors              1
    follow    one operator is cut as a neighbour or one of its     mixture of the draw and of those that
              kind is, or, half of the time, redrawn               give the same choice
    together  all that are cut as one operator of a class, to      the ratio of the two draws; 0 if another
              one choice drawn from the space                      of the class was already cut so
    spread    one operator to a choice drawn from its space, and   the ratio of the sums of the draws, over the
              all that are cut as it is, neighbour by neighbour,   operators from which the same would spread
              to what they then become                             and back; 0 where it would not come back
    migrate   a layer's processors, all by one distance            1: as often there as back
    trade     two layers' processors: each by the distance         1: the same two operators lead back
              between one operator of the one, one of the other
    resize    a layer's samples: into twice or half as many        1: it is doubled as often as halved
              parts, wherever they are cut
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from maniple.strategies.interface.space import Choice, Space

__all__: list[str] = []

Choices = tuple["Choice", ...]


class Proposal(NamedTuple):
    """A move's answer.

    Args:
        changes: (operator, choice) for every operator that changes.
        log_ratio: the logarithm of q(y -> x) / q(x -> y).
    """

    changes: tuple[tuple[int, Choice], ...]
    log_ratio: float = 0.0


Move = "Callable[[Space, Choices, Random], Proposal | None]"


def redraw(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """One operator's choice, drawn anew (the published proposal; Jia et al., section 6)."""
    operator = chance.randrange(len(choices))
    own = space.operators[operator]
    drawn, present = own.draw(chance), choices[operator]
    return Proposal(((operator, drawn),), log(own.probability(present) / own.probability(drawn)))


def degree(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """Another degree for one factor of one operator; replicas count as a factor."""
    operator = chance.randrange(len(choices))
    own, present = space.operators[operator], choices[operator]
    axis = chance.randrange(len(own.factors) + 1)
    if axis == len(own.factors):
        others = present.tasks // present.replicas
        found = replace(present, replicas=chance.randint(1, own.processors // others))
    else:
        others = present.tasks // present.degrees[axis]
        most = min(own.factors[axis].highest_degree, own.processors // others)
        degrees = list(present.degrees)
        degrees[axis] = chance.randint(1, most)
        found = replace(present, degrees=tuple(degrees))
    return Proposal(((operator, found),)) if own.contains(found) else None


def shift(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """Another first processor for one operator."""
    operator = chance.randrange(len(choices))
    count = space.operators[operator].processors
    return Proposal(((operator, replace(choices[operator], start=chance.randrange(count))),))


def stride(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """Another stride for one operator."""
    operator = chance.randrange(len(choices))
    present = choices[operator]
    legal = space.operators[operator].strides(present.tasks)
    return Proposal(((operator, replace(present, stride=chance.choice(legal))),))


def swap(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """The processors of two operators exchanged."""
    if len(choices) < 2:
        return None
    first, second = chance.sample(range(len(choices)), 2)
    one = replace(choices[first], start=choices[second].start, stride=choices[second].stride)
    other = replace(choices[second], start=choices[first].start, stride=choices[first].stride)
    if space.operators[first].contains(one) and space.operators[second].contains(other):
        return Proposal(((first, one), (second, other)))
    return None


def follow(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """One operator cut and placed as a neighbour or another of its class is, or, half of the time, drawn anew."""
    operator = chance.randrange(len(choices))
    own, present = space.operators[operator], choices[operator]
    models = _models(space, choices, operator)
    if not models:
        return None
    drawn = chance.choice(models) if chance.random() < 0.5 else own.draw(chance)
    if drawn is None:
        return None

    def density(choice: Choice) -> float:
        return 0.5 * models.count(choice) / len(models) + 0.5 * own.probability(choice)

    return Proposal(((operator, drawn),), log(density(present) / density(drawn)))


def together(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """All operators of a class that share one choice, changed to one drawn choice."""
    operator = chance.randrange(len(choices))
    own, present = space.operators[operator], choices[operator]
    members = _class(space, operator)
    drawn = own.draw(chance)
    if drawn != present and any(choices[other] == drawn for other in members):
        return None
    tied = tuple((other, drawn) for other in members if choices[other] == present)
    return Proposal(tied, log(own.probability(present) / own.probability(drawn)))


def spread(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """One operator drawn anew, and with it all that are cut as it is, from neighbour to neighbour."""
    operator = chance.randrange(len(choices))
    forth = _spread(space, choices, operator, space.operators[operator].draw(chance))
    back = None if forth is None else _spread(space, forth[0], operator, choices[operator])
    if forth is None or back is None or back[0] != choices:
        return None
    after, origins = forth[0], sorted(forth[1] & back[1])
    if not origins:
        return None  # what was drawn is what was there
    there = sum(space.operators[place].probability(after[place]) for place in origins)
    here = sum(space.operators[place].probability(choices[place]) for place in origins)
    changed = [place for place, choice in enumerate(after) if choice != choices[place]]
    return Proposal(tuple((place, after[place]) for place in changed), log(here / there))


def migrate(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """A layer's operators moved around the machine, all by one distance: some blocks of a size that divides it.

    Of a layer in several stages those move that have the processors of one.
    """
    most = max(own.processors for own in space.operators)
    distance, operator = _draw_distance(most, chance), chance.randrange(len(choices))
    count = space.operators[operator].processors
    if count != most:  # around the fewer processors of its stage
        distance = _draw_distance(count, chance)
    members = _layer(space, operator) if distance else []
    moved = tuple((place, _move(choices[place], distance, count)) for place in members)
    return Proposal(moved) if moved else None


def _draw_distance(count: int, chance: Random) -> int:
    """Some blocks of a size that divides so many processors; 0 where there is only one."""
    if count == 1:
        return 0
    size = chance.choice([size for size in range(1, count) if count % size == 0])
    return size * chance.randrange(1, count // size)


def trade(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """Two layers in each other's place: the first operator of a pair comes to where the second was, and vice versa."""
    first, second = chance.randrange(len(choices)), chance.randrange(len(choices))
    if space.layers[first] == space.layers[second] or not _same_processors(space, first, second):
        return None
    count, distance = space.operators[first].processors, choices[second].start - choices[first].start
    ways = ((first, distance), (second, -distance))
    return Proposal(
        tuple((place, _move(choices[place], way, count)) for operator, way in ways for place in _layer(space, operator))
    )


def resize(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """A layer's samples cut into twice as many parts, or half as many, where they can be cut; strides stay."""
    changes, doubled = list[tuple[int, "Choice"]](), chance.random() < 0.5
    for place in _layer(space, chance.randrange(len(choices))):
        own, degrees = space.operators[place], list(choices[place].degrees)
        axis = next((axis for axis, one in enumerate(own.factors) if one.role == "sample" and one.splittable), None)
        if axis is None:
            continue
        if not doubled and degrees[axis] % 2:
            return None
        degrees[axis] = degrees[axis] * 2 if doubled else degrees[axis] // 2
        found = replace(choices[place], degrees=tuple(degrees))
        if not own.contains(found):
            return None
        changes.append((place, found))
    return Proposal(tuple(changes)) if changes else None


def _layer(space: Space, operator: int) -> list[int]:
    """The operators of an operator's layer that may run on the same processors."""
    return [
        other
        for other, layer in enumerate(space.layers)
        if layer == space.layers[operator] and _same_processors(space, operator, other)
    ]


def _class(space: Space, operator: int) -> list[int]:
    """The operators of an operator's class that may run on the same processors."""
    return [
        other
        for other, kind in enumerate(space.alike)
        if kind == space.alike[operator] and _same_processors(space, operator, other)
    ]


def _same_processors(space: Space, first: int, second: int) -> bool:
    """Whether the ranges of two operators are counted around the same processors."""
    one, other = space.operators[first], space.operators[second]
    return (one.processors, one.within) == (other.processors, other.within)


def _move(choice: Choice, distance: int, processors: int) -> Choice:
    return replace(choice, start=(choice.start + distance) % processors)


def _spread(space: Space, choices: Choices, operator: int, drawn: Choice) -> tuple[Choices, set[int]] | None:
    """The choices after an operator is cut anew and those that were cut as it was follow.

    Returns:
        The choices, and the changed operators from which the same would spread: those that lead to the first one again.
        None where one cannot follow, or would by another way become something else.
    """
    after, waiting = list(choices), [operator]
    after[operator] = drawn
    leaders: dict[int, list[int]] = {operator: []}
    returns = True
    while waiting:
        here = waiting.pop()
        for other in space.neighbours[here]:
            place = space.neighbours[other].index(here)
            if space.carry(other, place, choices[here]) != choices[other]:
                continue
            carried = space.carry(other, place, after[here])
            if other == operator:
                returns &= carried == drawn
            elif other in leaders:
                if carried != after[other]:
                    return None
            elif carried is None:
                return None
            else:
                after[other] = carried
                waiting.append(other)
            leaders.setdefault(other, []).append(here)
    found, waiting = {operator}, [operator] if returns else []
    while waiting:
        more = [leader for leader in leaders[waiting.pop()] if leader not in found]
        found.update(more)
        waiting += more
    return tuple(after), {place for place in found if after[place] != choices[place]}


MOVES: tuple[tuple[Callable[[Space, Choices, Random], Proposal | None], float], ...] = (
    (redraw, 0.15),
    (degree, 0.15),
    (shift, 0.1),
    (stride, 0.05),
    (swap, 0.05),
    (follow, 0.1),
    (together, 0.1),
    (spread, 0.1),
    (migrate, 0.1),
    (trade, 0.05),
    (resize, 0.05),
)
"""The moves and the probabilities with which one is picked."""


def propose(space: Space, choices: Choices, chance: Random) -> Proposal | None:
    """A proposal by one of the moves; None where that move has none to make here."""
    (move,) = chance.choices([move for move, _ in MOVES], [weight for _, weight in MOVES])
    return move(space, choices, chance)


def apply(choices: Choices, proposal: Proposal) -> Choices:
    """The choices after a proposal."""
    after = list(choices)
    for operator, choice in proposal.changes:
        after[operator] = choice
    return tuple(after)


def _models(space: Space, choices: Choices, operator: int) -> list[Choice | None]:
    """What the operator becomes when it is cut as each of its neighbours, and as the others of its class."""
    near = space.neighbours[operator]
    carried = [space.carry(operator, place, choices[other]) for place, other in enumerate(near)]
    alike = [choices[other] for other in _class(space, operator) if other != operator]
    return [*carried, *alike]
