"""What backward computes again of forward: counted, model by model, as docs/reference/operators.md says it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from maniple.models import model
from maniple.operators.lowering.recomputation import recomputed
from maniple.zoo.catalogue import ENTRIES

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "operators.md"
DRAWN = "all: it draws random numbers"
FOUND = {
    "gpt": {"scaled_dot_product_attention": {DRAWN}},
    "transformer": {"scaled_dot_product_attention": {DRAWN}},
    "rnnlm": {"recurrent": {"aten.new_zeros.default", "aten.clone.default", "aten.mkldnn_rnn_layer.default"}},
    "nmt": {
        "recurrent": {"aten.new_zeros.default", "aten.clone.default", "aten.mkldnn_rnn_layer.default"},
        "aten": {"aten.tanh.default"},
    },
    "resnet101": {"batch_norm": {"aten.clone.default"}},
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_computed_again_is_counted_and_written_down(name: str) -> None:
    graph = model(name, 4, **ENTRIES[name].reduced)
    found = recomputed(graph)
    calls: dict[str, set[str]] = {}
    for operator, again in found.items():
        calls.setdefault(graph.node(operator).operator.name, set()).update(again)
    calls = {operator: again for operator, again in calls.items() if again}
    if not torch.backends.mkldnn.is_available():  # then torch computes a recurrent layer step by step
        calls.pop("recurrent", None)
        assert calls == {key: again for key, again in FOUND[name].items() if key != "recurrent"}
        return
    assert calls == FOUND[name]
    kinds = Counter(graph.node(operator).operator.name for operator, again in found.items() if again)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    assert f"| {name} | {len(found)} | {sum(kinds.values())} | {told} |" in DOCS.read_text(encoding="utf-8")
