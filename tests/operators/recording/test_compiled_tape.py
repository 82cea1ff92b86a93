"""Compiled tapes: what a body makes is made where it belongs, and copied only where torch has no way."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from maniple.operators.recording.compiled_tape import Written, bind_calls
from maniple.operators.recording.tape import Recorder
from maniple.process.gc_pause import pause_gc

X = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4)


class Calls(TorchDispatchMode):
    """The names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.names.append(str(func).removeprefix("aten."))
        return func(*args, **(kwargs or {}))


def compiled(function: Callable[..., tuple[Tensor, ...]], operands: list[Tensor], targets: list[Tensor]) -> list[str]:
    """Run a function's tape on other values into the targets; gives what was called."""
    with torch.no_grad(), Recorder(operands) as tape:
        found = function(*operands)
    written = [Written(tape.number(value), target) for value, target in zip(found, targets, strict=True)]
    others = [doubled(operand) for operand in operands]
    run = bind_calls(tape.calls, dict(enumerate(others)), written)
    with Calls() as calls:
        run()
    for value, target in zip(function(*others), targets, strict=True):
        assert torch.equal(value, target)
    return calls.names


def doubled(value: Tensor) -> Tensor:
    """Other values that lie alike."""
    if value.is_contiguous():
        return value * 2 if value.is_floating_point() else value.clone()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value * 2)


def spread(*shape: int) -> Tensor:
    """Memory that lies between other memory."""
    return torch.zeros(*(extent + 2 for extent in shape), dtype=X.dtype)[tuple(slice(1, 1 + each) for each in shape)]


def test_a_result_is_made_where_it_is_wanted() -> None:
    assert compiled(lambda x: (torch.nn.functional.gelu(x),), [X], [torch.zeros_like(X)]) == ["gelu.out"]
    assert compiled(lambda x: (x * 3,), [X], [spread(3, 4)]) == ["mul.out"]
    assert compiled(lambda x: (x.clone(),), [X], [spread(3, 4)]) == ["copy_.default"]


def test_a_view_of_what_is_made_is_undone_on_the_target() -> None:
    assert compiled(lambda x: ((x @ x.t()).t(),), [X], [spread(3, 3)]) == ["t.default", "mm.out"]
    assert compiled(lambda x: (x.exp().view(2, 6),), [X], [torch.zeros(2, 6, dtype=X.dtype)]) == ["exp.out"]
    assert compiled(lambda x: (x.exp().permute(1, 0),), [X], [spread(4, 3)]) == ["exp.out"]


def test_a_view_that_the_target_does_not_have_is_copied() -> None:
    names = compiled(lambda x: (x.exp().view(2, 6),), [X], [spread(2, 6)])
    assert names == ["exp.default", "view.default", "copy_.default"]


def test_a_value_that_others_read_as_it_was_recorded_is_not_put_between_others() -> None:
    def both(x: Tensor) -> tuple[Tensor, ...]:
        first = x.exp()
        return first, first.view(12).sum(0)

    assert "exp.default" in compiled(both, [X], [spread(3, 4), torch.zeros((), dtype=X.dtype)])
    assert "exp.out" in compiled(both, [X], [torch.zeros(3, 4, dtype=X.dtype), torch.zeros((), dtype=X.dtype)])


def test_a_value_that_is_wanted_twice_is_made_once() -> None:
    def twice(x: Tensor) -> tuple[Tensor, ...]:
        found = x.sin()
        return found, found

    assert compiled(twice, [X], [torch.zeros_like(X), spread(3, 4)]) == ["sin.out", "copy_.default"]


def test_what_reads_memory_as_if_it_lay_dense_is_not_placed() -> None:
    """native_batch_norm.out gives other values than native_batch_norm where its rows lie apart."""
    rows = spread(3, 4).copy_(torch.arange(12, dtype=X.dtype).reshape(3, 4))
    targets = [torch.zeros(3, 4, dtype=X.dtype), torch.zeros(4, dtype=X.dtype), torch.zeros(4, dtype=X.dtype)]

    def normed(x: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)  # type: ignore[no-any-return]

    assert "native_batch_norm.out" not in compiled(normed, [rows], targets)
    assert compiled(normed, [rows.contiguous()], targets) == ["native_batch_norm.out"]
    assert "native_batch_norm.out" not in compiled(normed, [rows.contiguous()], [spread(3, 4), *targets[1:]])


