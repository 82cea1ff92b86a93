"""What backward computes again of forward: counted, model by model, as docs/reference/operators.md says it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from maniple.models import model
from maniple.operators.lowering.recomputation import recomputed
from maniple.zoo.catalogue import ENTRIES

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "operators.md"
FOUND: dict[str, dict[str, set[str]]] = {name: {} for name in ("gpt", "transformer", "rnnlm", "nmt", "resnet101")}
"""By model and kind of operator what torch's functions compute again; of these models: nothing."""


@pytest.mark.parametrize("name", FOUND)
def test_what_is_computed_again_is_counted_and_written_down(name: str) -> None:
    graph = model(name, 4, **ENTRIES[name].reduced)
    found = recomputed(graph)
    calls: dict[str, set[str]] = {}
    for operator, again in found.items():
        calls.setdefault(graph.node(operator).operator.name, set()).update(again)
    calls = {operator: again for operator, again in calls.items() if again}
    assert calls == FOUND[name]
    kinds = Counter(graph.node(operator).operator.name for operator, again in found.items() if again)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    assert f"| {name} | {len(found)} | {sum(kinds.values())} | {told or 'none'} |" in DOCS.read_text(encoding="utf-8")
