"""The file form of a frontier: JSON in which plans share what they have in common.

graph                    of all plans
names                    each different row of names of operators, or of weights, once
configurations, homes    each different one once
points                   their figures, what each plan has of its own, as a plan's file has it, and of its operators and
                         weights the number of the row of names, and by name the number of a configuration or home
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from maniple.operators.plan import plan_file
from maniple.operators.plan.plan import OperatorPlan, PipelinePlan, Plan, Predicted, StagePlan, WeightPlan
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.process.file_entry import Entry

__all__: list[str] = []

Value = TypeVar("Value")
Point = tuple[float, int, float, int, int, Plan]
"""The measures of a point, in order, and its plan."""
Figures = tuple[bool, float, int, int, tuple[str, ...], float | None, float | None, int, float | None]
"""The figures of the whole, in order."""

VERSION = 4
"""The version of the file that this code reads and writes."""
FIGURES = (
    "exact",
    "epsilon",
    "model_points",
    "simulated",
    "inexact",
    "time_correlation",
    "memory_correlation",
    "capacity_bytes",
    "gap",
)
OWN = ("machine", "strategy", "seed", "semantics", "stages", "pipeline", "explanation", "predicted")
MEASURES = ("step_s", "peak_memory_bytes", "model_s", "model_bytes", "devices")


def text(figures: Mapping[str, object], points: Sequence[tuple[Mapping[str, object], Plan]]) -> str:
    """A frontier as the text of its file.

    Args:
        figures: those of the whole.
        points: of each point its measures, and its plan.
    """
    names: dict[tuple[str, ...], int] = {}
    configurations: dict[OperatorPlan, int] = {}
    homes: dict[WeightPlan, int] = {}
    rows = []
    for measures, plan in points:
        whole = plan.to_json()
        rows.append(
            {
                **{key: measures[key] for key in MEASURES},
                **{key: whole[key] for key in OWN},
                "operators": _numbered(plan.operators, names, configurations),
                "weights": _numbered(plan.weights, names, homes),
            }
        )
    document = {
        "frontier": VERSION,
        "graph": points[0][1].graph,
        **{key: figures[key] for key in FIGURES},
        "names": [list(row) for row in names],
        "configurations": [configuration.to_json() for configuration in configurations],
        "homes": [home.to_json() for home in homes],
        "points": rows,
    }
    return plan_file.text(document)


def parts(root: Entry) -> tuple[tuple[Point, ...], Figures]:
    """What a frontier is made of, from the entries of its file.

    Raises:
        RequestError: the file is none of a frontier, of another version, or an entry is wrong.
    """
    version = dict(root.items()).get("frontier")
    if version is None:
        raise RequestError(f"{root.file}: expected the file of a frontier, which `maniple search ... -o` writes")
    if version.integer(1) != VERSION:
        raise RequestError(
            f"{root.file}: frontier: expected version {VERSION}, got {version.integer(1)}; this frontier was written "
            "by another maniple: use that one, or search again"
        )
    table = root.table(("frontier", "graph", *FIGURES, "names", "configurations", "homes", "points"))
    names = tuple(tuple(name.string() for name in row.elements()) for row in table["names"].elements())
    configurations = tuple(OperatorPlan.from_json(entry) for entry in table["configurations"].elements())
    homes = tuple(WeightPlan.from_json(entry) for entry in table["homes"].elements())
    points: list[Point] = []
    for entry in table["points"].elements():
        own = entry.table((*MEASURES, *OWN, "operators", "weights"))
        plan = Plan(
            graph=table["graph"].string(),
            machine=own["machine"].string(),
            operators=_named(own["operators"], names, configurations),
            weights=_named(own["weights"], names, homes),
            strategy=own["strategy"].string(),
            seed=None if own["seed"].is_null else own["seed"].integer(0),
            semantics=tuple((key, entry.string()) for key, entry in own["semantics"].items()),
            stages=tuple(StagePlan.from_json(entry) for entry in own["stages"].elements()),
            pipeline=None if own["pipeline"].is_null else PipelinePlan.from_json(own["pipeline"]),
            explanation=plan_file.explanation(own["explanation"]),
            predicted=Predicted.from_json(own["predicted"]),
        )
        points.append(
            (
                own["step_s"].number(0.0),
                own["peak_memory_bytes"].integer(0),
                own["model_s"].number(0.0),
                own["model_bytes"].integer(0),
                own["devices"].integer(1),
                plan,
            )
        )
    if not points:
        raise table["points"].problem("at least one point")
    return tuple(points), (
        table["exact"].boolean(),
        table["epsilon"].number(0.0),
        table["model_points"].integer(1),
        table["simulated"].integer(1),
        tuple(entry.string() for entry in table["inexact"].elements()),
        None if table["time_correlation"].is_null else table["time_correlation"].number(-1.0),
        None if table["memory_correlation"].is_null else table["memory_correlation"].number(-1.0),
        table["capacity_bytes"].integer(0),
        None if table["gap"].is_null else table["gap"].number(0.0),
    )


def _numbered(
    pairs: Sequence[tuple[str, Value]], names: dict[tuple[str, ...], int], values: dict[Value, int]
) -> list[int]:
    """The number of a row of names, and of what each name has; what is new gets the next number."""
    row = names.setdefault(tuple(name for name, _ in pairs), len(names))
    return [row, *(values.setdefault(value, len(values)) for _, value in pairs)]


def _named(entry: Entry, names: Sequence[Sequence[str]], values: Sequence[Value]) -> tuple[tuple[str, Value], ...]:
    """The names of a row with what the numbers of an entry stand for."""
    row, *numbers = entry.elements() or [entry]
    own = _numbered_by(row, names)
    if len(numbers) != len(own):
        raise entry.problem(f"{1 + len(own)} numbers")
    return tuple((name, _numbered_by(number, values)) for name, number in zip(own, numbers, strict=True))


def _numbered_by(entry: Entry, values: Sequence[Value]) -> Value:
    """The value whose number an entry is."""
    number = entry.integer(0)
    if number >= len(values):
        raise entry.problem(f"a number below {len(values)}")
    return values[number]
