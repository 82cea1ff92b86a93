"""A worker of a pool: the program of a process that takes legs of a search further for another, until that one ends.

    hears                                      says
                                               hello                    it has started
    problem, the graph, the machine, digests   ready, or refused        it stands at the first seed
    leg, round, number, most proposals, it     leg, round, number, it   it has come to its end, or to a stop
    stop                                                                nothing more, where it has no leg in hand

Started as `python -m maniple.worker`; hears on standard input and says on standard output. The end of its input,
however the other process ended, is its own end: it looks for it between proposals.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, cast

from maniple.operators.graph import graph_file
from maniple.operators.graph.graph import Graph
from maniple.pipe_codec import Inbox, send
from maniple.regions.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.compilation import compile_all
from maniple.strategies.soap.seeding import first_evaluation
from maniple.strategies.soap.work_item import unpacked

if TYPE_CHECKING:
    from maniple.strategies.soap.evaluation import Evaluation

__all__: list[str] = []


def main() -> None:
    """Serve until the input ends."""
    # What any library prints goes to standard error, not between the messages.
    said = os.dup(1)
    os.dup2(2, 1)
    inbox = Inbox(0)
    evaluation: Evaluation | None = None
    try:
        compile_all()
        send(said, "hello")
        while inbox.receive():
            for kind, *fields in inbox.messages():
                if kind == "problem":
                    evaluation = _evaluation(said, fields)
                elif kind == "leg" and evaluation is not None:
                    _advance(said, evaluation, fields)
    except BrokenPipeError:
        return


def _evaluation(said: int, fields: list[object]) -> Evaluation | None:
    """An evaluation of the problem, if both ends understand the same by it."""
    graph_data, machine_data, *digests = fields
    try:
        graph, machine = graph_file.from_json(graph_data, Graph), Machine.from_json(machine_data)
    except RequestError as error:
        send(said, "refused", str(error))
        return None
    if [graph.fingerprint(), machine.fingerprint()] != digests:
        send(said, "refused", "the graph and machine are others when they are read again")
        return None
    found = first_evaluation(Problem(graph, machine))
    send(said, "ready")
    return found


def _advance(said: int, evaluation: Evaluation, fields: list[object]) -> None:
    """Take a leg to its end, or until there is something to hear."""
    round_, number, most, plain = cast("tuple[int, int, int | None, list[object]]", fields)
    leg = unpacked(plain)
    while not leg.finished and (most is None or leg.proposals < most) and not select.select([0], [], [], 0)[0]:
        leg = leg.step(evaluation)
    send(said, "leg", round_, number, leg.packed())


if __name__ == "__main__":
    main()
