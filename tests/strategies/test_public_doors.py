"""Strategies that use what any package may use: `exhaustive`, and the pipelines of segmentation and dnn_partitioning.

What they import of other rooms is public in `mp.plugins`, but for the exceptions, each with its reason.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import maniple as mp

STRATEGIES = Path(__file__).resolve().parents[2] / "strategies"

TABLES = "its bounds and fragments are the simulator's own tables, so that a plan is timed as a simulation times it"
RIVALS = "plans without a pipeline, beside which finalists are simulated; a package would look them up by name"
NUMBER = "a number, or the name of a type"
EXCEPTIONS = {
    ("exhaustive",): {
        "optcnn.operator_movement": TABLES,
        "optcnn.placed_operators": TABLES,
        "simulation.operator_placement": TABLES,
        "simulation.plan_free_step": TABLES,
        "simulation.launch_table": TABLES,
        "simulation.region_cache": TABLES,
        "simulation.simulation.TASKS": TABLES,
        "timing.tables": TABLES,
        "soap.evaluation.NS": NUMBER,
        "soap.evaluation.UNFIT": NUMBER,
        "soap.move.Choices": NUMBER,
        "soap.seeding.SEEDS": "three strategies, which a package would look up by name",
    },
    ("pipeline", "dnn_partitioning", "segmentation"): {
        "bound.NS": NUMBER,
        "bound.accumulated_step": "stages are cut by what a step of micro-batches launches, as the runtime lowers it",
        "optcnn.optcnn.OptCNN": RIVALS,
        "soap.seeding.all_seeds": RIVALS,
        "search.memory_fit": "finalists that do not fit are refused as every search refuses plans",
        "simulation.compilation.compile_all": "what decides between finalists is compiled before a budget begins",
        "simulation.region_cache.RegionCache": "finalists of one graph share what was analysed",
    },
}


def private(family: tuple[str, ...]) -> set[str]:
    """What modules of some rooms import of other rooms, `room.module.name`, that `mp.plugins` has not."""
    found = set()
    for path in (path for room in family for path in (STRATEGIES / room).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("maniple.strategies."):
                continue
            place = str(node.module).removeprefix("maniple.strategies.")
            names = {alias.name.removeprefix("Abstract"): alias.name for alias in node.names}
            if place.split(".")[0] not in family:
                found |= {f"{place}.{own}" for public, own in names.items() if public not in mp.plugins.__all__}
    return found


@pytest.mark.parametrize("family", EXCEPTIONS, ids="_".join)
def test_what_is_private_is_an_exception_and_each_exception_is_needed(family: tuple[str, ...]) -> None:
    found, listed = private(family), EXCEPTIONS[family]
    assert {name for name in found if name not in listed and name.rpartition(".")[0] not in listed} == set()
    assert {
        place for place in listed if not any(name == place or name.startswith(f"{place}.") for name in found)
    } == set()
