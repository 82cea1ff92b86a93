"""The pipeline of a plan: which stages share lanes, which orders fit them, and what is refused in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

import maniple as mp
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.operators.plan.pipeline_plan import stage_graph, stages_of
from maniple.operators.plan.plan import OperatorPlan, Plan, StagePlan, WeightPlan
from maniple.process.error import RequestError

FOUR = (("a",), ("b",), ("c",), ("d", "loss"))


def network() -> mp.Graph:
    """``b`` and ``c`` read ``a`` and stand beside each other; ``d`` reads both."""
    g = mp.Graph("g")
    x, labels = g.input("x", (8, 4)), g.input("labels", (8,), dtype="int64")
    a = g.linear(x, 4, name="a")
    d = g.add(g.relu(a, name="b"), g.relu(a, name="c"), name="d")
    g.loss(g.cross_entropy(d, labels, name="loss"))
    return g


def placed(graph: mp.Graph, **processors: tuple[int, ...]) -> Plan:
    """Each operator whole, on its processors; more than one of them are replicas."""
    operators = tuple(
        (
            node.name,
            OperatorPlan(
                tuple((f.name, 1) for f in graph.bound(node).factors), processors[node.name], len(processors[node.name])
            ),
        )
        for node in graph.nodes
    )
    weights = tuple((tensor.name, WeightPlan((1,) * len(tensor.shape), (0,))) for tensor in graph.lasting)
    return Plan(graph.fingerprint(), "by hand", operators, weights)


GRAPH = network()
APART = placed(GRAPH, a=(0,), b=(1,), c=(2,), d=(3,), loss=(3,))
MACHINE = mp.Machine.cpu(4)


def test_stages_that_share_processors_share_a_lane() -> None:
    looped = placed(GRAPH, a=(0, 1), b=(2,), c=(0, 1), d=(2,), loss=(2,))
    stages = tuple(map(StagePlan, FOUR))
    assert stage_graph(GRAPH, stages, dict(APART.operators)) == StageGraph(
        ((0,), (1,), (2,), (3,)), ((), (0,), (0,), (1, 2))
    )
    assert stage_graph(GRAPH, stages, dict(looped.operators)) == StageGraph(((0, 2), (1, 3)), ((), (0,), (0,), (1, 2)))


def test_a_plan_without_stages_is_one_stage() -> None:
    assert stages_of((), ["a", "b"]) == {"a": 0, "b": 0}
    plan = APART.with_pipeline(order="1f1b", micro_batches=2)
    plan.validate(GRAPH, MACHINE)
    found = plan.order(GRAPH)
    assert found is not None
    assert [str(action) for action in found.lanes[0]] == ["0F0", "0B0", "0F1", "0B1"]


def test_a_plan_with_a_pipeline_goes_to_a_file_and_back() -> None:
    plan = APART.with_pipeline(FOUR, order="gpipe", micro_batches=8)
    plan.validate(GRAPH, MACHINE)
    again = Plan.parse(plan.text())
    assert again == plan
    assert again.stages == tuple(map(StagePlan, FOUR))
    kept = replace(plan, operators=tuple((name, replace(own, recompute=True)) for name, own in plan.operators))
    assert Plan.parse(kept.text()) == kept != plan


BACK = (("b",), ("a",), ("c",), ("d", "loss"))
CIRCLE = (("a", "d", "loss"), ("b",), ("c",))
TWO = (("a", "b"), ("c", "d", "loss"))


@pytest.mark.parametrize(
    ("stages", "order", "micro_batches", "message"),
    [
        (FOUR, "1f1b", 0, "pipeline.micro_batches: expected an integer >= 1, got 0"),
        (FOUR, "1f1b", 9, "pipeline.micro_batches: expected at most 8, the samples of a batch, got 9"),
        (FOUR, "1b1f", 4, "order '1b1f' is unknown; did you mean '1f1b'"),
        (FOUR, "2bw", 4, "order '2bw' has no flush.*order 'asynchronous' with the semantics weights=RULE"),
        (FOUR, "interleaved_1f1b", 4, "order 'interleaved_1f1b' has a chain of stages"),
        (BACK, "1f1b", 4, r"stages\[0\]: operator b reads a of stage 1, a later one; number stages so that"),
        (CIRCLE, "1f1b", 4, r"stages\[0\]: operator d reads b of stage 1.*stage 0 waits for stage 1 waits for stage 0"),
        (FOUR[:3], "1f1b", 4, "stages.d: missing"),
        ((*FOUR, ("a",)), "1f1b", 4, "stages.a: expected every operator in one stage"),
        (
            TWO,
            "1f1b",
            2,
            r"stages\[0\] and stages\[1\] both run on processors 1, but stage 0 on 0 1 and stage 1 on 1 2 3",
        ),
        (
            FOUR,
            "0F0 0B0; 1F0 1B0; 2F0 2B0; 3F0 3B0",
            2,
            "expected an order of 4 stages and 2 micro-batches, got one of 4",
        ),
        (FOUR, "0F0 0B0; 1F0 1B0; 2F0 2B0; 3F0", 1, "pipeline.order: line 4: .*3B0 is missing"),
        (FOUR, "0F0 0B0; 1F0 1B0; 2F0 2B0; 3F0 3X0", 1, "pipeline.order: line 4: '3X0' is of the unknown kind 'X'"),
        (FOUR, "0F0 0B0; 1F0 1W0 1I0; 2F0 2B0; 3F0 3B0", 1, "pipeline.order: line 2: .*1W0 comes before 1I0"),
        (FOUR, "0F0 0B0 1F0 1B0; 2F0 2B0; 3F0 3B0", 1, "pipeline.order: has stages .* in its lanes"),
        (FOUR, "0F0 0F1 0B0 0B1; 1F1 1F0 1B0 1B1; 2F0 2F1 2B0 2B1; 3F0 3B0 3F1 3B1", 2, None),
        (
            FOUR,
            "0F0 0B0 0F1 0B1; 1F1 1F0 1B0 1B1; 2F0 2F1 2B0 2B1; 3F0 3B0 3F1 3B1",
            2,
            "cannot go on, for .*waits for",
        ),
    ],
)
def test_what_is_no_pipeline_is_refused(
    stages: tuple[tuple[str, ...], ...], order: str, micro_batches: int, message: str | None
) -> None:
    plan = APART
    if stages == TWO:
        plan = placed(GRAPH, a=(0,), b=(1,), c=(2,), d=(1,), loss=(3,))
    plan = plan.with_pipeline(stages, order=order, micro_batches=micro_batches)
    if message is None:
        plan.validate(GRAPH, MACHINE)
        return
    with pytest.raises(RequestError, match=f"(?s){message}"):
        plan.validate(GRAPH, MACHINE)


def test_another_batch_size_keeps_the_pipeline() -> None:
    """What of a smaller batch is left for the last micro-batches is nothing; a trainer leaves them out."""
    plan, small = APART.with_pipeline(FOUR, order="1f1b", micro_batches=8), GRAPH.with_batch(3)
    assert plan.for_graph(small).order(small) == plan.order(GRAPH)
