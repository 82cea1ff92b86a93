"""The file form of a frontier: JSON in which plans share what they have in common.

configurations, homes    each different one once
plan                     what all plans agree in, as a plan's file has it, but operators and weights
points                   their figures, and by operator and weight the number of a configuration or home
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from maniple.operators.plan import plan_file
from maniple.operators.plan.plan import OperatorPlan, Plan, Predicted, WeightPlan
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.process.file_entry import Entry

__all__: list[str] = []

Value = TypeVar("Value")
Point = tuple[float, int, float, int, int, Plan]
"""The measures of a point, in order, and its plan."""
Figures = tuple[bool, float, tuple[str, ...], float | None, float | None, int]
"""The figures of the whole, in order."""

VERSION = 1
"""The version of the file that this code reads and writes."""
FIGURES = ("exact", "epsilon", "inexact", "time_correlation", "memory_correlation", "capacity_bytes")
SHARED = ("graph", "strategy", "semantics")
OWN = ("machine", "explanation", "predicted")
MEASURES = ("step_s", "peak_memory_bytes", "model_s", "model_bytes", "devices")


def text(figures: Mapping[str, object], points: Sequence[tuple[Mapping[str, object], Plan]]) -> str:
    """A frontier as the text of its file.

    Args:
        figures: those of the whole.
        points: of each point its measures, and its plan.
    """
    first = points[0][1]
    configurations: dict[OperatorPlan, int] = {}
    homes: dict[WeightPlan, int] = {}
    rows = []
    for measures, plan in points:
        whole = plan.to_json()
        rows.append(
            {
                **{key: measures[key] for key in MEASURES},
                **{key: whole[key] for key in OWN},
                "operators": [configurations.setdefault(c, len(configurations)) for _, c in plan.operators],
                "weights": [homes.setdefault(home, len(homes)) for _, home in plan.weights],
            }
        )
    whole = first.to_json()
    document = {
        "frontier": VERSION,
        **{key: whole[key] for key in SHARED},
        **{key: figures[key] for key in FIGURES},
        "operators": [name for name, _ in first.operators],
        "weights": [name for name, _ in first.weights],
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
    table = root.table(("frontier", *SHARED, *FIGURES, "operators", "weights", "configurations", "homes", "points"))
    operators, weights = (tuple(e.string() for e in table[key].elements()) for key in ("operators", "weights"))
    configurations = tuple(OperatorPlan.from_json(entry) for entry in table["configurations"].elements())
    homes = tuple(WeightPlan.from_json(entry) for entry in table["homes"].elements())
    shared = Plan(
        graph=table["graph"].string(),
        machine="",
        operators=(),
        weights=(),
        strategy=table["strategy"].string(),
        semantics=tuple((key, entry.string()) for key, entry in table["semantics"].items()),
    )
    points: list[Point] = []
    for entry in table["points"].elements():
        own = entry.table((*MEASURES, *OWN, "operators", "weights"))
        plan = replace(
            shared,
            machine=own["machine"].string(),
            operators=_named(own["operators"], operators, configurations),
            weights=_named(own["weights"], weights, homes),
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
        tuple(entry.string() for entry in table["inexact"].elements()),
        None if table["time_correlation"].is_null else table["time_correlation"].number(-1.0),
        None if table["memory_correlation"].is_null else table["memory_correlation"].number(-1.0),
        table["capacity_bytes"].integer(0),
    )


def _named(entry: Entry, names: Sequence[str], values: Sequence[Value]) -> tuple[tuple[str, Value], ...]:
    """Names with what the numbers of an entry stand for."""
    numbers = entry.elements()
    if len(numbers) != len(names):
        raise entry.problem(f"{len(names)} numbers")
    for number in numbers:
        if number.integer(0) >= len(values):
            raise number.problem(f"a number below {len(values)}")
    return tuple((name, values[number.integer(0)]) for name, number in zip(names, numbers, strict=True))
