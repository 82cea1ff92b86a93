"""The analysis cache: analyses of launches, remembered for the next time that their regions are in the same states.

A loop that is not traced still launches the same again and again. What the analysis of a launch comes to depends on the
launch and on the states of its regions alone, and these recur: who holds what, and which elements were used last, but
not by whom. So a state is kept once, with slots in place of names, and so is what a launch makes of it, a *transition*:

    state  slots                   launch        next state  edges                     slots
    A      x[0:2] of a, x[2:4] of b  c writes x[0:4]  B      slot 0 -> c, slot 1 -> c  x[0:4] of c

The next time only the names are put in. This is the memoisation of Lee et al., "Dynamic Tracing: Memoization of Task
Graphs for Dynamic Task-Based Runtimes" (SC 2018), of single launches instead of traces: nothing is annotated, and a
launch that is new costs what it would without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maniple.runtime.analysis.instance_table import Node
from maniple.runtime.analysis.placed_use import AnalysedUse

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from maniple.regions.validity import Validity
    from maniple.runtime.analysis.dependence import RegionAnalysis
    from maniple.runtime.analysis.instance_table import Names, Structure
    from maniple.runtime.analysis.placed_use import Move
    from maniple.runtime.schedule.schedule import Access

__all__: list[str] = []

# A region that comes in ever new states keeps this many, and a program so many transitions.
KEPT_STATES = 64
KEPT_TRANSITIONS = 1024

New = tuple[int, int]
"""A node that a launch adds to a region: (use, point), or (-1, movement), counted from the launch's first."""


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """A state of a region in which nothing is pending; the same object whenever it recurs.

    Args:
        validity: what is valid where.
        structure: which elements of which instances were used last.
    """

    validity: Validity
    structure: Structure


@dataclass(frozen=True, slots=True)
class RegionStep:
    """What a launch makes of the state of one region.

    Args:
        after: the next state.
        new: the nodes that the launch adds.
        names: for each slot of the next state who stands there: those of slots of this one, and numbers of new nodes.
        uses: how many uses the launch has of the region.
        moves: how many movements these need.
    """

    after: State
    new: tuple[New, ...]
    names: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    uses: int
    moves: int


