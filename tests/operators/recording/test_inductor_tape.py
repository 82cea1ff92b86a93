"""Inductor tapes: the same values as the calls themselves, compiled once for tapes that are alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maniple.operators.recording import inductor_tape
from maniple.operators.recording.compiled_tape import Written
from maniple.operators.recording.inductor_tape import bind_compiled
from maniple.operators.recording.tape import Recorder
from maniple.process import torch_internals

needs_compiler = pytest.mark.skipif(bool(torch_internals.missing_compiler()), reason="torch finds no C++ compiler")


def recorded(x: Tensor, y: Tensor) -> tuple[list[object], list[int]]:
    """A sum, its rows normalized, and the numbers of both."""
    with Recorder([x, y]) as tape:
        total = x + y
        normal = torch.nn.functional.layer_norm(total, (5,))
    return tape.calls, [tape.number(total), tape.number(normal)]  # type: ignore[return-value]


@needs_compiler
def test_values_are_those_of_the_calls_wherever_tensors_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """All lie in one block, as regions do; one result is added to what is there. Of two layouts, two are compiled."""
    made: list[object] = []
    compile_it = torch_internals.compiled_by_inductor

    def counted(*given: object) -> object:
        made.append(given)
        return compile_it(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(torch_internals, "compiled_by_inductor", counted)
    monkeypatch.setattr(inductor_tape, "_COMPILED", {})
    for width in (5, 5, 7):
        block = torch.randn(4, 3, width, dtype=torch.float64)
        x, y, total, normal = (block[place, :, :5] for place in range(4))
        before = normal.clone()
        calls, (first, second) = recorded(x, y)
        written = [Written(first, total), Written(second, normal, adds=True)]
        run = bind_compiled(calls, {0: x, 1: y}, written, 1)  # type: ignore[arg-type]
        assert torch.equal(normal, before), "binding runs nothing"
        run()
        torch.testing.assert_close(total, x + y, rtol=0, atol=0)
        expected = before + torch.nn.functional.layer_norm(x + y, (5,))
        torch.testing.assert_close(normal, expected, rtol=0, atol=1e-14)
    assert len(made) == 2


def test_what_nothing_computes_or_has_no_elements_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals, "compiled_by_inductor", lambda *_: pytest.fail("compiled"))
    x, target = torch.arange(6.0).view(2, 3), torch.zeros(3, 2)
    with Recorder([x]) as tape:
        turned = x.t()
    bind_compiled(tape.calls, {0: x}, [Written(tape.number(turned), target)], 1)()
    assert torch.equal(target, x.t())
    empty, none = torch.zeros(0, 5), torch.zeros(0, 5)
    calls, (first, _) = recorded(empty, empty)
    bind_compiled(calls, {0: empty, 1: empty}, [Written(first, none)], 1)()  # type: ignore[arg-type]
