"""The commands `maniple explain` and `maniple compare`: plans explained, and put side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.process.error import RequestError
from maniple.search_command import COSTS_HELP, MOMENTUM, as_predicted, predict
from maniple.table import align, shown_width

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.lanes.planned_captures import PlannedPiece
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--operator", help="The only operator to speak of.")
@click.option("--captures", is_flag=True, help="Say what GPUs capture of a step, and why the rest is not.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(plan: Path, operator: str | None, captures: bool, as_json: bool) -> int:  # noqa: FBT001
    """Say what PLAN does, and why; of one operator also what else it could be, and what speaks against that."""
    from maniple.operators.plan.plan import Plan

    loaded = Plan.load(plan)
    if captures:
        if operator is not None:
            raise RequestError("--captures: expected no --operator: it speaks of whole steps; leave one of them out")
        pieces = _captures(plan, loaded)
        said = [piece._asdict() for piece in pieces]
        click.echo(json.dumps({"plan": str(plan), "captures": said}) if as_json else _captures_told(pieces))
        return 0
    if operator is not None:
        loaded = _explain(loaded, operator)
    if not as_json:
        click.echo(loaded.explain(operator))
        return 0
    chosen = [name for name, _ in loaded.operators] if operator is None else [operator]
    reasons = dict(loaded.explanation)
    rows = {name: {**loaded.operator(name).to_json(), "reasons": dict(reasons.get(name, ()))} for name in chosen}
    click.echo(json.dumps({"plan": str(plan), "reasons": dict(reasons.get("", ())), "operators": rows}))
    return 0


@click.command()
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PLAN PLAN...")
@click.option("--costs", help=f"{COSTS_HELP}  [default: compare what the plans say]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(plans: tuple[Path, ...], costs: str | None, as_json: bool) -> int:  # noqa: FBT001
    """Put plans of one graph side by side: what each expects of a step, and the operators that they cut differently.

    With --costs every plan is simulated with them.
    """
    from maniple.operators.plan.plan import Plan
    from maniple.operators.plan.plan_table import fold_rows

    loaded = [Plan.load(path) for path in plans]
    for path, plan in zip(plans, loaded, strict=True):
        if plan.graph != loaded[0].graph:
            raise RequestError(f"{path}: this plan is for another graph than {plans[0]}; compare plans of one graph")
    if costs is not None:
        loaded = [_simulate(path, plan, costs) for path, plan in zip(plans, loaded, strict=True)]
    rows = {
        name: [f"{plan.operator(name).split()} on {len(set(plan.operator(name).processors))}" for plan in loaded]
        for name, _ in loaded[0].operators
    }
    differing = {name: cells for name, cells in rows.items() if len({p.operator(name) for p in loaded}) > 1}
    if as_json:
        described = [
            {"plan": str(path), "strategy": plan.strategy, **plan.predicted.to_json()}
            for path, plan in zip(plans, loaded, strict=True)
        ]
        click.echo(json.dumps({"plans": described, "operators": differing}))
        return 0
    table = [("", *(str(path) for path in plans)), ("strategy", *(plan.strategy for plan in loaded))]
    table += [
        (term, *("?" if value is None else f"{value:,.6g}" for value in (getattr(p.predicted, term) for p in loaded)))
        for term in ("step_s", "bytes", "memory_bytes", "bound_s")
    ]
    table += fold_rows([(name, *cells) for name, cells in differing.items()])
    click.echo(align(table, shown_width()))
    return 0


def _simulate(path: Path, plan: Plan, costs: str) -> Plan:
    """The plan as costs predict it, where it says which model and machine it is for."""
    from maniple.costs import costs_of_plan
    from maniple.operators.training.optimizer_text import optimizer_named
    from maniple.request import planned_for
    from maniple.search_loop import OPTIMIZER

    graph, machine = planned_for(path, plan)
    tasks = costs_of_plan(costs, graph, machine, plan)
    updated = dict(dict(plan.explanation).get("", ())).get(OPTIMIZER, MOMENTUM)
    found = predict(plan, graph, machine, tasks, optimizer_named(str(updated), graph))
    return replace(plan, predicted=as_predicted(found, None))


def _captures(path: Path, plan: Plan) -> list[PlannedPiece]:
    """What GPUs are given in a training step under a plan that says which model and machine it is for."""
    from maniple.operators.lowering.expansion import training_step
    from maniple.operators.lowering.step_program import FragmentCache, lower
    from maniple.operators.training.optimizer_text import optimizer_named
    from maniple.request import planned_for
    from maniple.runtime.lanes.planned_captures import planned_pieces
    from maniple.search_loop import OPTIMIZER

    graph, machine = planned_for(path, plan)
    updated = dict(dict(plan.explanation).get("", ())).get(OPTIMIZER, MOMENTUM)
    program = training_step(graph, plan, machine, optimizer_named(str(updated), graph))
    return list(planned_pieces(lower(program, FragmentCache(machine)), program.lasting))


def _captures_told(pieces: list[PlannedPiece]) -> str:
    """The same for people: of each GPU what is one launch from a step's second run on, and what is not."""
    if not pieces:
        return "no processor of the plan's machine is a GPU: nothing is captured"
    lines: list[str] = []
    for processor in dict.fromkeys(piece.processor for piece in pieces):
        own = [piece for piece in pieces if piece.processor == processor]
        graphs = [piece.tasks for piece in own if not piece.eager]
        submitted, tasks = len({piece.segment for piece in own}), sum(map(len, graphs))
        lines.append(
            f"GPU {processor}: {sum(len(piece.tasks) for piece in own)} tasks in {submitted} submissions; "
            f"{tasks} of them are captured, as {len(graphs)} graphs"
        )
        lines += [f"  captured: {tasks[0]} to {tasks[-1]}, {len(tasks)} tasks" for tasks in graphs]
        for why in dict.fromkeys(piece.eager for piece in own if piece.eager):
            eager = [piece.tasks[0] for piece in own if piece.eager == why]
            lines.append(f"  eager: {', '.join(eager)}: {why}")
    lines.append("what a device refuses besides when it captures a step, trainer.captures() says")
    return "\n".join(lines)


