"""The command `maniple search`: a plan that is found, or a frontier of plans."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click

from maniple.frontier_command import tell_frontier, until_first
from maniple.pipeline_request import INSIDE_HELP, MICRO_BATCHES_HELP, ORDER_HELP, ZERO_HELP, in_shares, kept_semantics
from maniple.table import align, shown_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from maniple.costs import NamedCosts
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan, Predicted, Term
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.search_loop import Watch
    from maniple.strategies.cost_model.cost_model import CostModel, Repeated
    from maniple.strategies.cost_model.measured import Measured
    from maniple.strategies.interface.strategy import AbstractStrategy, Progress
    from maniple.strategies.simulation.prediction import Prediction

__all__: list[str] = []

MOMENTUM = "momentum"
"""What updates the weights where nobody says."""
TRIED = "step_s of "
"""How the explanation of a plan begins that tells of several strategies' plans."""
REFRESH_S = 0.1
"""How often the live line is written anew."""
OPTIMIZER_HELP = "What updates the weights: sgd, momentum, adam, adamw, or muon."
COSTS_HELP = "What tasks take: analytic, measured (on this computer), or a file of measurements."


def _known(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """The name of an optimizer, if there is one of that name: before the model is imported."""
    from maniple.operators.training.optimizer_text import check_optimizer_name

    check_optimizer_name(name)
    return name


@click.command()
@click.argument("source", metavar="MODEL")
@click.option("--machine", "machine_name", required=True, help="Preset, such as cpu:4 or p100x16, or a TOML file.")
@click.option("--strategy", help="A strategy of `maniple list strategies`.  [default: soap; pareto for --objective]")
@click.option("--objective", default="time", show_default=True, help="time, memory, or pareto: a frontier of both.")
@click.option("--budget", type=float, help="Seconds to search.  [default: 10, unless --proposals is given]")
@click.option("--proposals", type=int, help="Changes to evaluate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Where all chance comes from.")
@click.option("--cores", type=int, help="Processes that search; the plan is the same.  [default: one for each core]")
@click.option("--batch", type=int, help="Samples of a step, over all processors.  [default: the model's own]")
@click.option("--costs", default="analytic", show_default=True, help=COSTS_HELP)
@click.option("--optimizer", "updated", default="momentum", show_default=True, callback=_known, help=OPTIMIZER_HELP)
@click.option("--semantics", multiple=True, metavar="KEY=VALUE", help="What may change results: precision=bf16.")
@click.option("--memory", help="What each memory holds, such as 16GiB.  [default: what the machine says]")
@click.option("--order", help=ORDER_HELP)
@click.option("--zero", type=int, help=ZERO_HELP)
@click.option("--micro-batches", type=int, help=MICRO_BATCHES_HELP)
@click.option("--inside", type=click.Path(path_type=Path), help=INSIDE_HELP)
@click.option("--space", multiple=True, help="What pareto is to choose besides: recompute, cube, stages.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Where to write the plan.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def search(
    source: str,
    machine_name: str,
    strategy: str | None,
    objective: str,
    budget: float | None,
    proposals: int | None,
    seed: int,
    cores: int | None,
    batch: int | None,
    costs: str,
    updated: str,
    semantics: tuple[str, ...],
    memory: str | None,
    order: str | None,
    micro_batches: int | None,
    zero: int | None,
    inside: Path | None,
    space: tuple[str, ...],
    output: Path | None,
    as_json: bool,  # noqa: FBT001  (click passes flags by name)
) -> int:
    """Search a plan for MODEL: a name of `maniple list models`, or file.py:callable."""
    from maniple.compile_beside import compile_beside
    from maniple.operators.plan.plan import Plan
    from maniple.request import amount, machine_of, semantics_of
    from maniple.search_loop import search as find

    machine = machine_of(machine_name, None if memory is None else amount("--memory", memory))
    strategy, budget = _defaults(strategy, objective, budget, proposals)
    with _live_line(shown=not as_json and sys.stderr.isatty()) as (shown, say):
        with compile_beside(say):
            graph = _import_graph(source, batch, costs, say)
            chosen = _load_strategy(strategy)
        stages, model_s = None if inside is None else Plan.load(inside), [0.0]
        changed, optimizer = kept_semantics(stages, semantics_of(semantics)), _optimizer(updated, graph)
        tasks = _clocked(costs, graph, changed, machine, (chosen, micro_batches), say)
        answer = find(
            graph,
            machine,
            strategy=strategy,
            objective=objective,
            budget=budget,
            proposals=proposals,
            seed=seed,
            cores=cores,
            costs=tasks,
            optimizer=optimizer,
            semantics=changed,
            order=order,
            micro_batches=micro_batches,
            inside=stages,
            space=space,
            watch=until_first(model_s, shown),
        )
    answer, spent, model = in_shares(answer, (graph, machine, optimizer), zero), tasks.since_s, tasks.latest
    where, told = _terms((source, machine_name, graph), costs, model, updated)
    if not isinstance(answer, Plan):
        return tell_frontier(answer.with_terms((*where, *told)), model_s[0], output, fits=bool(memory), as_json=as_json)
    return _tell(_with_terms(answer, where, told), (graph, machine, model, optimizer), spent, output, as_json=as_json)


def _terms(
    asked: tuple[str, str, Graph], costs: str, model: Measured | None, updated: str
) -> tuple[tuple[tuple[str, Term], ...], tuple[tuple[str, Term], ...]]:
    """What stands before and after a plan's own terms: what was asked for, and costs and optimizer if not the usual."""
    from maniple.search_loop import COSTS, OPTIMIZER

    source, machine, graph = asked
    told = ((COSTS, costs),) * (model is not None) + ((OPTIMIZER, updated),) * (updated != MOMENTUM)
    return (("model", source), ("machine", machine), ("batch", graph.batch)), told


def _clocked(
    costs: str,
    graph: Graph,
    semantics: Mapping[str, str],
    machine: Machine,
    asked: tuple[AbstractStrategy[Any], int | None],
    say: Callable[[str], None],
) -> _Clocked:
    """What tells what tasks of a graph under some semantics take, and says how long it has been at it."""
    from maniple.costs import NamedCosts, parts_of
    from maniple.operators.lowering.precision import apply_semantics

    (strategy, parts), searched = asked, apply_semantics(graph, semantics)
    return _Clocked(NamedCosts(costs, searched, machine, parts_of(strategy, searched, machine, parts)), say)


def _import_graph(source: str, batch: int | None, costs: str, say: Callable[[str], object]) -> Graph:
    """The model; where nothing of it is measured, without torch if it was imported before."""
    from maniple.costs import ANALYTIC
    from maniple.kept_graph import planning_graph
    from maniple.request import model_of

    say(f"importing {source}")
    return planning_graph(source, batch) if costs == ANALYTIC else model_of(source, batch)


def _tell(
    plan: Plan,
    problem: tuple[Graph, Machine, Measured | None, AbstractOptimizer | None],
    spent: float,
    output: Path | None,
    *,
    as_json: bool,
) -> int:
    """Print what was found and what it is predicted to take, and write the plan where that is asked."""
    graph, machine, model, optimizer = problem
    plan, found = _predicted(plan, graph, machine, model, optimizer)
    document = _document(plan, _data_parallel_s(plan, graph, machine, model, optimizer), spent, found)
    if output is not None:
        plan.save(output)
    click.echo(json.dumps(document) if as_json else _text(plan, document, found))
    return 0


def _with_terms(plan: Plan, before: Sequence[tuple[str, Term]], after: Sequence[tuple[str, Term]]) -> Plan:
    """The plan with more terms around those that its explanation has of all of it."""
    others = tuple((name, terms) for name, terms in plan.explanation if name)
    own = dict(plan.explanation).get("", ())
    return replace(plan, explanation=(("", (*before, *own, *after)), *others))


def _defaults(
    strategy: str | None, objective: str, budget: float | None, proposals: int | None
) -> tuple[str, float | None]:
    """The strategy and the budget that are meant where none is named."""
    if budget is None and proposals is None and objective == "time":
        budget = 10.0
    return strategy or ("soap" if objective == "time" else "pareto"), budget


def _load_strategy(name: str) -> AbstractStrategy[Any]:
    """A strategy, with what it calls compiled or loaded.

    Raises:
        RequestError: there is no such strategy.
    """
    from maniple.strategies.interface.checked_strategy import make_checked
    from maniple.strategies.interface.registry import STRATEGIES

    found = make_checked(name, STRATEGIES.lookup(name))
    found.load_compiled()
    return found


@contextmanager
def _live_line(*, shown: bool) -> Iterator[tuple[Watch | None, Callable[[str], None]]]:
    """A line that says how a search goes, while it goes, and what else is said."""
    if not shown:
        yield None, lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    last = [-REFRESH_S]
    with Live(Text("loading the simulator"), console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        from maniple.strategies.simulation.compilation import told  # imports the compiler: a second

        def say(text: str) -> None:
            live.update(Text(text), refresh=True)

        def watch(progress: Progress, elapsed_s: float) -> None:
            if elapsed_s - last[0] < REFRESH_S:
                return
            last[0] = elapsed_s
            best = "none yet" if progress.best_s is None else f"{progress.best_s * 1e3:.3f} ms"
            rate = progress.proposals / elapsed_s if elapsed_s else 0.0
            share = 100 * progress.accepted / progress.proposals if progress.proposals else 0.0
            line = f"{elapsed_s:5.1f} s  {progress.proposals} proposals ({rate:.0f}/s)  {share:.0f} % kept  best {best}"
            if progress.bound_s is not None:
                line += f"  bound {progress.bound_s * 1e3:.3f} ms"
            live.update(Text(line), refresh=True)

        with told(say):
            yield watch, say


@final
class _Clocked:
    """The costs of a search, and how long it has searched: measuring is not counted.

    Args:
        costs: what tasks take.
        say: is told what is done beside searching.
    """

    def __init__(self, costs: NamedCosts, say: Callable[[str], None]) -> None:
        self._costs, self._say = costs, say
        self._began_s = self._measuring_s = 0.0

    @property
    def timing(self) -> bool:
        """Whether tasks are timed here."""
        return self._costs.timing

    @property
    def latest(self) -> Measured | None:
        """What the plan was predicted with."""
        return self._costs.latest

    @property
    def since_s(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._began_s - self._measuring_s

    def survey(self, within_s: float = inf) -> Measured | None:
        """What to search with; the search begins."""
        found = self._costs.survey(within_s)
        self._began_s = time.perf_counter()
        return found

    def side_by_side(self, plans: Sequence[Plan], within_s: float = inf) -> Repeated | None:
        """What the tasks of some plans take, timed in turn."""
        self._say(f"timing the tasks of the {len(plans)} fastest plans side by side")
        began_s = time.perf_counter()
        try:
            return self._costs.side_by_side(plans, within_s)
        finally:
            self._measuring_s = time.perf_counter() - began_s


def predict(
    plan: Plan, graph: Graph, machine: Machine, costs: CostModel | None, optimizer: AbstractOptimizer | None
) -> Prediction:
    """What a step takes: whatever made the plan, one simulator says it."""
    from maniple.strategies.search.memory_fit import refuse_unfit
    from maniple.strategies.simulation.simulation import Simulation

    simulation = Simulation(graph, machine, plan, costs, optimizer)
    found = simulation.predict()
    refuse_unfit(plan, simulation, found.memory_bytes)
    return found


def _optimizer(name: str, graph: Graph) -> AbstractOptimizer | None:
    """The optimizer of a name; None of the one that searches have where nobody says."""
    from maniple.operators.training.optimizer_text import optimizer_named

    return None if name == MOMENTUM else optimizer_named(name, graph)


def _predicted(
    plan: Plan, graph: Graph, machine: Machine, costs: CostModel | None, optimizer: AbstractOptimizer | None
) -> tuple[Plan, Prediction]:
    """A plan with what a step takes."""
    from maniple.strategies.bound import lower_bound_s

    found = predict(plan, graph, machine, costs, optimizer)
    bound_s = None if costs else lower_bound_s(graph, machine, optimizer, plan.semantics)
    return replace(plan, predicted=as_predicted(found, bound_s)), found


def as_predicted(found: Prediction, bound_s: float | None) -> Predicted:
    from maniple.operators.plan.plan import Predicted

    return Predicted(found.step_ns / 1e9, max(found.memory_bytes), found.bytes, bound_s)


def _data_parallel_s(
    like: Plan, graph: Graph, machine: Machine, costs: CostModel | None, optimizer: AbstractOptimizer | None
) -> float:
    """What data parallelism takes under the same semantics."""
    from maniple.operators.plan.version_semantics import with_flush
    from maniple.strategies.interface.strategy import Problem
    from maniple.strategies.named.data_parallel import DataParallel
    from maniple.strategies.simulation.simulation import Simulation

    plan = DataParallel().plan(Problem(graph, machine, optimizer=optimizer))
    plan = replace(plan, semantics=with_flush(like.semantics))
    return Simulation(graph, machine, plan, costs, optimizer).makespan_ns / 1e9


def _document(plan: Plan, data_parallel_s: float, spent: float, found: Prediction) -> dict[str, object]:
    """What `--json` prints."""
    told = dict(dict(plan.explanation)[""])
    return {
        "strategy": plan.strategy,
        "model": told["model"],
        "machine": told["machine"],
        "step_s": plan.predicted.step_s,
        "data_parallel_step_s": data_parallel_s,
        "bytes": plan.predicted.bytes,
        "peak_memory_bytes": plan.predicted.memory_bytes,
        "lower_bound_s": plan.predicted.bound_s,
        "exact": bool(told.get("exact", False)),
        "search_s": spent,
        "proposals": told.get("proposals", 0),
        "seed": plan.seed,
        "sources": dict(found.sources),
        "plan": plan.to_json(),
    }


def _describe_bound(predicted: Predicted) -> str:
    if predicted.bound_s is None:
        return "no bound is known for measured costs"
    return f"no plan is faster than {predicted.bound_s * 1e3:.3f} ms"


def _text(plan: Plan, document: dict[str, object], found: Prediction) -> str:
    from maniple.operators.plan.plan_table import fold_rows

    step, common = float(str(document["step_s"])), float(str(document["data_parallel_step_s"]))
    tried = [(term.removeprefix(TRIED), value) for term, value in dict(plan.explanation)[""] if term.startswith(TRIED)]
    lines = [
        align([("operator", "degrees", "replicas", "processors"), *fold_rows(plan.short_table())], shown_width()),
        "",
        (
            f"step {step * 1e3:.3f} ms predicted, {common / step:.2f}x the speed of data parallelism "
            f"({common * 1e3:.3f} ms); {_describe_bound(plan.predicted)}"
        ),
        f"{document['bytes']:,} bytes moved a step; at most {document['peak_memory_bytes']:,} bytes in one memory",
        f"durations: {', '.join(f'{count} {source}' for source, count in found.sources)}",
        (
            f"{document['strategy']}{'' if plan.seed is None else f', seed {plan.seed}'}: "
            f"{document['proposals']} proposals in {float(str(document['search_s'])):.1f} s"
        ),
    ]
    if tried:
        told = [(name, f"{value * 1e3:.3f}" if isinstance(value, float) else "none that fits") for name, value in tried]
        lines += ["", align([("strategy", "ms"), *told])]
    return "\n".join(lines)
