"""How a trainer with a frontier picks a plan that fits, and another one when memory or processors change.

    the machine says          points of the frontier, fastest first      the trainer
    8 GiB, 2 processors       10 ms, 6 GiB   14 ms, 3 GiB                is made with the first
    4 GiB                     10 ms, 6 GiB   14 ms, 3 GiB                goes on under the second, in place
    8 GiB                                                                and under the first again

What fits, the runtime says: a point whose figure fits is lowered, and the first that the memories of this machine hold,
with what its bodies take besides, is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.process.error import RequestError, RoomError
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.in_turn import in_turn
from maniple.strategies.interface.plan_frontier import Frontier
from maniple.trainer_adoption import TrainerAdoption

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine
    from maniple.trainer_adoption import Answer

    OnChange = Callable[[Machine], Plan | Frontier | None]

__all__: list[str] = []


@dataclass(slots=True, eq=False)
class Lookout:
    """Who looks at the machine of a training.

    Args:
        look: gives the machine as it is, the same on every rank.
        tell: is told of another one, and says how it goes on; None takes the frontier.
        every: so many steps apart.
        seen: the machine that was there last.
    """

    look: Callable[[], Machine]
    tell: OnChange | None
    every: int
    seen: Machine


class TrainerAdaptation(TrainerAdoption):
    """What a trainer does with a frontier; all ranks do the same."""

    frontier: Frontier | None = None
    """What it picks from, where it was given one."""
    _lookout: Lookout | None = None

    @in_turn
    def on_change(
        self, tell: OnChange | None = None, *, look: Callable[[], Machine] | None = None, every: int = 1
    ) -> None:
        """Look at the machine before steps from now on, and go on under another plan where it has changed.

        The memory of a host changes with its container's limit, which is read anew. What else changes a machine, such
        as a scheduler that takes processors away, ``look`` knows.

        Args:
            tell: is told the machine as it is now and gives the plan or the frontier to go on with, None to stay;
                default the trainer's own frontier.
            look: gives the machine as it is, the same on every rank: processors 0 to n - 1 of this world with the
                memories that they have; default what the ranks find on their hosts.
            every: so many steps apart.

        Raises:
            RequestError: there is neither a frontier nor anyone to tell, or a number below 1.
        """
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise RequestError(f"on_change: every: expected an integer >= 1, got {every!r}")
        if tell is None and self.frontier is None:
            raise RequestError(
                "on_change: this trainer was made of one plan, so there is none to go to; make it of a frontier "
                "(search with objective='pareto'), or pass what gives a plan for a machine"
            )
        see = look or (lambda: host_machine(self._world, self.plan.processors_used()))
        self._lookout = Lookout(see, tell, every, see())

    def _attend(self, step: int) -> None:
        """Look at the machine where it is time to, and go on under another plan where that is called for."""
        lookout = self._lookout
        if lookout is None or step % lookout.every:
            return
        machine = lookout.look()
        if machine == lookout.seen:
            return
        lookout.seen = machine
        found = self.frontier if lookout.tell is None else lookout.tell(machine)
        if found is None:
            return
        limit = min(memory.capacity_bytes for memory in machine.memories)
        limit = limit if self._asked is None else min(limit, self._asked)
        if isinstance(found, Frontier):
            self._first_that_fits(found, limit, self._adopt, len(machine.processors))
        else:
            self._adopt(found, limit)

    def _first_that_fits(
        self,
        frontier: Frontier,
        limit: int | None,
        begin: Callable[[Plan, int | None], Answer],
        processors: int | None = None,
    ) -> Answer:
        """What the first plan of a frontier gives that fits, the fastest tried first.

        Args:
            frontier: of this graph.
            limit: the most bytes of each memory.
            begin: begins with a plan, or refuses it for want of room.
            processors: how many of the world's, the first ones, there are; default all.
        """
        if not isinstance(frontier, Frontier):
            raise RequestError(
                f"expected a plan or a frontier, such as mp.Plan.load(path) gives, got {type(frontier).__name__}"
            )
        used = {processor for point in frontier for processor in point.plan.processors_used()}
        machine = host_machine(self._world, tuple(sorted(used))).capped(limit)
        there = len(machine.processors) if processors is None else processors
        plans, refused = frontier.fitting(min(m.capacity_bytes for m in machine.memories), there), None
        for plan in plans:
            try:
                answer = begin(plan, limit)
            except RoomError as error:
                if self._broken:
                    raise
                refused = error
                continue
            self.frontier = frontier
            return answer
        raise RoomError(
            f"of {len(plans)} plans whose predicted memory fits, this machine holds none with what its tasks take "
            f"besides; of the leanest: {refused}"
        )
