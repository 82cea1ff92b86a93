"""The command `maniple frontier`, and what `maniple search --objective pareto` prints: its plans, as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.process.error import RequestError
from maniple.table import align, shown_width

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.search_loop import Watch
    from maniple.strategies.interface.plan_frontier import Frontier
    from maniple.strategies.interface.strategy import Progress

__all__: list[str] = []

GIB = 2**30


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FRONTIER...")
@click.option("--memory", help="Take the fastest of its plans that fits in so much of each device, such as 8GiB.")
@click.option("--devices", type=int, help="Look at plans that use at most so many devices.")
@click.option("--fewest", is_flag=True, help="Take a plan of the fewest devices on which one fits.")
@click.option("--knee", is_flag=True, help="Take the plan from which less memory costs most time.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw step time over memory into this file.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Where to write the plan that is taken.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def frontier(
    files: tuple[Path, ...],
    memory: str | None,
    devices: int | None,
    fewest: bool,  # noqa: FBT001  (click passes flags by name)
    knee: bool,  # noqa: FBT001
    plot: Path | None,
    output: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Ask FRONTIERs, found by `maniple search --objective pareto`, for plans; several of one graph are put together.

    Nothing is searched again. Without a question, the table of all plans is printed.
    """
    from maniple.request import amount
    from maniple.strategies.interface.plan_frontier import Frontier

    limit = None if memory is None else int(amount("--memory", memory))
    if devices is not None and devices < 1:
        raise RequestError(f"--devices: expected at least 1, got {devices}")
    if knee and (memory is not None or fewest):
        raise RequestError("--knee chooses a plan by itself; leave out --memory and --fewest")
    asks = knee or fewest or memory is not None or devices is not None
    if output is not None and not asks:
        raise RequestError("-o writes one plan: say which, with --memory, --devices, --fewest or --knee")
    whole = Frontier.load(files[0])
    for path in files[1:]:
        whole = _joined(path, whole, Frontier.load(path))
    some = whole if devices is None else whole.at(devices)
    if plot is not None:
        some.plot(plot)
    if not asks:
        click.echo(json.dumps(document(some, None)) if as_json else text(some))
        return 0
    plan = some.knee() if knee else some.fewest(limit) if fewest else some.best(limit)
    if output is not None:
        plan.save(output)
    click.echo(json.dumps(_describe(some, plan)) if as_json else _told(some, plan))
    return 0


def _joined(path: Path, whole: Frontier, other: Frontier) -> Frontier:
    try:
        return whole | other
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def until_first(seconds: list[float], shown: Watch | None) -> Watch:
    """A watch that keeps the seconds before the first proposal was evaluated, and tells another one."""

    def watch(progress: Progress, elapsed_s: float) -> None:
        if not progress.proposals:
            seconds[0] = elapsed_s
        if shown is not None:
            shown(progress, elapsed_s)

    return watch


def tell_frontier(found: Frontier, search_s: float, output: Path | None, *, fits: bool, as_json: bool) -> int:
    """Print a frontier, and write it where that is asked; where a plan must fit, refuse one without any that does."""
    if fits:
        found.best()
    if output is not None:
        found.save(output)
    click.echo(json.dumps(document(found, search_s)) if as_json else text(found))
    return 0


def document(found: Frontier, search_s: float | None) -> dict[str, object]:
    """What `--json` prints of a frontier; `exact` and `epsilon` are of the frontier of the model.

    Args:
        found: the frontier.
        search_s: the seconds until the frontier of the model was known, where it was searched.
    """
    return {
        "points": [point.to_json() for point in found],
        "exact": found.exact,
        "epsilon": found.epsilon,
        "model_points": found.model_points,
        "simulated": found.simulated,
        "inexact": list(found.inexact),
        "gap": found.gap,
        "time_correlation": found.time_correlation,
        "memory_correlation": found.memory_correlation,
        **({} if search_s is None else {"search_s": search_s}),
    }


def text(found: Frontier) -> str:
    """A frontier as a table."""
    rows = [("devices", "step ms", "memory GiB", "model ms", "model GiB")]
    rows += [
        (str(devices), f"{1e3 * step:.3f}", f"{memory / GIB:.3f}", f"{1e3 * model:.3f}", f"{size / GIB:.3f}")
        for devices, step, memory, model, size in found.table()
    ]
    proved = f"no plan of the space is better than the model's points by more than {100 * found.epsilon:.3g} % there"
    if found.inexact:
        proved = f"inexact: operators {', '.join(found.inexact)}"
        if found.gap is not None:
            proved += f"; no plan of the space is better than the model's points by more than {100 * found.gap:.3g} %"
    elif not found.exact:
        proved = "the search ended before all points were simulated"
    return "\n".join(
        [
            align(rows, shown_width()),
            "",
            (
                f"{len(found)} plans, the best of {found.simulated} simulated of {found.model_points} points of the "
                "additive model's frontier"
            ),
            proved,
            (
                f"model and simulation rank alike: time {_rank(found.time_correlation)}, memory "
                f"{_rank(found.memory_correlation)} (Kendall's tau)"
            ),
        ]
    )


def _rank(correlation: float | None) -> str:
    return "of one plan" if correlation is None else f"{correlation:.2f}"


def _describe(some: Frontier, plan: Plan) -> dict[str, object]:
    point = next(point for point in some if point.plan is plan)
    return point.to_json()


def _told(some: Frontier, plan: Plan) -> str:
    from maniple.operators.plan.plan_table import fold_rows

    point = next(point for point in some if point.plan is plan)
    return "\n".join(
        [
            align([("operator", "degrees", "replicas", "processors"), *fold_rows(plan.short_table())], shown_width()),
            "",
            (
                f"step {1e3 * point.step_s:.3f} ms predicted on {point.devices} devices; at most "
                f"{point.peak_memory_bytes:,} bytes in one memory"
            ),
        ]
    )
