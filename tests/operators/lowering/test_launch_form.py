"""Launch forms: whose gradients are computed, in which launches, and whether they are written or summed."""

from __future__ import annotations

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.regions.privilege import READ, WRITE_DISCARD, Privilege, reduce
from maniple.runtime.schedule.launch import Launch

SGD = mp.SGD(lr=0.1)


def residual() -> mp.Graph:
    """``h`` is read twice, so its gradient has two contributors; that of ``r`` has one."""
    g = mp.Graph("residual")
    x, y = g.input("x", (8, 4)), g.input("y", (8,), dtype="int64")
    h = g.linear(x, 4)
    r = g.relu(h)
    g.loss(g.cross_entropy(g.add(h, r), y))
    return g


def launches(graph: mp.Graph, processors: int) -> dict[str, Launch]:
    """The launches of a data-parallel step, by name."""
    machine = mp.Machine.cpu(1, ranks=processors)
    program = training_step(graph, mp.search(graph, machine), machine, SGD)
    return {launch.name: launch for launch in program.launches}


def contributed(launch: Launch) -> list[Privilege]:
    return [requirement.privilege for requirement in launch.requirements if requirement.privilege != READ]


def test_a_gradient_with_one_contributor_and_disjoint_tiles_is_written() -> None:
    found = launches(residual(), 2)
    assert len(contributed(found["add.backward"])) == 1  # what relu gave has the sum's gradient
    assert contributed(found["cross_entropy.backward"]) == [WRITE_DISCARD]


def test_a_gradient_of_several_contributors_is_summed() -> None:
    found = launches(residual(), 1)
    assert contributed(found["relu.backward"]) == [reduce("+")]
    assert contributed(found["add.backward"])[0] == reduce("+")


def test_a_weight_that_all_samples_use_is_summed_over_their_parts_and_written_by_one() -> None:
    """Data parallelism is nothing else: tiles of the batch all contribute to the whole weight."""
    alone, parts = (launches(residual(), count)["linear.weight_gradient"] for count in (1, 2))
    assert contributed(alone) == [WRITE_DISCARD, WRITE_DISCARD]
    assert contributed(parts) == [reduce("+"), reduce("+")]


def test_an_input_has_no_gradient_and_so_no_launch() -> None:
    found = launches(residual(), 1)
    assert "linear.weight_gradient" in found
    assert "linear.backward" not in found


def test_each_side_of_an_operator_with_weights_takes_half_of_its_operations() -> None:
    g = mp.Graph("two layers")
    x, y = g.input("x", (8, 4)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 4)), 4), y))
    found = launches(g, 2)
    assert found["linear_1.backward"].flops == found["linear_1.weight_gradient"].flops
    assert sum(found["linear_1.backward"].flops) > 0
