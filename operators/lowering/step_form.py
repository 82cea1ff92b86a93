"""Step forms: the launches of each operator in a training step, for forward, backward, and what is computed again.

    kind              launches                                  where an operator is recomputed
    forward           the forward form                          what it saves, nothing reads
    again             none                                      the forward form, into regions of its own
    backward          the backward forms, inputs' first         reads what was computed again
    input_gradient    of these the one of the inputs
    weight_gradient   of these the one of the parameters

Of an operator whose gradients come of one computation, ``input_gradient`` has them all, and
``weight_gradient`` is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, final

from maniple.operators.lowering.launch_form import BackwardForms, forward_form
from maniple.operators.lowering.working_copy import NONE_WORKING, PART, copies_read, is_passing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import LaunchForm, RegionRef, RequirementForm
    from maniple.operators.lowering.working_copy import WorkingCopies

__all__: list[str] = []

Pass = Literal["forward", "again", "backward", "input_gradient", "weight_gradient"]
PASSES: tuple[Pass, ...] = ("forward", "again", "backward", "input_gradient", "weight_gradient")


@final
@dataclass(frozen=True, slots=True)
class PassUses:
    """What the launches of one pass of an operator use, whichever micro-batch it is for.

    Args:
        reads: the regions that they read, each once.
        copies: of these the copies of weights, casts among them.
        contributed: the tensors to whose gradients they contribute.
        summed: the parameters of which they contribute to the gradient of a micro-batch, which is then added.
        parameters: the tensors to whose gradients they contribute, and then those that they only read.
    """

    reads: tuple[RegionRef, ...]
    copies: tuple[RegionRef, ...]
    contributed: tuple[int, ...]
    summed: tuple[int, ...]
    parameters: tuple[int, ...]


@final
class StepForms:
    """The launches of each operator in a step.

    Args:
        graph: the graph.
        nodes: what the step needs, in the graph's order.
        training: whether it goes backward, and forward saves what backward reads.
        scaled: whether the gradient of the loss is its scale instead of 1.
        recomputed: the numbers of the nodes whose results are not kept for backward.
        near: whether a node reads what another computes again of a tensor, and not what it was given in forward.
        passed: see ``BackwardForms``.
        working: which weights are read from working copies.
        cut: whether there are several micro-batches.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        *,
        training: bool,
        scaled: bool = False,
        recomputed: Collection[int] = (),
        near: Callable[[Node, Node, int], bool] = lambda _reader, _writer, _tensor: True,
        passed: Mapping[int, tuple[int, ...]] | None = None,
        working: WorkingCopies = NONE_WORKING,
        cut: bool = False,
    ) -> None:
        self._graph, self._near, self._training = graph, near, training
        self._working, self._cut = working, cut
        self.backward = BackwardForms(graph, nodes if training else (), scaled=scaled, passed=passed)
        self.recomputed = frozenset(recomputed)
        self._writer = {result: node for node in nodes if node.id in self.recomputed for result in node.results}
        self._made: dict[tuple[str, int], tuple[LaunchForm, ...]] = {}
        self._uses: dict[tuple[str, int], PassUses] = {}

    def of(self, kind: str, node: Node) -> tuple[LaunchForm, ...]:
        """The launches of a node.

        Args:
            kind: one of `PASSES`.
            node: the node.
        """
        key = kind, node.id
        if key not in self._made:
            backward, worked = kind != "forward", self._working.worked
            self._made[key] = tuple([worked(f, backward=backward, cut=self._cut) for f in self._forms(kind, node)])
        return self._made[key]

    def uses(self, kind: str, node: Node) -> PassUses:
        """What the launches of a node use; see ``of``."""
        key = kind, node.id
        if key not in self._uses:
            self._uses[key] = self._find_uses(kind, node)
        return self._uses[key]

    def _find_uses(self, kind: str, node: Node) -> PassUses:
        needs = [need for form in self.of(kind, node) for need in form.requirements]
        read = [need.region for need in needs if need.access == "read"]
        wanted = {need.region[1] for need in needs if need.access == "gradient"}
        contributed = [tensor for tensor in self.backward.contributed(node) if tensor in wanted] if wanted else []
        values = [number for role, number in read if role == "value" or is_passing(role)]
        return PassUses(
            tuple(dict.fromkeys(read)),
            tuple(ref for form in self.of(kind, node) for ref in copies_read(form)),
            tuple(contributed),
            tuple(dict.fromkeys([need.region[1] for need in needs if need.region[0] == PART])),
            tuple(dict.fromkeys([*contributed, *values])),
        )

    def again(self, node: Node, kind: str) -> list[Node]:
        """The nodes of which a pass of a node reads what is computed again, in the graph's order."""
        found: dict[int, Node] = {}
        for form in self.of(kind, node):
            for need in form.requirements:
                if need.access == "read" and need.region[0] == "again":
                    writer = self._writer[need.region[1]]
                    found[writer.id] = writer
                elif need.access == "read" and need.region[0] == "saved" and node.id in self.recomputed:
                    found[node.id] = node
        return [found[number] for number in sorted(found)]

    def _forms(self, kind: str, node: Node) -> Iterator[LaunchForm]:
        if kind in {"forward", "again"}:
            form = forward_form(self._graph, node, training=self._training)
            if node.id not in self.recomputed:
                yield from (form,) if kind == "forward" else ()
            elif kind == "forward":  # what it saves is computed again: nobody reads this
                yield replace(form, requirements=tuple(map(_unread, form.requirements)))
            else:
                yield self._read_again(replace(form, part="again"))
            return
        for form in self.backward.of(node):
            if kind in {"backward", "weight_gradient" if form.part == "weight_gradient" else "input_gradient"}:
                yield self._read_again(form)

    def _read_again(self, form: LaunchForm) -> LaunchForm:
        """A launch that reads, and writes, what is computed again."""

        def turned(need: RequirementForm) -> RequirementForm:
            kind, number = need.region
            writer = self._writer.get(number) if kind == "value" else None
            if writer is None or (need.access == "read" and not self._near(form.node, writer, number)):
                return need
            return replace(need, region=("again", number))

        return replace(form, requirements=tuple([turned(need) for need in form.requirements]))


def _unread(need: RequirementForm) -> RequirementForm:
    """What a launch saves, where nothing reads it."""
    kind, number = need.region
    return replace(need, region=("unread", number)) if kind == "saved" else need
