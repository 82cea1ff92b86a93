"""Values on the way: the same results from scratch memory, and no two that are there at once in one place."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from maniple.operators.recording import passing_value
from maniple.operators.recording.compiled_tape import Written, bind_calls
from maniple.operators.recording.passing_value import passing
from maniple.operators.recording.tape import Recorder
from maniple.process.host_allocation import watch_host_run
from maniple.runtime.storage.scratchpad import Scratchpad

SIDE = 160
LARGE = SIDE * SIDE * 4
"""Bytes of a value that is worth a place."""

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "mul", "exp", "mm", "t", "fold", "halves", "view", "softmax", "sum"]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)


def computed(values: list[Tensor], steps: list[Step]) -> list[Tensor]:
    """All values of a little program on square matrices; each step reads one or two that are there."""
    found = list(values)
    for name, one, other in steps:
        a, b = found[one % len(found)], found[other % len(found)]
        made = {
            "add": lambda a=a, b=b: a + b,
            "mul": lambda a=a, b=b: a * b,
            "exp": lambda a=a: (a / 8).tanh(),
            "mm": lambda a=a, b=b: a @ b / SIDE,
            "fold": lambda a=a, b=b: (a.reshape(2, -1, SIDE) / SIDE @ b).reshape(SIDE, SIDE),  # with _unsafe_view
            "halves": lambda a=a: torch.cat(torch.unsafe_split(a / 3, SIDE // 2)[::-1]),
            "t": lambda a=a: a.t(),
            "view": lambda a=a: a.reshape(SIDE // 2, -1).reshape(SIDE, SIDE),
            "softmax": lambda a=a: a.softmax(-1),
            "sum": lambda a=a, b=b: a.sum(0, keepdim=True) + b,
        }[name]
        found.append(made())
    return found


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_a_tape_gives_the_same_from_scratch_memory(steps: list[Step], wanted: int) -> None:
    torch.manual_seed(0)
    values = [torch.randn(SIDE, SIDE) for _ in range(2)]
    with torch.no_grad(), Recorder(values) as tape:
        found = computed(values, steps)
    ends = {tape.number(value): value for value in found[2:][-wanted:]}
    ends = {number: value for number, value in ends.items() if number >= 2}
    others = [torch.randn(SIDE, SIDE) for _ in range(2)]
    expected = dict(zip(map(tape.number, found), computed(others, steps), strict=True))
    pad, results = Scratchpad(), []
    for scratch in (None, pad.turn()):
        written = [Written(number, torch.empty(SIDE, SIDE)) for number in ends]
        run = bind_calls(tape.calls, dict(enumerate(others)), written, scratch)
        for _ in range(2):  # what was there before is read by nobody
            run()
        results.append([item.target for item in written])
    for number, one, other in zip(ends, *results, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, expected[number])


@given(STEPS)
def test_values_that_are_there_at_once_have_places_of_their_own(steps: list[Step]) -> None:
    """Law: by hand each value, and each view of it, is there from the call that makes it to the last that reads it."""
    values = [torch.zeros(SIDE, SIDE) for _ in range(2)]
    with torch.no_grad(), Recorder(values) as tape:
        last = tape.number(computed(values, steps)[-1])
    calls = tape.calls
    able = {at for at, call in enumerate(calls) if not call.is_view}
    places = passing(calls, able, [last], Scratchpad().turn(), values[0])
    made = {number: at for at, call in enumerate(calls) for number in call.results if number is not None}
    views = {number: call for call in calls if call.is_view for number in call.results if number is not None}

    def is_of(number: int, source: int) -> bool:
        return number == source or (number in views and any(is_of(read, source) for read in views[number].reads()))

    spans = {}
    for number, place in places.items():
        reads = [at for at, call in enumerate(calls) if any(is_of(read, number) for read in call.reads())]
        until = len(calls) if is_of(last, number) else max(reads, default=made[number])
        spans[number] = (made[number], until, place.data_ptr(), place.data_ptr() + place.nbytes)
    for one, other in combinations(spans.values(), 2):
        at_once = one[0] <= other[1] and other[0] <= one[1]
        assert not at_once or one[3] <= other[2] or other[3] <= one[2]


def test_what_is_on_the_way_is_not_taken_from_the_heap() -> None:
    """Five values of which two are there at once: two places, and no allocation as it runs."""
    values = [torch.randn(SIDE, SIDE)]
    with torch.no_grad(), Recorder(values) as tape:
        x = values[0]
        for _ in range(5):
            x = x.tanh()
        end = tape.number(x.sum(0))
    pad, target = Scratchpad(), torch.empty(SIDE)
    run = bind_calls(tape.calls, {0: values[0]}, [Written(end, target)], pad.turn())
    assert pad.ends == (2 * LARGE,)
    taken = watch_host_run(run)
    assert taken is None or taken.peak < LARGE
    plain = watch_host_run(bind_calls(tape.calls, {0: values[0]}, [Written(end, target)]))
    assert plain is None or plain.peak >= 2 * LARGE


@pytest.mark.parametrize(("step", "name"), [("fold", "_unsafe_view"), ("halves", "unsafe_split")])
def test_the_memory_of_a_value_is_no_others_while_a_view_that_no_schema_tells_of_is_read(step: str, name: str) -> None:
    values = [torch.randn(SIDE, SIDE) for _ in range(2)]
    steps = [(step, 0, 1), ("exp", 0, 0), ("add", 2, 3)]
    with torch.no_grad(), Recorder(values) as tape:
        expected = computed(values, steps)[-1]
    assert any(call.name == name and call.is_view for call in tape.calls)
    written = Written(tape.number(expected), torch.empty(SIDE, SIDE))
    bind_calls(tape.calls, dict(enumerate(values)), [written], Scratchpad().turn())()
    assert torch.equal(written.target, expected)


@pytest.mark.parametrize("least", [LARGE, LARGE + 1])
def test_small_values_are_left_to_torch(least: int) -> None:
    values = [torch.randn(SIDE, SIDE)]
    with torch.no_grad(), Recorder(values) as tape:
        end = tape.number(values[0].tanh().exp())
    pad = Scratchpad()
    with patch.object(passing_value, "LEAST", least):
        bind_calls(tape.calls, {0: values[0]}, [Written(end, torch.empty(SIDE, SIDE))], pad.turn())
    assert pad.ends == ((LARGE,) if least == LARGE else ())
