"""Lives: how many runs what a run writes is read, in a pipeline without a flush, and in which regions it then lies.

Two layers, a stage each; backward of the first is one run behind forward, that of the last in the same run:

    region       written    read                            ages     places
    x            run k      forward in k, backward in k+1   0, 1     2, which take turns
    h            run k      forward in k, backward in k     0        within the run
    h.grad       run k      backward of stage 0 in k+1      0, 1     1: it is read in a run before it is written
    w0           update     forward 0; backward 1 (stash)   0, 1     2 versions; an update reads 0, writes over 1
    w1           update     0, 0                            0        1

A region stands for what is of an age in a run; from one run to the next all grow older, and storage stays where it is
(`runtime.schedule.turns.ring`).

Of what each micro-batch has for itself regions are used again within the run, as soon as backward is done with one:
with two stages and four micro-batches stage 0 is two ahead, and its parts 0 and 2 are of the region of number 0. What
tasks add to, as several operators do to one gradient, begins with nothing: then each part has a region of its own, and
one for each age. Whoever adds last in a run leaves it settled, folded where it lies, for the run that reads it.

A buffer has one version. It gets its next value as soon as all of a mini-batch have read the old one and added their
part of the new one, and before any of the next mini-batch reads it. Of stage 0 of two, four micro-batches:

    b0 f2 b1 f3 | b2 F0 b3 F1        at the bar, once f3 has added its part, and F0 reads it
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.operators.lowering.micro_batch import ALL, MicroBatches
from maniple.operators.training.prediction import PREDICTORS
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import LaunchForm, RegionRef, RequirementForm
    from maniple.operators.lowering.pipeline import Pass
    from maniple.operators.lowering.step_form import StepForms
    from maniple.operators.pipeline_order.version_rule import VersionRule

    Key = tuple[RegionRef, int]
    """A reference, and of which micro-batch."""

__all__: list[str] = []

HYPER: RegionRef = ("hyper", 0)
"""What a life calls the numbers of updates."""
APART = ("saved", "again", "unread")
"""What every micro-batch has for itself."""


@final
class Use(NamedTuple):
    """A use of a region.

    Args:
        lag: of the pass.
        place: of the pass in the order of a run.
        turn: how many turns of micro-batches after their backward passes the pass comes: of forward less than 0.
        within: the place of the pass in its turn.
    """

    lag: int
    place: int
    turn: int = 0
    within: int = 0


@final
class Lives:
    """How long what a run writes is read.

    Args:
        graph: the graph.
        stages: the stage of each operator, by name.
        rule: which versions of weights are read.
        parts: the micro-batches; None: one.
        degrees: of the operators that are split, by name.
    """

    def __init__(
        self,
        graph: Graph,
        stages: Mapping[str, int],
        rule: VersionRule,
        parts: MicroBatches | None = None,
        degrees: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._graph, self._stages, self.rule = graph, stages, rule
        self._parts, self._degrees = parts or MicroBatches(graph), degrees or {}
        self.count = 1 + max(stages.values(), default=0)
        """How many stages there are."""
        self._written: dict[Key, list[Use]] = {}
        self._read: dict[Key, list[Use]] = {}
        self._folded: set[RegionRef] = set()
        self._last: dict[Key, dict[int, Pass]] = {}
        self._settles: dict[tuple[int, str, int], list[RegionRef]] = {}
        self._weights: dict[int, set[int]] = {}
        self._buffers: dict[int, list[tuple[Use, str]]] = {}
        self._assigned: dict[int, Use] = {}
        self._forms: StepForms | None = None
        self._counts: dict[RegionRef, int] = {}  # of the regions that micro-batches use one after the other
        self.predictor = PREDICTORS.lookup(rule.name)() if rule.predicts else None
        """What gives the weights that passes read."""

    def read_predicted(self, node: Node, kind: str) -> list[int]:
        """The parameters that a pass of an operator reads predicted."""
        if self._forms is None or not self.delay(self.stage(node), kind):
            return []
        read = [n.region[1] for f in self._forms.of(kind, node) for n in f.requirements if n.region[0] == "value"]
        return [number for number in dict.fromkeys(read) if number in self._weights]

    def delay(self, stage: int, kind: str) -> int:
        """How many updates ahead a pass of a stage reads weights."""
        if self.predictor is None:
            return 0
        delays = self.predictor.delays(stage, self.count)
        return delays.forward if kind == "forward" else delays.backward

    def stage(self, node: Node) -> int:
        """The stage of an operator."""
        return self._stages[node.name]

    def stage_of(self, parameter: int) -> int:
        """The stage that reads a parameter.

        Raises:
            RequestError: several do.
        """
        found = sorted({self.stage(node) for node in self._graph.nodes if parameter in node.operands})
        if len(found) > 1:
            raise RequestError(
                f"plan: semantics.weights: expected each weight in one stage; stages {' '.join(map(str, found))} read "
                f"{self._graph.tensors[parameter].name}: put the operators that share it into one stage"
            )
        return found[0] if found else self.count - 1

    def behind(self, stage: int) -> int:
        """How many runs after its mini-batch began a stage has backward of it, and updates its weights."""
        return self.rule.behind(stage, self.count)

    def lag_of(self, node: Node, kind: str, part: int = ALL) -> int:
        """How many runs ago the mini-batch began of which a pass is."""
        stage, parts = self.stage(node), self._parts.count
        if kind != "forward":
            return self.behind(stage)
        return self.rule.begins(stage, self.count, parts - 1 if self._parts.follows(node) else part, parts)

    def arrival(self, ref: RegionRef, part: int = ALL) -> int:
        """How many runs after its mini-batch began an input arrives: when the first pass reads it."""
        return min((use.lag for use in self._read.get((ref, part), ())), default=0)

    def arrives(self, node: Node, kind: str, part: int, ref: RegionRef) -> bool:
        """Whether a pass reads what arrives in its run, and not what came in the one before."""
        return self.lag_of(node, kind, part) == self.arrival(ref, part)

    def assigned(self, buffer: int) -> Use:
        """When a buffer gets its next value: right after the pass of that lag and place."""
        return self._assigned[buffer]

    def note(self, passes: Sequence[Pass], forms: StepForms) -> None:
        """Take note of all passes of a run, in order."""
        self._forms = forms
        within: dict[tuple[str, int], int] = {}
        for place, found in enumerate(passes):
            node = self._graph.nodes[found.node]
            within.setdefault((found.kind, found.node), len(within))
            ahead = self._ahead(node) if found.kind == "forward" else 0
            behind = self.lag_of(node, found.kind, found.part)
            use = Use(behind, place, -ahead, within[found.kind, found.node])
            for form in forms.of(found.kind, node):
                self._note(form, found, use)
            self._contribute(found, node, use, forms)
        for buffer, given in self._graph.assignments.items():
            self._assign(buffer, ("value", given))
        for tensor in self._graph.inputs:
            for part in range(ALL, self._parts.count):
                key = ("value", tensor.id), part
                if key in self._read:
                    first = min(self._read[key], key=lambda use: (use.lag, use.place))
                    place = -1 if part == ALL else first.place - 1
                    self._written[key] = [first._replace(place=place, within=first.within - 1)]
        self._written[("clock", 0), ALL] = self._written[HYPER, ALL] = [Use(0, -1)]
        self._settles = self._settled()
        self._counts.clear()

    def _ahead(self, node: Node) -> int:
        """How many turns before its backward passes forward of an operator comes."""
        return self.rule.ahead(self.stage(node), self.count, self._parts.count)

    def _note(self, form: LaunchForm, found: Pass, use: Use) -> None:
        """Take note of a launch of a pass."""
        lasting = {tensor.id for tensor in self._graph.lasting}
        trained = {tensor.id for tensor in self._graph.parameters}
        for need in form.requirements:
            kind, number = need.region
            if kind == "value" and number in lasting:
                stage = self.stage(form.node)
                if number in trained:
                    self._weights.setdefault(number, set()).add(self.rule.age(stage, self.count, use.lag))
                else:
                    self._buffers.setdefault(number, []).append((use, f"{form.name} of stage {stage}"))
                continue
            key = need.region, self.part_of(need.region, found.part)
            if need.access == "read":
                self._read.setdefault(key, []).append(use)
                continue
            self._written.setdefault(key, []).append(use)
            self._last.setdefault(key, {})[use.lag] = found
            if self._folds(need, form.node):
                self._folded.add(need.region)

    def _assign(self, buffer: int, given: RegionRef) -> None:
        """Find when a buffer gets its next value.

        Raises:
            RequestError: some read the old one after others read it of the next mini-batch.
        """
        read, written = self._buffers.get(buffer, []), self._written[given, ALL]
        last = max([*written, *(use for use, _ in read)], key=lambda use: (use.lag, use.place))
        for use, name in read:
            if (use.lag + 1, use.place) < (last.lag, last.place):
                raise RequestError(
                    f"plan: semantics.weights: {self._graph.tensors[buffer].name} gets a next value in each step, and "
                    f"has one version: expected that all of a mini-batch read it before any of the next does; {name} "
                    "does not: a buffer that forward of one stage reads alone can be read so"
                )
        self._assigned[buffer] = last
        self._read.setdefault((given, ALL), []).append(last)

    def _contribute(self, found: Pass, node: Node, use: Use, forms: StepForms) -> None:
        """Take note of updates that may follow a pass."""
        if found.kind == "forward":
            return
        trained = {tensor.id for tensor in self._graph.parameters}
        for number in trained.intersection(forms.backward.contributed(node)):
            self.stage_of(number)
            self._read.setdefault((HYPER, ALL), []).append(use)
            self._read.setdefault((("gradient", number), ALL), []).append(use)

    def _folds(self, need: RequirementForm, node: Node) -> bool:
        """Whether tasks add to what they write of a region, so that it is folded when it is read."""
        if self._forms is not None and need.access == "gradient" and need.region[1] in self._forms.backward.shared:
            return True
        degrees = self._degrees.get(node.name)
        if need.tiles is None:
            return False
        if need.region[0] == "value" and self._parts.is_cut(node) and self._parts.axis(node, *need.tiles) is None:
            return True  # every micro-batch adds to the same elements
        if degrees is None:
            return False
        role, place = need.tiles
        axes = self._graph.bound(node).table(degrees).parts.axes[role][place] or ()
        cut = {factor for factor, _ in axes}
        meets = any(last > first for _, ranges in axes for (_, last), (first, _) in pairwise(ranges))
        return meets or any(degree > 1 and factor not in cut for factor, degree in enumerate(degrees))

    def part_of(self, ref: RegionRef, part: int) -> int:
        """The micro-batch whose a region is that a pass of one uses; all are of one that is not kept apart."""
        kind, number = ref
        apart = kind in APART or (kind in {"value", "gradient"} and self._parts.apart(number))
        return part if apart and self._parts.count > 1 else ALL

    def key(self, ref: RegionRef, part: int) -> Key:
        """What has a region: a micro-batch, or those that use it one after the other; the first of them stands."""
        part = self.part_of(ref, part)
        return (ref, part) if part == ALL or ref in self._folded else (ref, part % self._held(ref))

    def _held(self, ref: RegionRef) -> int:
        """How many micro-batches have something for themselves at once, so that each has the same region in each run.

        Of those the number is a divisor.
        """
        if ref not in self._counts:
            self._counts[ref] = self._count(ref)
        return self._counts[ref]

    def _count(self, ref: RegionRef) -> int:
        """Count them; see `_held`."""
        count = self._parts.count
        written = [use for part in range(count) for use in self._written.get((ref, part), ())]
        read = [use for part in range(count) for use in self._read.get((ref, part), ())]
        if not written or not read:
            return 1
        first, last = min(written, key=_when), max(read, key=_when)
        held = max(1, last.turn - first.turn + (last.within > first.within))
        return next((each for each in range(held, count) if count % each == 0), count)

    def written(self, key: Key) -> int:
        """The lag of those who first write a region."""
        uses = self._written.get(key)
        return min(use.lag for use in uses) if uses else 0

    def age(self, ref: RegionRef, part: int, at: int) -> int:
        """Of which age a region is, in a pass of some lag."""
        key = ref, self.part_of(ref, part)
        return 0 if self._reused(key) else at - self.written(key)

    def _reused(self, key: Key) -> bool:
        """Whether micro-batches use a region one after the other."""
        return key[1] != ALL and key[0] not in self._folded

    def places(self, key: Key) -> int:
        """How many places a region has; 1 also where it lives within a run."""
        if self._reused(key):
            return 1
        ages = self._ages(key)
        oldest = max(ages, default=0)
        if not oldest:
            return 1
        if key[0] in self._folded:
            return oldest + 1
        last = max(use.place for use in self._uses(key) if use.lag - self.written(key) == oldest)
        first = min(use.place for use in self._written[key] if use.lag == self.written(key))
        return oldest + (last > first)

    def outlives(self, key: Key) -> bool:
        """Whether a region is used in a later run than that which wrote it."""
        ref, part = key
        if not self._reused(key):
            return max(self._ages(key), default=0) > 0
        alike = range(part, self._parts.count, self._held(ref))
        return any(max(self._ages((ref, each)), default=0) > 0 for each in alike)

    def settles(self, node: Node, kind: str, part: int) -> Sequence[RegionRef]:
        """What a pass is the last of a run to add to, that nobody folds in this run, and somebody uses in a later."""
        return self._settles.get((node.id, kind, part), ())

    def _settled(self) -> dict[tuple[int, str, int], list[RegionRef]]:
        """By pass what is settled after it."""
        found: dict[tuple[int, str, int], list[RegionRef]] = {}
        for (ref, part), last in self._last.items():
            if ref not in self._folded:
                continue
            key = ref, part
            reads = {use.lag for use in self._read.get(key, ())}
            latest = max((use.lag for use in self._uses(key)), default=0)
            for behind, each in last.items():
                if behind < latest and behind not in reads:
                    found.setdefault((each.node, each.kind, each.part), []).append(ref)
        return found

    def _uses(self, key: Key) -> list[Use]:
        """Who uses what a region was first written with."""
        begun = self.written(key)
        return [*self._read.get(key, ()), *(use for use in self._written.get(key, ()) if use.lag > begun)]

    def _ages(self, key: Key) -> list[int]:
        return [use.lag - self.written(key) for use in self._uses(key)]

    def weight_age(self, parameter: int, stage: int, behind: int) -> int:
        """The version that a pass of a stage reads of a weight, so many runs after its mini-batch began."""
        return self.rule.age(stage, self.count, behind) if parameter in self._weights else 0

    def versions(self, parameter: int) -> int:
        """How many versions are kept of a weight: as many as are read."""
        return 1 + max(self._weights.get(parameter, ()), default=0)


def _when(use: Use) -> tuple[int, int]:
    return use.turn, use.within
