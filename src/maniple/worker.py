"""A worker of a pool: the program of a process that takes work items of a search further for another, until that ends.

    hears                                      says
                                               hello                     it has started
    strategy, its address, where to import     nothing, or refused       it has the strategy's class
    problem: graph, machine, ..., digests      ready, or refused         it has a workbench
    item, round, number, most proposals, it    item, round, number, it   it has come to its end, or to a stop
    stop                                                                 nothing more, where it has none in hand

Started as `python -m maniple.worker`; hears on standard input and says on standard output. The end of its input,
however the other process ended, is its own end: it looks for it between proposals.
"""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING, Any, cast, final

from maniple.operators.graph import graph_file
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.operators.training.optimizer_text import optimizer_of
from maniple.pipe_codec import Inbox, send
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.checked_strategy import make_checked
from maniple.strategies.interface.parallel_search import AbstractParallelStrategy, strategy_at
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.compilation import compile_all

if TYPE_CHECKING:
    from maniple.strategies.interface.parallel_search import Address

__all__: list[str] = []


def main() -> None:
    """Serve until the input ends."""
    # What any library prints goes to standard error, not between the messages.
    said = os.dup(1)
    os.dup2(2, 1)
    inbox, worker = Inbox(0), _Worker(said)
    try:
        compile_all()
        send(said, "hello")
        while inbox.receive():
            for kind, *fields in inbox.messages():
                try:
                    worker.hear(str(kind), fields)
                except RequestError as error:
                    send(said, "refused", str(error))
    except BrokenPipeError:
        return


@final
class _Worker:
    """What a worker has: a strategy, and a workbench for its problem.

    Args:
        said: the pipe that it says everything on.
    """

    def __init__(self, said: int) -> None:
        self._said = said
        self._strategy: AbstractParallelStrategy[Any] | None = None
        self._bench: Any = None

    def hear(self, kind: str, fields: list[object]) -> None:
        """Do what a message says.

        Raises:
            RequestError: the two ends do not understand the same by it.
        """
        if kind == "strategy":
            self._strategy = _strategy(*cast("tuple[list[str], list[str]]", fields))
        elif kind == "problem" and self._strategy is not None:
            self._bench = self._strategy.bench(_problem(*fields))
            send(self._said, "ready")
        elif kind == "item" and self._strategy is not None:
            self._advance(self._strategy, *cast("tuple[int, int, int | None, list[Any]]", fields))

    def _advance(
        self, strategy: AbstractParallelStrategy[Any], round_: int, number: int, most: int | None, plain: list[Any]
    ) -> None:
        """Take an item to its end, or until there is something to hear."""
        item = strategy.unpack(plain)
        while not item.finished and (most is None or item.proposals < most) and not select.select([0], [], [], 0)[0]:
            item = strategy.advance(item, self._bench)
        send(self._said, "item", round_, number, item.pack())


def _strategy(address: list[str], path: list[str]) -> AbstractParallelStrategy[Any]:
    """The strategy at an address, which the other process found with a path."""
    sys.path += [folder for folder in path if folder not in sys.path]
    found = make_checked(address[1], strategy_at(cast("Address", tuple(address))))
    if not isinstance(found, AbstractParallelStrategy):
        raise RequestError(f"{address[1]} has no work items here")
    found.load_compiled()
    return found


def _problem(
    graph_data: object, machine_data: object, seed: object, optimizer: object, inside: object, *digests: object
) -> Problem:
    """The problem, if both ends understand the same by it."""
    graph, machine = graph_file.from_json(graph_data, Graph), Machine.from_json(machine_data)
    if (graph.fingerprint(), machine.fingerprint()) != digests:
        raise RequestError("the graph and machine are others when they are read again")
    updates = optimizer_of(cast("list[Any]", optimizer))
    stages = None if inside is None else Plan.parse(str(inside))
    return Problem(graph, machine, int(str(seed)), optimizer=updates, inside=stages)


if __name__ == "__main__":
    main()