def _explain(plan: Plan, operator: str) -> Plan:
    """The plan with its reasons for an operator, where it says which model and machine it is for."""
    from maniple.request import machine_of, model_of
    from maniple.strategies.search.explanation import explain

    plan.operator(operator)
    said = dict(dict(plan.explanation).get("", ()))
    model, machine, batch = said.get("model"), said.get("machine"), said.get("batch")
    if not isinstance(model, str) or not isinstance(machine, str):
        return plan
    graph, found = model_of(model, batch if isinstance(batch, int) else None), machine_of(machine)
    told = _with_recomputation(explain(plan, graph, found, operator), graph, operator)
    return _with_chain(_with_views(told, graph, found, operator), graph, operator)


def _with_views(plan: Plan, graph: Graph, machine: Machine, operator: str) -> Plan:
    """The plan that also says whether an operator has no task, since its result is used where its operand lies."""
    from maniple.operators.lowering.expansion import elided_views
    from maniple.operators.training.descent import SGD

    reasons = dict(plan.explanation)
    if operator in elided_views(graph, plan, machine, SGD(lr=0.1)):
        reasons[operator] = (*reasons.get(operator, ()), ("task", "none: its result is used where its operand lies"))
    return replace(plan, explanation=tuple(reasons.items()))


def _with_chain(plan: Plan, graph: Graph, operator: str) -> Plan:
    """The plan that also says with which neighbours an operator is one where torch compiles, or why with none."""
    from maniple.operators.lowering.fusion.chained_graph import chain_of

    reasons = dict(plan.explanation)
    told = chain_of(graph, plan, operator)
    reasons[operator] = (*reasons.get(operator, ()), ("chain, where torch compiles", told))
    return replace(plan, explanation=tuple(reasons.items()))


def _with_recomputation(plan: Plan, graph: Graph, operator: str) -> Plan:
    """The plan that also says what an operator's backward computes again of its forward."""
    from maniple.operators.lowering.recomputation import recomputed  # which needs torch

    again = recomputed(graph, operator).get(operator)
    reasons = dict(plan.explanation)
    if again is not None:
        told = ", ".join(dict.fromkeys(again)) or "nothing"
        reasons[operator] = (*reasons.get(operator, ()), ("computed again in backward", told))
    return replace(plan, explanation=tuple(reasons.items()))
