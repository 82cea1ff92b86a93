"""Where a step's time goes, at small sizes: links that take no time, the bandwidth bound, and the terms of a plan."""

from __future__ import annotations

import pytest
from step_terms import bandwidth_bound_ms, busy_ms, plan_on, share_row, terms_row, unlinked

import maniple as mp
from maniple.models import model
from maniple.strategies.simulation.simulation import Simulation


def test_a_bound_counts_what_leaves_a_host_and_a_memory() -> None:
    """1,000 floats: four K80 of one host send 2 * 3 / 4 of them each at 12 GB/s; two hosts all of them at 6.8."""
    graph = mp.Graph("thousand")
    x, y = graph.input("x", (64, 10)), graph.input("y", (64, 100))
    graph.loss(graph.mse_loss(graph.linear(x, 100, bias=False), y))
    assert bandwidth_bound_ms(graph, mp.Machine.preset("k80x4")) == pytest.approx(1.5 * 4000 / 12e9 * 1e3)
    assert bandwidth_bound_ms(graph, mp.Machine.preset("k80x8")) == pytest.approx(4000 / 6.8e9 * 1e3)


def test_links_that_take_no_time_leave_the_tasks() -> None:
    graph, machine = model("mlp", batch=64), mp.Machine.preset("k80x8")
    plan = mp.search(graph, machine)
    linked, alone = (Simulation(graph, where, plan_on(plan, machine) if where is not machine else plan)
                     for where in (machine, unlinked(machine)))  # fmt: skip
    assert busy_ms(alone)[0].tolist() == busy_ms(linked)[0].tolist()
    assert busy_ms(alone)[0].max() <= alone.makespan_ns / 1e6 < linked.makespan_ns / 1e6
    row = share_row(graph, machine)
    assert row["step, ms"] == linked.makespan_ns / 1e6
    # No plan of movements carries less than the bound over its busiest link.
    assert 1.0 <= float(str(row["busiest / bound"])) < 1.2


@pytest.mark.simulator
def test_terms_add_up_to_the_step() -> None:
    graph, machine = model("mlp", batch=64), mp.Machine.preset("k80x8")
    for links in (True, False):
        row = {name: float(str(value)) for name, value in terms_row(graph, machine, "soap", 3, links=links).items()}
        assert row["tasks on the path"] + row["movements on it"] == pytest.approx(row["step, ms"], rel=0.01)
        assert row["mean GPU's work"] <= row["busiest GPU's"] <= row["step, ms"] >= row["bound"]
        assert row["step / bound"] == pytest.approx(row["step, ms"] / row["bound"])
