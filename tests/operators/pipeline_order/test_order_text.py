"""Orders as text, and held against what torch.distributed.pipelining makes and reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as theirs

from maniple.operators.pipeline_order.named_order import ORDERS, named_order
from maniple.operators.pipeline_order.order_text import is_text, parse, to_csv, to_text
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.process.error import RequestError


def stages_of_torch(lanes: int, chunks: int) -> list[SimpleNamespace]:
    """What torch's schedules ask of the stages of one rank."""
    return [
        SimpleNamespace(
            group_size=lanes,
            group_rank=0,
            num_stages=lanes * chunks,
            stage_index=chunk * lanes,
            stage_index_to_group_rank={},
            submod=torch.nn.Identity(),
            is_last=False,
        )
        for chunk in range(chunks)
    ]


def made_by_torch(schedule: type, lanes: int, chunks: int, micro_batches: int) -> list[list[str]]:
    """Actions of every rank, without time that passes and what torch adds for itself."""
    stages = stages_of_torch(lanes, chunks)
    made = schedule(
        stages if chunks > 1 or issubclass(schedule, theirs.PipelineScheduleMulti) else stages[0], micro_batches
    )
    return [
        [str(action) for action in made.pipeline_order[rank] if action is not None and action.is_compute_op]
        for rank in range(lanes)
    ]


def texts(order: PipelineOrder) -> list[list[str]]:
    return [list(map(str, lane)) for lane in order.lanes]


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 5, 8, 13])
@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_gpipe_is_torchs(lanes: int, micro_batches: int) -> None:
    expected = made_by_torch(theirs.ScheduleGPipe, lanes, 1, micro_batches)
    assert texts(named_order("gpipe", StageGraph.chain(lanes), micro_batches)) == expected


