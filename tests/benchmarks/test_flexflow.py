"""FlexFlow's figures at tiny sizes: what is counted and left out, not how fast anything is."""

from __future__ import annotations

import json
from math import prod

import flexflow
import pytest
from click.testing import CliRunner

from maniple.models import model
from maniple.strategies.space import Space


def test_data_parallelism_moves_all_gradients_and_weights() -> None:
    asked = ["transfers", "--model", "mlp", "--machine", "k80x2", "--budget", "0", "--json"]
    rows = json.loads(CliRunner().invoke(flexflow.main, asked, catch_exceptions=False).output)
    assert [row["plan"] for row in rows] == ["data_parallel", "expert", "model_parallel"]
    # Each of two processors sends half of all gradients to the other, and gets half of all weights.
    weights = sum(prod(parameter.shape) for parameter in model("mlp", batch=2).parameters) * 4
    assert rows[0]["bytes_gb"] == pytest.approx(2 * weights / 1e9, rel=0.01)
    assert rows[0]["over_published"] == pytest.approx(rows[0]["bytes_gb"] / 65.8 - 1)
    assert rows[1]["bytes_gb"] < rows[0]["bytes_gb"]


@pytest.mark.parametrize("dimension", flexflow.EXAMPLES)
def test_a_dimension_is_left_out(dimension: str) -> None:
    space = Space.of(flexflow.EXAMPLES[dimension](), 2)
    removed = set()
    for own in space.operators:
        kept = set(flexflow.without(own, dimension, own.choices()))
        assert kept
        removed |= {own.plan(choice) for choice in set(own.choices()) - kept}
        assert dimension == "operator" or {choice.start for choice in kept} == {0, 1}
    assert removed