IMAGES = torch.linspace(-1, 1, 96, dtype=torch.float64).view(1, 2, 6, 8)
OF_DENSE: dict[str, Callable[[Tensor], Tensor]] = {
    "_softmax.out": lambda x: x.softmax(-1),
    "_log_softmax.out": lambda x: x.log_softmax(1),
    "avg_pool2d.out": lambda x: torch.nn.functional.avg_pool2d(x, 2),
    "cumsum.out": lambda x: x.cumsum(1),
    "upsample_nearest2d.out": lambda x: torch.ops.aten.upsample_nearest2d(x, [12, 16]),  # type: ignore[no-any-return]
    "constant_pad_nd.default": lambda x: torch.nn.functional.pad(x, (1, 1)),  # torch has no kernel that writes it
}


@pytest.mark.parametrize("name", OF_DENSE)
@pytest.mark.parametrize("between", [False, True])
def test_what_lies_dense_is_made_where_it_is_wanted_bit_for_bit(name: str, between: bool) -> None:
    function = OF_DENSE[name]
    shape = function(IMAGES).shape
    target = spread(*shape) if between else torch.zeros(shape, dtype=IMAGES.dtype)
    names = compiled(lambda x: (function(x),), [IMAGES], [target])
    assert (name in names) == (not between or "default" in name)
    assert ("copy_.default" in names) == (between or "default" in name)


def test_what_a_body_is_given_anew_is_asked_for_in_each_run() -> None:
    with torch.no_grad(), Recorder([X]) as tape:
        found = X * 3
    target, drawn = torch.zeros_like(X), iter([X, X + 1])
    run = bind_calls(tape.calls, {0: lambda: next(drawn)}, [Written(tape.number(found), target)])
    for value in (X, X + 1):
        run()
        assert torch.equal(target, value * 3)


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: x.exp(),
    "neg": lambda x: -x,
    "half": lambda x: x * 0.5,
    "t": lambda x: x.t(),
    "flat": lambda x: x.reshape(-1, x.shape[0]) if x.is_contiguous() else x.clone(),
    "gram": lambda x: x @ x.t(),
    "softmax": lambda x: x.softmax(-1),
    "detach": lambda x: x.detach(),
    "twice": lambda x: x + x,
}


@given(steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5), between=st.booleans())
def test_drawn_chains_give_what_they_gave(steps: list[str], *, between: bool) -> None:
    def chain(x: Tensor) -> tuple[Tensor, ...]:
        for step in steps:
            x = STEPS[step](x)
        return (x,)

    shape = chain(X)[0].shape
    compiled(chain, [X], [spread(*shape) if between else torch.zeros(shape, dtype=X.dtype)])


@pytest.mark.parametrize("number", [2, 0.5])
def test_numbers_stand_for_tensors_of_the_same_kind(number: float) -> None:
    def scaled(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.ops.aten.mul.Scalar(x, number),)

    target = torch.zeros(3, 4)
    assert compiled(scaled, [X.float()], [target]) == ["mul.out"]


def test_what_a_bound_tape_holds_goes_with_it_and_waits_for_no_collector() -> None:
    operand, target = X.clone(), torch.zeros_like(X)
    with torch.no_grad(), Recorder([operand]) as tape:
        found = operand.exp()
    run = bind_calls(tape.calls, {0: operand}, [Written(tape.number(found), target)])
    run()
    held = [weakref.ref(operand), weakref.ref(target)]
    del operand, target, found, tape
    assert all(each() is not None for each in held)
    with pause_gc():
        del run
        assert [each() for each in held] == [None, None]
