"""Tapes: what is recorded, what a cut leaves of it, and what cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.operator.operator import TileContext
from maniple.operators.operator.recorded_pass import Layouts, RecordedPass, recorded_pass
from maniple.operators.recording.compiled_tape import Written, bind_calls
from maniple.operators.recording.tape import NotRecordable, Recorder, Watch, cut, reads_of

X = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4)


def record(function: Callable[..., Tensor], *given: Tensor) -> tuple[Recorder, Tensor]:
    with torch.no_grad(), Recorder(given) as tape, Watch():
        found = function(*given)
    return tape, found


def recorded(call: str) -> RecordedPass:
    operator = Aten(call, "a b -> a b", ("float64",))
    bound = operator.rule(((3, 4),)).bind(((3, 4),))
    found = recorded_pass(TileContext(bound.tiles({})[0], bound.extents(), operator), Layouts.of((X,), (X,), (0,)))
    assert isinstance(found, RecordedPass)
    return found


def test_a_tape_computes_what_was_recorded_for_other_values() -> None:
    tape, found = record(lambda x, y: torch.cat([x.exp() * 2, y.relu()]).sum(0), X, X + 1)
    target = torch.empty(4, dtype=X.dtype)
    bind_calls(tape.calls, {0: X * 3, 1: X - 2}, [Written(tape.number(found), target)])()
    assert torch.equal(target, torch.cat([(X * 3).exp() * 2, (X - 2).relu()]).sum(0))


def test_a_cut_leaves_what_leads_from_the_given_to_the_wanted() -> None:
    def function(x: Tensor) -> Tensor:
        x.sin()  # nobody wants it
        return x.exp().tanh()

    tape, found = record(function, X)
    assert [call.function for call in tape.calls] == [
        torch.ops.aten.sin.default,
        torch.ops.aten.exp.default,
        torch.ops.aten.tanh.default,
    ]
    wanted, exponential = tape.number(found), tape.calls[1].results[0]
    assert exponential is not None
    assert cut(tape.calls, [wanted], [0]) == tape.calls[1:]
    rest = cut(tape.calls, [wanted], [0, exponential])
    assert rest == tape.calls[2:]
    assert reads_of(rest, [wanted]) == {exponential}


def test_what_a_call_writes_over_is_another_value() -> None:
    tape, found = record(lambda x: (x * 2).add_(1), X)
    (first,) = tape.calls[0].results
    assert first is not None
    assert tape.calls[1].changes == first != tape.number(found)
    target = torch.empty_like(X)
    bind_calls(tape.calls, {0: X}, [Written(tape.number(found), target)])()
    assert torch.equal(target, X * 2 + 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.add_(1), "changes a tensor"),
        (lambda x: (x * 2)[0].add_(1), "of which there is a view"),
        (lambda x: x * float(x.sum()), "looks at values"),
        (lambda x: x * x.tolist()[0][0], "looks at values"),
        (lambda x: x + torch.from_numpy(x.numpy()), "looks at values"),
        (lambda x: x + torch.rand(4), "random numbers"),
        (lambda x: x + X[0], "a tensor that is no operand"),
    ],
)
def test_a_body_whose_next_run_may_be_another_is_no_tape(function: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(NotRecordable, match=message):
        record(function, X.clone())


@pytest.mark.parametrize(
    ("call", "without", "with_result"),
    [
        ("gelu(x0)", (), ()),
        ("sin(x0)", (), ()),
        ("tanh(x0)", ("aten.tanh.default",), ()),
        ("_softmax(x0, -1, False)", ("aten._softmax.default",), ()),
    ],
)
def test_backward_calls_of_forward_what_it_cannot_read(
    call: str, without: tuple[str, ...], with_result: tuple[str, ...]
) -> None:
    tape = recorded(call)
    own, reading = tape.backward(()), tape.backward((0,))
    assert own is not None
    assert reading is not None
    assert (own.again, reading.again) == (without, with_result)
