"""Access checks: writes that are left out are found, and what bodies lawfully write is left as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from maniple.process.error import RunError
from maniple.regions.index_space import RectSet
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.program.access_check import PATTERNS, CheckedArgument, guard_access

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool)


def argument(view: torch.Tensor, privilege: Privilege = WRITE_DISCARD, lo: int = 0) -> CheckedArgument:
    space = Rect(tuple(lo for _ in view.shape), tuple(lo + extent for extent in view.shape))
    return CheckedArgument("y", "region", view, space, privilege)


def run(body: Callable[..., object], *arguments: CheckedArgument) -> object:
    return guard_access(body, arguments)(*(each.view for each in arguments))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_left_out_is_found_in_every_type_and_named(dtype: torch.dtype) -> None:
    view = torch.zeros(6, dtype=dtype)

    def half(y: torch.Tensor) -> None:
        y[:2] = 1

    with pytest.raises(
        RunError, match=r"left 4 of the 6 elements of its argument 'y' unwritten \(region: first 12, 13, 14\)"
    ):
        run(half, argument(view, lo=10))


@pytest.mark.parametrize("dtype", DTYPES[:-1])  # no truth value looks so
@pytest.mark.parametrize("pattern", range(len(PATTERNS)))
def test_a_body_may_write_what_looks_unwritten(dtype: torch.dtype, pattern: int) -> None:
    value = torch.zeros(4, dtype=dtype)
    argument(value).paint(pattern)
    view = torch.zeros(4, dtype=dtype)
    assert run(lambda y: y.copy_(value), argument(view)) is view
    assert torch.equal(view.view(torch.uint8), value.view(torch.uint8))


def test_nan_and_chance_are_values_like_any_other() -> None:
    view = torch.zeros(4)
    run(lambda y: y.fill_(torch.nan), argument(view))
    assert view.isnan().all()
    view = torch.zeros(4096, dtype=torch.uint8)  # of so many, some are the pattern's
    torch.manual_seed(1)
    run(lambda y: y.random_(0, 256), argument(view))
    torch.manual_seed(1)
    assert torch.equal(view, torch.zeros_like(view).random_(0, 256))
    after = torch.rand(1)
    torch.manual_seed(1)
    torch.zeros(4096, dtype=torch.uint8).random_(0, 256)
    assert torch.equal(after, torch.rand(1))


def test_the_results_are_those_of_one_run() -> None:
    y, total, sums = torch.zeros(4, dtype=torch.uint8), torch.ones(2), torch.zeros(3)
    argument(y).paint(0)
    painted = y.clone()
    calls = []

    def body(y: torch.Tensor, total: torch.Tensor, sums: torch.Tensor) -> int:
        calls.append(total.clone())
        y.copy_(painted)
        total += 1
        sums += 2
        return len(calls)

    arguments = argument(y), argument(total, READ_WRITE), argument(sums, reduce("+"))
    assert run(body, *arguments) == 1
    assert torch.equal(y, painted)
    assert (total.tolist(), sums.tolist()) == ([2.0] * 2, [2.0] * 3)
    assert [given.tolist() for given in calls] == [[1.0, 1.0], [1.0, 1.0]]


def test_views_scalars_and_sparse_elements() -> None:
    storage = torch.zeros(6, 6)
    run(lambda y: y.fill_(3.0), argument(storage[1:5:2, ::3]))
    assert storage.sum() == 12.0
    with pytest.raises(RunError, match=r"first \(0, 1\), \(1, 0\)|\(0, 1\), \(1, 0\), \(1, 1\)"):
        run(lambda y: y[0, 0].fill_(1.0), argument(storage[1:5:2, ::3]))
    with pytest.raises(RunError, match="left 1 of the 1 elements"):
        run(lambda y: None, argument(torch.zeros(())))
    some = RectSet((Rect((2,), (3,)), Rect((5,), (7,))))
    sparse = CheckedArgument("y", "region", torch.zeros(5), some, WRITE_DISCARD)
    run(lambda y: y.index_fill_(0, torch.tensor([0, 3, 4]), 1.0), sparse)
    with pytest.raises(RunError, match=r"left 1 of the 3 elements .*region: 6\)"):
        run(lambda y: y.index_fill_(0, torch.tensor([0, 3]), 1.0), sparse)


def test_a_write_of_what_is_read_is_found() -> None:
    view = torch.tensor([torch.nan, 1.0])
    run(lambda y: float(y.sum()), argument(view, READ))
    with pytest.raises(RunError, match="wrote its argument 'y', which it declares as read"):
        run(lambda y: y.fill_(1.0), argument(view, READ))
