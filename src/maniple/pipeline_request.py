"""What a command asks of a plan that was found: the order of its stages, micro-batches, the homes of its weights."""

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
ZERO_HELP = "Homes of weights by a stage of ZeRO, 0 to 3.  [default: the strategy's]"
MICRO_BATCHES_HELP = "Into how many parts the samples of a step are cut.  [default: the strategy's]"


def in_turn(
    plan: Plan,
    graph: Graph,
    machine: Machine,
    order: str | None,
    micro_batches: int | None,
    zero: int | None = None,
) -> Plan:
    """The plan whose stages take turns as is asked; one without stages accumulates gradients over the micro-batches.

    Args:
        plan: the plan.
        graph: its graph.
        machine: its machine.
        order: the name of an order, or a file of one; None: the plan's, or 1f1b.
        micro_batches: how many; None: the file's, or the plan's.
        zero: the stage of ZeRO whose homes the weights get; None: the plan's homes.

    Raises:
        RequestError: there is no such stage of ZeRO, or the order is none, or not one of the plan's stages, or nothing
            says how many micro-batches.
    """
    plan = plan if zero is None else plan.with_zero(zero, graph, machine)
    if order is None and micro_batches is None:
        return plan
    from maniple.operators.lowering.script import check_turns
    from maniple.operators.pipeline_order.named_order import ORDERS
    from maniple.operators.pipeline_order.order_text import parse, to_text

    own = plan.pipeline
    count = micro_batches if micro_batches is not None or own is None else own.micro_batches
    turns = order or (own.order if own is not None else "1f1b")
    if turns not in ORDERS and Path(turns).suffix:
        given = parse(_text(turns), turns)
        turns, count = to_text(given), given.micro_batches if micro_batches is None else micro_batches
    if count is None:
        raise RequestError("--order: expected --micro-batches too, for the strategy's plan has no pipeline")
    made = plan.with_pipeline(order=turns, micro_batches=count)
    made.validate(graph, machine)
    check_turns(graph, made)
    return made


def refuse_turns(order: str | None, micro_batches: int | None, zero: int | None = None) -> None:
    """Refuse turns, and homes, of a frontier's plans.

    Raises:
        RequestError: an order or a number of micro-batches was asked for.
    """
    if order is not None or micro_batches is not None or zero is not None:
        raise RequestError(
            "--order, --micro-batches, --zero: expected a search of one plan, and a frontier has several"
        )


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"--order: {file} cannot be read ({error}); give a name or a CSV of actions") from error
