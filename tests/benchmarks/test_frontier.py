"""The frontier's benchmark: its comparison with brute force counts what is wrong, and what weighted sums miss."""

from __future__ import annotations

import frontier
import numpy as np
import pytest

pytestmark = pytest.mark.simulator


def test_no_random_graph_is_wrong_and_weighted_sums_miss_points() -> None:
    found = frontier.brute_force(40)
    assert found["graphs"] == 40
    assert found["wrong"] == 0
    assert isinstance(found["points_no_weighted_sum_reaches"], int)
    assert found["points_no_weighted_sum_reaches"] > 0


def test_a_frontier_that_lacks_points_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "reduce", lambda memory, ticks: np.lexsort((ticks, memory))[:1])
    wrong = frontier.brute_force(40)["wrong"]
    assert isinstance(wrong, int)
    assert wrong > 0
