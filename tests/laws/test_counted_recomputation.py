"""What imported modules compute again in backward: counted, and written down in docs/reference/operators.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyday_modules import MODULES

from maniple.operators.lowering.recomputation import recomputed

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "operators.md"
DRAWN = "all: it draws random numbers"
FOUND: dict[str, dict[str, set[str]]] = {
    "unet": {"drop": {DRAWN}},
    "mixture": {"topk": {"topk"}},
    "unrolled": {
        **{f"plain_{step}": {"addmm", "add_", "tanh"} for step in (1, 2, 3)},
        "nll_loss_nd": {"nll_loss_forward"},
    },
    "patches": {
        "linalg_vector_norm": {"linalg_vector_norm"},
        "linalg_vector_norm_1": {"linalg_vector_norm"},
        "einsum": {"clone"},
        "einsum_1": {"clone"},
    },
    "shared heads": {},
    "discriminator": {
        **{key: {"repeat", "native_batch_norm"} for key in ("norm", "norm_1")},
        **{key: {DRAWN} for key in ("drop", "drop_1")},
    },
    "weighted": {
        key: {"_weight_norm_interface"}
        for key in (f"{layer}.parametrizations.weight.0.weight_norm" for layer in ("first", "last"))
    },
    "counting": {},
    "averaged": {},
    "drawing": {"alpha_dropout": {DRAWN}},
}
"""By module, of each operator that runs something of its forward twice, what: one more fails."""


@pytest.mark.parametrize("name", FOUND)
def test_what_imported_modules_compute_again_is_counted_and_written_down(name: str) -> None:
    found = recomputed(MODULES[name].graph())
    again = {operator: calls for operator, calls in found.items() if calls}
    named = {
        operator: {call if call == DRAWN else call.split(".")[1] for call in calls} for operator, calls in again.items()
    }
    assert named == FOUND[name]
    told = ", ".join(f"`{operator.rpartition('.')[2]}`" for operator in again) or "none"
    assert f"| {name} | {len(found)} | {len(again)} | {told} |" in DOCS.read_text(encoding="utf-8")


def test_every_module_is_counted() -> None:
    assert FOUND.keys() == MODULES.keys()