@dataclass(frozen=True, slots=True)
class UseStep:
    """What one requirement of a launch comes to.

    Args:
        region: id of the region.
        use: the number of this use among the launch's of the region.
        first: the number of its first movement among those.
        moves: the movements.
        edges: which new node waits for whom: those of a slot, or where that is -1 a new node.
        accesses: (point, its new node, the instance it uses).
    """

    region: int
    use: int
    first: int
    moves: tuple[Move, ...]
    edges: tuple[tuple[int, int, int], ...]
    accesses: tuple[tuple[int, int, Access], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Transition:
    """What a launch comes to where its regions are in certain states.

    Args:
        found: what was done and the states of its regions; they are told by identity, so they are kept.
        regions: by id.
        uses: in the order of the requirements, each with the number of its region among those.
    """

    found: tuple[object, tuple[State, ...]]
    regions: tuple[tuple[int, RegionStep], ...]
    uses: tuple[tuple[int, UseStep], ...]


class _Clerk:
    """Puts names in and takes them out, for one region and one launch.

    Args:
        analysis: of the region, as it was before the launch.
        names: of the slots then.
    """

    def __init__(self, analysis: RegionAnalysis, names: Names) -> None:
        self.step, self.uses, self.moves = analysis.step, analysis.uses, analysis.moved
        self.before = names
        self.numbers: dict[New, int] = {}

    def number(self, node: Node) -> int:
        """Take the name of a new node out."""
        new = (-1, node.item - self.moves) if node.use < 0 else (node.use - self.uses, node.item)
        return self.numbers.setdefault(new, len(self.numbers))

    def edge(self, before: Node, then: Node) -> tuple[int, int, int]:
        """Take the names of a dependence out; that of a stand-in is a slot."""
        slot, first = (before.item, -1) if before.step < 0 else (-1, self.number(before))
        return slot, first, self.number(then)

    def group(self, nodes: Sequence[Node], mine: Container[Node]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take the names of a slot of the next state out, but for those of nodes that are not followed."""
        slots = tuple([node.item for node in nodes if node.step < 0])
        return slots, tuple([self.number(node) for node in nodes if node.step >= 0 and node in mine])

    def name_nodes(self, node: Node) -> Sequence[Node]:
        """Put names in the place of a stand-in."""
        return self.before[node.item] if node.step < 0 else (node,)


class AnalysisCache:
    """The states that regions were met in, and what launches made of them.

    Who waits for whom matters to those who run one of the two, so each rank of a large world follows its own nodes.

    Args:
        regions: the analyses of the program's regions, by id.
        memories: those whose nodes are followed; None for all.
    """

    def __init__(self, regions: Mapping[int, RegionAnalysis], memories: Container[int] | None = None) -> None:
        self._regions = regions
        self._memories = memories
        self._states: dict[int, dict[tuple[Validity, object], State]] = {}
        self._current: dict[int, State] = {}
        self._transitions: dict[tuple[int, ...], Transition] = {}
        self.derived = 0
        self.followed = 0

    def forget(self, region: int) -> None:
        """Forget the states of a region; what led there cannot recur, and goes in time."""
        self._states.pop(region, None)
        self._current.pop(region, None)

    def launch(
        self,
        what: tuple[object, ...],
        regions: tuple[int, ...],
        analyse: Callable[[], tuple[AnalysedUse, ...]],
    ) -> tuple[AnalysedUse, ...]:
        """Analyse a launch, from memory where its regions are in states in which it found them before.

        Args:
            what: objects that are the same whenever the launch recurs.
            regions: the regions that it uses, each once.
            analyse: analyses it without remembering it.

        Raises:
            RequestError: as the analysis does.
        """
        key = [*map(id, what)]
        for region in regions:
            state = self._state(region)
            if state is None:
                return tuple(map(self.follows, analyse()))
            key.append(id(state))
        known = self._transitions.get(tuple(key))
        if known is None:
            self.derived += 1
            return self._derive(what, regions, tuple(key), analyse)
        self.followed += 1
        return self._follow(known)

    def _state(self, region: int) -> State | None:
        """Give the state that a region is in, None if it has contributions or too much is remembered of it."""
        analysis = self._regions[region]
        found = None if analysis.validity.pending else analysis.instances.structure()
        if found is None:
            return None
        structure, names = found
        current = self._current.get(region)
        if current is not None and current.validity is analysis.validity and current.structure is structure:
            return current
        known = self._states.setdefault(region, {})
        if len(known) >= KEPT_STATES:
            known.clear()
        # A state that was let go of, and with it its id, must not be met again as another.
        state = known.setdefault((analysis.validity, structure.description), State(analysis.validity, structure))
        self._enter(region, state, names)
        return state

    def _enter(self, region: int, state: State, names: Names) -> None:
        analysis = self._regions[region]
        analysis.validity = state.validity
        analysis.instances.adopt(state.structure, names)
        self._current[region] = state

    def _follow(self, transition: Transition) -> tuple[AnalysedUse, ...]:
        """Put the names in."""
        entered = []
        for region, step in transition.regions:
            analysis = self._regions[region]
            found = analysis.instances.structure()
            before: Names = [] if found is None else found[1]
            run, uses, moves = analysis.step, analysis.uses, analysis.moved
            new = _nodes(step.new, run, uses, moves)
            entered.append((before, new, uses, moves))
            self._enter(region, step.after, _names(step, before, new))
            analysis.skip(step.uses, step.moves)
        told = []
        for place, use in transition.uses:
            before, new, uses, moves = entered[place]
            edges: list[tuple[Node, Node]] = []
            for slot, first, then in use.edges:
                node = new[then]
                if slot < 0:
                    edges.append((new[first], node))
                else:
                    edges += [(earlier, node) for earlier in before[slot]]
            accesses = tuple([(point, new[number], access) for point, number, access in use.accesses])
            told.append(AnalysedUse(use.region, moves + use.first, use.moves, tuple(edges), accesses, uses + use.use))
        return tuple(told)

    def follows(self, use: AnalysedUse) -> AnalysedUse:
        """Give what is followed of a use: its movements, and of its nodes those in the memories."""
        if self._memories is None or use.evicted >= 0:
            return use
        mine = self._mine(use)
        edges = tuple([edge for edge in use.edges if edge[1] in mine])
        return replace(use, edges=edges, accesses=tuple([access for access in use.accesses if access[1] in mine]))

    def _mine(self, use: AnalysedUse) -> set[Node]:
        """Give the nodes of a use that are in the memories, those of its movements among them."""
        analysis, memories = self._regions[use.region], self._memories
        moves = [(Node(analysis.step, -1, number), move.accesses) for number, move in enumerate(use.moves, use.first)]
        tasks = [(node, (access,)) for _, node, access in use.accesses]
        return {
            node
            for node, accesses in (*moves, *tasks)
            if memories is None or any(analysis.extents[access.instance][0] in memories for access in accesses)
        }

    def _clerk(self, region: int) -> _Clerk:
        analysis = self._regions[region]
        found = analysis.instances.structure()
        return _Clerk(analysis, [] if found is None else found[1])

    def _derive(
        self,
        what: tuple[object, ...],
        regions: Sequence[int],
        key: tuple[int, ...],
        analyse: Callable[[], tuple[AnalysedUse, ...]],
    ) -> tuple[AnalysedUse, ...]:
        """Analyse a launch with stand-ins for the names, and remember what it comes to if its regions recur."""
        clerks = {region: self._clerk(region) for region in regions}
        states = tuple(self._current[region] for region in regions)
        tables = [self._regions[region].instances for region in regions]
        made = [table.made for table in tables]
        for region, table, state in zip(regions, tables, states, strict=True):
            table.adopt(state.structure, [[Node(-1, 0, slot)] for slot in range(len(clerks[region].before))])
        try:
            uses = tuple(map(self.follows, analyse()))
        except BaseException:
            for region, table, state in zip(regions, tables, states, strict=True):
                table.adopt(state.structure, clerks[region].before)
            raise
        steps = {region: step for region in regions if (step := self._step(region, clerks[region], uses)) is not None}
        lasting = made == [table.made for table in tables]
        evicted = any(use.evicted >= 0 for use in uses)
        if len(steps) == len(regions) and not evicted and lasting:
            if len(self._transitions) >= KEPT_TRANSITIONS:
                self._transitions.clear()
            places = {region: place for place, region in enumerate(steps)}
            taken = tuple([(places[use.region], _use_step(use, clerks[use.region])) for use in uses])
            self._transitions[key] = Transition((what, states), tuple(steps.items()), taken)
        return tuple([_name_use(use, clerks.get(use.region)) for use in uses])

    def _step(self, region: int, clerk: _Clerk, uses: Sequence[AnalysedUse]) -> RegionStep | None:
        """Put the names of a region in again that was analysed with stand-ins; gives the step if it can be kept."""
        state, analysis = self._state(region), self._regions[region]
        found = analysis.instances.structure()
        if state is None or found is None:
            analysis.instances.rename(clerk.name_nodes)
            return None
        own = [use for use in uses if use.region == region]
        mine = {node for use in own for node in self._mine(use)}
        names = tuple([clerk.group(nodes, mine) for nodes in found[1]])
        for use in own:
            _use_step(use, clerk)  # numbers its nodes
        new = tuple(clerk.numbers)
        step = RegionStep(state, new, names, analysis.uses - clerk.uses, analysis.moved - clerk.moves)
        self._enter(region, state, _names(step, clerk.before, _nodes(new, clerk.step, clerk.uses, clerk.moves)))
        return step


def _nodes(new: Sequence[New], step: int, uses: int, moves: int) -> list[Node]:
    """Name new nodes, after so many uses and movements of the region."""
    return [Node(step, -1, moves + item) if use < 0 else Node(step, uses + use, item) for use, item in new]


def _names(step: RegionStep, before: Names, new: Sequence[Node]) -> Names:
    """Name who stands in the slots of the next state."""
    made: Names = []
    for slots, numbers in step.names:
        if len(slots) == 1 and not numbers:
            made.append(before[slots[0]])  # nobody changes one in place
            continue
        found = [new[number] for number in numbers]
        for slot in slots:
            found += before[slot]
        made.append(found)
    return made


def _use_step(use: AnalysedUse, clerk: _Clerk) -> UseStep:
    edges = tuple([clerk.edge(before, then) for before, then in use.edges])
    accesses = tuple([(point, clerk.number(node), access) for point, node, access in use.accesses])
    return UseStep(use.region, use.ordinal - clerk.uses, use.first - clerk.moves, use.moves, edges, accesses)


def _name_use(use: AnalysedUse, clerk: _Clerk | None) -> AnalysedUse:
    if clerk is None:  # an eviction's
        return use
    edges = tuple([(before, then) for stand_in, then in use.edges for before in clerk.name_nodes(stand_in)])
    return replace(use, edges=edges)
