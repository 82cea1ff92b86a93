"""What a command asks of the pipeline of a plan: the order of its stages, by name or from a file, and micro-batches."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.interface.plan_frontier import Frontier
    from maniple.strategies.interface.strategy import AbstractStrategy

__all__: list[str] = []

Turns = tuple[str | None, int | None]
"""An order and a number of micro-batches, as far as they are asked for."""

ORDER_HELP = "How the stages take turns: gpipe, 1f1b, another name, or a CSV of actions.  [default: the strategy's]"
INSIDE_HELP = "A plan file, whose stages are kept: operators change within the processors of their stage."
ZERO_HELP = "Homes of weights by a stage of ZeRO, 0 to 3.  [default: the strategy's]"
MICRO_BATCHES_HELP = "Into how many parts the samples of a step are cut.  [default: the strategy's]"


def asked_turns(order: str | None, micro_batches: int | None) -> tuple[str | None, int | None]:
    """The order that is asked for, by name or as text, and the number of micro-batches, as far as they are said.

    Args:
        order: the name of an order, its text, or a file of one.
        micro_batches: how many; None: the file's.

    Raises:
        RequestError: the file cannot be read, or has no order.
    """
    from maniple.operators.pipeline_order.named_order import ORDERS
    from maniple.operators.pipeline_order.order_text import parse, to_text

    if order is None or order in ORDERS or not Path(order).suffix:
        return order, micro_batches
    given = parse(_text(order), order)
    return to_text(given), given.micro_batches if micro_batches is None else micro_batches


@contextmanager
def naming_file(order: str | None) -> Iterator[None]:
    """A stretch in which lanes that wait for each other are told with the file that they come from, if they do.

    Args:
        order: what was asked for: a name, text, a file, or nothing.

    Raises:
        RequestError: the lanes of the file wait for each other.
    """
    from maniple.operators.pipeline_order.lockstep import CircleError

    try:
        yield
    except CircleError as error:
        if order is None or not Path(order).suffix:
            raise
        raise RequestError(f"{order}: {error}") from error


def in_turn(plan: Plan, graph: Graph, machine: Machine, order: str | None, micro_batches: int | None) -> Plan:
    """The plan whose stages take turns as is asked; one without stages accumulates gradients over the micro-batches.

    Args:
        plan: the plan.
        graph: its graph.
        machine: its machine.
        order: the name of an order, or a file of one; None: the plan's, or 1f1b.
        micro_batches: how many; None: the file's, or the plan's.

    Raises:
        RequestError: the order is none, or not one of the plan's stages, or nothing says how many micro-batches.
    """
    if order is None and micro_batches is None:
        return plan
    from maniple.operators.lowering.script import check_turns

    own, (asked, count) = plan.pipeline, asked_turns(order, micro_batches)
    count = own.micro_batches if count is None and own is not None else count
    turns = asked or (own.order if own is not None else "1f1b")
    if count is None:
        raise RequestError("--order: expected --micro-batches too, for the strategy's plan has no pipeline")
    made = plan.with_pipeline(order=turns, micro_batches=count)
    made.validate(graph, machine)
    check_turns(graph, made)
    return made


def kept_semantics(inside: Plan | None, semantics: Mapping[str, str] | None) -> dict[str, str]:
    """What a search changes of results by intent; inside the stages of a plan, what that plan does.

    Raises:
        RequestError: something else is asked for.
    """
    if inside is None:
        return dict(semantics or {})
    own = dict(inside.semantics)
    if semantics and dict(semantics) != own:
        raise RequestError(
            f"semantics: expected those of the plan inside whose stages is searched, {own or 'none'}, got "
            f"{dict(semantics)}; leave them out"
        )
    return own


def kept_stages(
    inside: Plan, graphs: tuple[Graph, Graph], machine: Machine, turns: Turns, strategy: AbstractStrategy[Any]
) -> Plan:
    """The plan inside whose stages a strategy is to search.

    Args:
        inside: the plan that was given.
        graphs: its graph, and that which runs under its semantics.
        machine: its machine.
        turns: the order and the number of micro-batches that are asked for, if they are.
        strategy: the strategy.

    Raises:
        RequestError: the strategy cannot, or the plan is not one for the graph and machine.
    """
    if not strategy.inside_stages:
        raise RequestError(
            f"inside: strategy {strategy.name!r} cannot keep the stages of a plan; ask 'soap' or 'hill_climb'"
        )
    inside = in_turn(inside, graphs[0], machine, *turns)
    inside.validate(graphs[0], machine)
    return replace(inside, graph=graphs[1].fingerprint(), semantics=())


def refuse_turns(order: str | None, micro_batches: int | None) -> None:
    """Refuse turns of a frontier's plans.

    Raises:
        RequestError: an order or a number of micro-batches was asked for.
    """
    if order is not None or micro_batches is not None:
        raise RequestError("--order, --micro-batches: expected a search of one plan, and a frontier has several")


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"--order: {file} cannot be read ({error}); give a name or a CSV of actions") from error


def in_shares(
    answer: Plan | Frontier, made: tuple[Graph, Machine, AbstractOptimizer | None], zero: int | None
) -> Plan | Frontier:
    """What was found, with homes by a stage of ZeRO where one is asked for.

    Args:
        answer: what was found.
        made: the graph and the machine, and what will update the weights.
        zero: the stage.

    Raises:
        RequestError: there is no such stage, or a frontier was found.
    """
    from maniple.operators.plan.plan import Plan

    if zero is not None and not isinstance(answer, Plan):
        raise RequestError("--zero: expected a search of one plan, and a frontier has several")
    if zero is None or not isinstance(answer, Plan):
        return answer
    graph, machine, optimizer = made
    found = answer.with_zero(zero, graph, machine)
    return found if optimizer is None else found.for_optimizer(optimizer, graph, machine)
