"""Home files: what all checkpoints of a trainer share for as long as its homes stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.checkpoint import files_of
from maniple.runtime.storage.kept_copies import KeptCopies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.storage.block_file import Block
    from maniple.runtime.storage.memory import Memory

__all__: list[str] = []


@final
class HomeFiles:
    """What of a checkpoint follows from the graph, the plan and the homes; and the memory that homes are copied to.

    Args:
        graph: the graph.
        plan: where its weights live.
        weights: parameters and buffers by name, with their homes.
    """

    def __init__(self, graph: Graph, plan: Plan, weights: Mapping[str, Weight]) -> None:
        self._weights = weights
        self._copies: KeptCopies | None = None
        self.fingerprint, self.plan, self.files = graph.fingerprint(), plan.to_json(), files_of(weights)

    def copy(self, memories: Mapping[int, Memory]) -> Callable[[Block], torch.Tensor]:
        """Copy what lives with a rank, while no task uses it, into memory that is kept for the next time.

        Args:
            memories: the rank's.

        Returns:
            What gives the copy of a block; it is another one after the next call.
        """
        if self._copies is None:
            regions = {region.name: region for weight in self._weights.values() for region in weight.regions}
            held = {
                memories[each.memory]: [(regions[block.name], block.rect) for block in each.blocks]
                for each in self.files
                if each.memory in memories
            }
            self._copies = KeptCopies(held)
        copies = self._copies
        copies.renew()
        return lambda block: copies.of(block.name, block.rect)
