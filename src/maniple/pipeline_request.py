"""What a command asks of the pipeline of a plan: the order of its stages, by name or from a file, and micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

ORDER_HELP = "How the stages take turns: gpipe, 1f1b, another name, or a CSV of actions.  [default: the strategy's]"
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
    from maniple.operators.lowering.expansion import check_turns

    own, (asked, count) = plan.pipeline, asked_turns(order, micro_batches)
    count = own.micro_batches if count is None and own is not None else count
    turns = asked or (own.order if own is not None else "1f1b")
    if count is None:
        raise RequestError("--order: expected --micro-batches too, for the strategy's plan has no pipeline")
    made = plan.with_pipeline(order=turns, micro_batches=count)
    made.validate(graph, machine)
    check_turns(graph, made)
    return made


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
