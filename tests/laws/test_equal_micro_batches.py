"""Micro-batches of one size share what their launches have in common, and have those that each would have alone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelined_networks import Drawn, drawn, in_stages, perceptron

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.micro_batch import MicroBatches
from maniple.operators.lowering.operator_body import BackwardBinder, ForwardBinder, InputBinder
from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.runtime.schedule.launch import Launch, Point

OPTIMIZER = mp.SGD(lr=0.1, momentum=0.9)


def stepped(case: Drawn, *, shared: bool = True) -> Program:
    """The step of a case on two ranks; not shared: as if no micro-batch were like another."""
    with pytest.MonkeyPatch.context() as patch:
        if not shared:
            patch.setattr(MicroBatches, "like", lambda _parts, _node, part: part)
        return training_step(case.graph, case.plan, mp.Machine.cpu(2, ranks=2), OPTIMIZER)


def bodies(launch: Launch) -> Any:
    """What the bodies of a launch are bound with."""
    binder = launch.binder
    if isinstance(binder, ForwardBinder):
        return tuple(binder.tiles), binder.slots, binder.training, binder.checked, shared_by(binder), binder.looks
    if isinstance(binder, BackwardBinder):
        return tuple(binder.tiles), binder.slots, shared_by(binder), binder.looks
    return (binder.port.memories, binder.port.rects) if isinstance(binder, InputBinder) else type(binder)


def shared_by(binder: ForwardBinder | BackwardBinder) -> Sequence[Point] | None:
    """The tasks that take turns with a scratchpad."""
    return None if binder.scratch is None else binder.scratch.points


def check(case: Drawn) -> None:
    """Launches, with what their bodies are bound with, and the schedule are those of the step that shares nothing."""
    found, wanted = stepped(case), stepped(case, shared=False)
    assert [launch.name for launch in found.launches] == [launch.name for launch in wanted.launches], case.said
    for one, other in zip(found.launches, wanted.launches, strict=True):
        assert one == other, f"{one}\n{other}\n{case.said}"
        assert bodies(one) == bodies(other), f"{one.name}\n{case.said}"
    machine = mp.Machine.cpu(2, ranks=2)
    assert found.keys(machine) == wanted.keys(machine)


@settings(max_examples=max(20, settings().max_examples // 4))
@given(st.integers(0, 10**6))
def test_launches_of_any_pipeline_are_those_of_each_micro_batch_by_itself(seed: int) -> None:
    check(drawn(Random(seed)))


def test_what_is_shared_is_the_same_object() -> None:
    """Eight equal micro-batches of a perceptron: boxes, points and fragments are those of the first."""
    case = in_stages(perceptron(16, 2), [[0], [1]], "1f1b", 8)
    found = stepped(case)
    named = {launch.name: launch for launch in found.launches}
    forward = [named[f"linear.forward#{part}"] for part in range(8)]
    assert len({id(launch.points) for launch in forward}) == 1
    assert len({id(launch.requirements[-1].rects) for launch in forward}) == 1
    assert len({launch.requirements[-1].region.id for launch in forward}) == 8
    cache = FragmentCache(mp.Machine.cpu(2, ranks=2))
    lower(found, cache)
    assert len(set(map(id, found.keys(cache.machine)))) < len(found.regions()) / 2


def counted_calls(micro_batches: int) -> int:
    """Calls of Python functions in which a step of so many micro-batches is lowered."""
    import sys

    case, calls = in_stages(perceptron(16, 2), [[0], [1]], "1f1b", micro_batches), [0]
    sys.setprofile(lambda _frame, event, _what: calls.__setitem__(0, calls[0] + (event == "call")))
    try:
        lower(stepped(case), FragmentCache(mp.Machine.cpu(2, ranks=2)))
    finally:
        sys.setprofile(None)
    return calls[0]


def test_eight_micro_batches_are_lowered_with_twice_the_calls_of_one() -> None:
    counted_calls(1)  # what is compiled or imported once
    assert counted_calls(8) <= 2.2 * counted_calls(1)
