"""Orders are valid, merge, and are refused with the lane, the position and the instant drawn."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.pipeline_order.action import Action
from maniple.operators.pipeline_order.flush import early_backward, gpipe, one_forward_one_backward, sequential
from maniple.operators.pipeline_order.named_order import ORDERS, OrderFunction, named_order
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.operators.pipeline_order.zero_bubble import zb_h1, zb_h2
from maniple.process.error import RequestError

BESIDE: tuple[OrderFunction, ...] = (sequential, gpipe, one_forward_one_backward, early_backward, zb_h1, zb_h2)


def order_of(*lanes: str, stages: int, micro_batches: int) -> PipelineOrder:
    return PipelineOrder(
        tuple(tuple(Action.parse(word) for word in lane.split()) for lane in lanes), stages, micro_batches
    )


def needs(order: PipelineOrder, graph: StageGraph, action: Action) -> list[Action]:
    """What must stand before an action, said once more, pair by pair."""
    stage, kind, part = action
    every = {a for lane in order.lanes for a in lane}
    found = []
    for other in every:
        if other.micro_batch != part:
            continue
        reads = other.stage in graph.reads[stage]
        read_by = stage in graph.reads[other.stage]
        same = other.stage == stage
        if (
            (kind == "F" and other.kind == "F" and reads)
            or (kind in "BI" and other.kind in "BI" and read_by)
            or (kind in "BI" and other.kind in "FR" and same)
            or (kind == "W" and other.kind == "I" and same)
            or (kind == "R" and other.kind == "F" and same)
        ):
            found.append(other)
    return found


def assert_merges(order: PipelineOrder, graph: StageGraph) -> None:
    """What merging gives holds every lane in its order, and everything after what it needs."""
    merged = order.merged(graph)
    place = {action: index for index, action in enumerate(merged)}
    assert sorted(merged) == sorted(action for lane in order.lanes for action in lane)
    assert len(place) == len(merged)
    for lane in order.lanes:
        assert [place[a] for a in lane] == sorted(place[a] for a in lane)
    for action in merged:
        assert all(place[need] < place[action] for need in needs(order, graph, action))


@st.composite
def stage_graphs(draw: st.DrawFn) -> StageGraph:
    """Stages that read from any before them, each in a lane of its own."""
    stages = draw(st.integers(1, 6))
    reads = [
        tuple(sorted(draw(st.sets(st.integers(0, stage - 1), max_size=3)))) if stage else () for stage in range(stages)
    ]
    return StageGraph(tuple((stage,) for stage in range(stages)), tuple(reads))


@given(stage_graphs(), st.integers(1, 9), st.sampled_from(BESIDE))
def test_orders_of_one_stage_a_lane_merge_on_any_graph(
    graph: StageGraph, micro_batches: int, order: OrderFunction
) -> None:
    assert_merges(order(graph, micro_batches), graph)


@given(st.sampled_from(sorted(ORDERS)), st.integers(1, 6), st.integers(1, 4), st.integers(1, 14))
def test_every_order_is_valid_and_merges(name: str, lanes: int, chunks: int, micro_batches: int) -> None:
    several = name in {"interleaved_1f1b", "looped_bfs", "zb_h1"}
    graph = StageGraph.folded(lanes) if name.startswith("v_") else StageGraph.looped(lanes, chunks if several else 1)
    order = named_order(name, graph, micro_batches)
    assert_merges(order, graph)
    assert [{action.stage for action in lane} for lane in order.lanes] == [set(lane) for lane in graph.lanes]


def test_recomputation_stands_between_forward_and_backward() -> None:
    order = order_of("0F0 0F1 0R0 0B0 0R1 0I1 0W1", stages=1, micro_batches=2)
    assert_merges(order, StageGraph.chain(1))
    assert order.in_flight() == (2,)


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        (("0F0 0B0 0F1", "1F0 1B0 1F1 1B1"), "lane 0, position 3: 0B1 is missing\n  0F0 0B0 0F1 ><"),
        (("0F0 0F1 0B0 0B1", "1F0 1I0 1W0 1F1 1I1"), "lane 1, position 5: 1W1 is missing\n  ... 1W0 1F1 1I1 ><"),
        (("0F0 0B0", "1F0 1F1 1B0 1B1"), "lane 0, position 2: 0F1 is missing\n  0F0 0B0 ><"),
        (
            ("0F0 0F1 0B0 0B1 0F1", "1F0 1F1 1B0 1B1"),
            "lane 0, position 4: 0F1 stands twice\n  ... 0F1 0B0 0B1 >0F1<",
        ),
        (
            ("0F0 0F1 0B0 0B1", "1F0 1F1 1W0 1I0 1B1"),
            (
                "lane 1, position 2: 1W0 comes before 1I0: expected gradients of weights after those of inputs\n"
                "  1F0 1F1 >1W0< 1I0 1B1"
            ),
        ),
        (
            ("0B0 0F0 0F1 0B1", "1F0 1F1 1B0 1B1"),
            "lane 0, position 0: 0B0 comes before 0F0: expected forward first\n  >0B0< 0F0 0F1 0B1",
        ),
        (
            ("0F0 0F1 0B0 0W0 0B1", "1F0 1F1 1B0 1B1"),
            (
                "lane 0, position 3: 0W0 comes after 0B0, which has the gradients of weights: expected either B, or I "
                "and W\n  0F0 0F1 0B0 >0W0< 0B1"
            ),
        ),
        (
            ("0F0 0F1 0I0 0B0 0B1", "1F0 1F1 1B0 1B1"),
            "lane 0, position 3: 0B0 comes after 0I0: expected either B, or I and W\n  0F0 0F1 0I0 >0B0< 0B1",
        ),
        (
            ("0F0 0F1 0B0 0R0 0B1", "1F0 1F1 1B0 1B1"),
            "lane 0, position 3: 0R0 comes after 0B0: expected forward again before backward\n  0F0 0F1 0B0 >0R0< 0B1",
        ),
        (
            ("0F0 0F1 0B0 0B1 2F0", "1F0 1F1 1B0 1B1"),
            "lane 0, position 4: 2F0 is of stage 2; expected 0 to 1\n  ... 0F1 0B0 0B1 >2F0<",
        ),
        (
            ("0F0 0F1 0F2 0B0 0B1", "1F0 1F1 1B0 1B1"),
            "lane 0, position 2: 0F2 is of micro-batch 2; expected 0 to 1\n  0F0 0F1 >0F2< 0B0 0B1",
        ),
        (
            ("0F0 0F1 0B0 0B1", "0F0 1F0 1F1 1B0 1B1"),
            (
                "lane 1, position 0: 0F0 is of stage 0, which stands in lane 0; a stage has one lane\n"
                "  >0F0< 1F0 1F1 1B0 ..."
            ),
        ),
        (("0F0 0F1 0B0 0B1", ""), "stage 1 of 2 does nothing; expected 1F0 in some lane"),
    ],
)
def test_wrong_orders_are_refused_with_the_instant_drawn(lanes: tuple[str, ...], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        order_of(*lanes, stages=2, micro_batches=2)
    assert str(refused.value) == f"order: {message}"


@pytest.mark.parametrize(("stages", "micro_batches"), [(0, 2), (2, 0)])
def test_no_stages_or_no_micro_batches_are_refused(stages: int, micro_batches: int) -> None:
    with pytest.raises(RequestError, match=f"at least 1 stage and 1 micro-batch, got {stages} and {micro_batches}"):
        PipelineOrder(((), ()), stages, micro_batches)


def test_lanes_that_cannot_meet_are_refused_with_their_circle() -> None:
    order = order_of("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", stages=2, micro_batches=2)
    with pytest.raises(RequestError) as refused:
        order.merged(StageGraph.chain(2))
    assert str(refused.value) == (
        "order: cannot go on, for 0B0 waits for 1B0, which stands after 1F1; 1F1 waits for 0F1, which stands after 0B0"
    )


def test_an_order_of_other_stages_is_refused() -> None:
    with pytest.raises(RequestError, match="is of 2 stages, and there are 3"):
        gpipe(StageGraph.chain(2), 2).merged(StageGraph.chain(3))


@given(stage_graphs(), st.integers(1, 5), st.sampled_from(BESIDE), st.randoms(use_true_random=False))
def test_an_action_left_out_repeated_or_moved_away_is_refused(
    graph: StageGraph, micro_batches: int, make: OrderFunction, rng: random.Random
) -> None:
    order = make(graph, micro_batches)
    number = rng.randrange(len(order.lanes))
    lane = list(order.lanes[number])
    place = rng.randrange(len(lane))
    change = rng.choice(["leave out", "repeat", "rename"])
    action = lane[place]
    if change == "leave out":
        del lane[place]
        # Or what comes later stands too early.
        told = rf"{action} is missing|comes before {action}: expected"
    elif change == "repeat":
        lane.insert(rng.randrange(place, len(lane)) + 1, action)
        told = rf"{action} (stands twice|comes after)"
    else:
        lane[place] = Action(action.stage, action.kind, micro_batches)
        told = f"is of micro-batch {micro_batches}; expected 0 to {micro_batches - 1}"
        told += rf"|comes before {action}: expected"
    with pytest.raises(RequestError, match=rf"^order: lane {number}, position \d+: .*({told})"):
        PipelineOrder(
            (*order.lanes[:number], tuple(lane), *order.lanes[number + 1 :]), order.stages, order.micro_batches
        )


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_shuffled_lanes_merge_or_are_refused(stages: int, micro_batches: int, rng: random.Random) -> None:
    """Whatever the turns, an order is merged where some sequence of all actions does it, and else refused."""
    graph = StageGraph.chain(stages)
    lanes = []
    for stage in range(stages):
        left = {part: [Action(stage, "F", part), Action(stage, "B", part)] for part in range(micro_batches)}
        lane = []
        while left:
            part = rng.choice(sorted(left))
            lane.append(left[part].pop(0))
            left = {key: rest for key, rest in left.items() if rest}
        lanes.append(tuple(lane))
    order = PipelineOrder(tuple(lanes), stages, micro_batches)
    # A circle in lanes and needs together: Warshall's closure over all actions.
    actions = [a for lane in lanes for a in lane]
    before = {(a, b) for b in actions for a in needs(order, graph, b)}
    before |= {(a, b) for lane in lanes for a, b in pairwise(lane)}
    for middle in actions:
        before |= {(a, b) for a in actions for b in actions if (a, middle) in before and (middle, b) in before}
    if any((a, a) in before for a in actions):
        with pytest.raises(RequestError, match=r"cannot go on, for .* waits for .*which stands after"):
            order.merged(graph)
    else:
        assert_merges(order, graph)