@pytest.mark.parametrize("more", [0, 1, 5])
@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_1f1b_is_torchs(lanes: int, more: int) -> None:
    """torch asks for at least as many micro-batches as stages, and then counts the last stage's one too high."""
    ours = texts(named_order("1f1b", StageGraph.chain(lanes), lanes + more))
    expected = made_by_torch(theirs.Schedule1F1B, lanes, 1, lanes + more)
    numbers = range(lanes + more)
    # `forward_mb` starts at 0 where a stage has no forward before the first pair, and is counted up before its use.
    assert expected[-1] == [text for n in numbers for text in (f"{lanes - 1}F{n + 1}", f"{lanes - 1}B{n}")]
    expected[-1] = [text for n in numbers for text in (f"{lanes - 1}F{n}", f"{lanes - 1}B{n}")]
    assert ours == expected


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize(("lanes", "chunks"), [(1, 2), (2, 2), (2, 3), (3, 2), (4, 2), (4, 3)])
@pytest.mark.parametrize(
    ("name", "schedule"),
    [("interleaved_1f1b", theirs.ScheduleInterleaved1F1B), ("zb_h1", theirs.ScheduleInterleavedZeroBubble)],
)
def test_interleaved_orders_are_torchs(name: str, schedule: type, lanes: int, chunks: int, micro_batches: int) -> None:
    ours = texts(named_order(name, StageGraph.looped(lanes, chunks), micro_batches))
    if micro_batches % max(1, micro_batches // lanes):
        with pytest.raises(ValueError, match="multiple of the number of rounds"):
            made_by_torch(schedule, lanes, chunks, micro_batches)
        return
    assert ours == made_by_torch(schedule, lanes, chunks, micro_batches)


@pytest.mark.parametrize("micro_batches", [4, 8])
@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_zb_h1_of_one_stage_a_lane_is_torchs(lanes: int, micro_batches: int) -> None:
    if micro_batches % max(1, micro_batches // lanes) == 0:
        expected = made_by_torch(theirs.ScheduleInterleavedZeroBubble, lanes, 1, micro_batches)
        assert texts(named_order("zb_h1", StageGraph.chain(lanes), micro_batches)) == expected


@pytest.mark.parametrize("micro_batches", [1, 3, 5, 7, 8, 12])
@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_v_zb_is_torchs(lanes: int, micro_batches: int) -> None:
    expected = made_by_torch(theirs.ScheduleZBVZeroBubble, lanes, 2, micro_batches)
    assert texts(named_order("v_zb", StageGraph.folded(lanes), micro_batches)) == expected


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
@pytest.mark.parametrize(("lanes", "chunks"), [(1, 2), (2, 2), (3, 3)])
def test_looped_bfs_goes_backward_from_the_first_where_torch_goes_from_the_last(
    lanes: int, chunks: int, micro_batches: int
) -> None:
    ours = texts(named_order("looped_bfs", StageGraph.looped(lanes, chunks), micro_batches))
    expected = made_by_torch(theirs.ScheduleLoopedBFS, lanes, chunks, micro_batches)
    half = chunks * micro_batches
    for lane, other in zip(ours, expected, strict=True):
        assert lane[:half] == other[:half]
        for low in range(half, 2 * half, micro_batches):
            assert lane[low : low + micro_batches] == other[low : low + micro_batches][::-1]


def graph_of(name: str, lanes: int) -> StageGraph:
    if name.startswith("v_"):
        return StageGraph.folded(lanes)
    return StageGraph.looped(lanes, 2 if name in {"interleaved_1f1b", "looped_bfs"} else 1)


@given(st.sampled_from(sorted(ORDERS)), st.integers(1, 4), st.integers(1, 9))
def test_a_text_gives_its_order_back(name: str, lanes: int, micro_batches: int) -> None:
    graph = graph_of(name, lanes)
    order = named_order(name, graph, micro_batches)
    assert parse(to_text(order)) == order
    assert parse(to_csv(order, graph)) == order
    assert is_text(to_text(order))
    assert not is_text(name)


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_torch_reads_what_we_write(name: str, tmp_path: Path) -> None:
    graph = graph_of(name, 2)
    order = named_order(name, graph, 4)
    file = tmp_path / "order.csv"
    file.write_text(to_csv(order, graph))
    runtime = theirs._PipelineScheduleRuntime(stages_of_torch(2, graph.stages // 2), 4)
    runtime._load_csv(str(file))  # checks it, and derives its transfers
    assert [[str(a) for a in runtime.pipeline_order[rank] if a is not None] for rank in range(2)] == texts(order)
    assert runtime.stage_index_to_group_rank == {s: n for n, lane in enumerate(graph.lanes) for s in lane}


def test_we_read_what_torch_writes(tmp_path: Path) -> None:
    made = theirs.ScheduleInterleavedZeroBubble(stages_of_torch(2, 2), 4)
    file = tmp_path / "order.csv"
    made._dump_csv(str(file), "compute_only")
    assert parse(file.read_text(), "order.csv") == named_order("zb_h1", StageGraph.looped(2, 2), 4)
    made._dump_csv(str(file), "compute_comms")
    with pytest.raises(RequestError, match=r"^order.csv: line 1: '0UNSHARD' is of the unknown kind 'UNSHARD'; choices"):
        parse(file.read_text(), "order.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.csv: expected a line of actions for each lane, such as 0F0,0B0; got nothing"),
        ("\n,,\n", "a.csv: expected a line of actions for each lane, such as 0F0,0B0; got nothing"),
        ("0F0,0B0\n\n1F0,1B0", "a.csv: line 2: expected the actions of a lane, got none"),
        ("0F0,0B0\n1F0,x", "a.csv: line 2: expected an action such as 2F0 (stage 2, forward, micro-batch 0), got 'x'"),
        ("0F0,0B0\n2F0,2B0", "a.csv: order: stage 1 of 3 does nothing; expected 1F0 in some lane"),
        ("0F0,0B0\n1F0", "a.csv: line 2: order: lane 1, position 1: 1B0 is missing\n  1F0 ><"),
        (
            "0F0,0B0\n1F0,1W0,1I0",
            (
                "a.csv: line 2: order: lane 1, position 1: 1W0 comes before 1I0: expected gradients of weights after "
                "those of inputs\n  1F0 >1W0< 1I0"
            ),
        ),
    ],
)
def test_wrong_texts_are_refused_with_their_line(text: str, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse(text, "a.csv")
    assert str(refused.value) == message
