"""Stock tasks: what cannot be filled or copied is refused where it is asked for, however often."""

from __future__ import annotations

import re

import pytest

import maniple as mp
from maniple.process.error import RequestError
from maniple.runtime.program.stock_task import check_fill


def test_a_value_that_a_type_cannot_hold_is_refused_each_time() -> None:
    for _ in range(2):
        check_fill(3.5, "float32")
        check_fill(3, "uint8")
        check_fill(0.1, "complex64")
        for value, dtype in (
            *((1e300, "float32"), (1e30, "int64"), ("three", "float32"), (300, "uint8")),
            *((2.5, "int64"), (float("nan"), "int32"), (2, "bool")),
        ):
            with pytest.raises(
                RequestError, match=re.escape(f"expected a number that {dtype} can hold, got {value!r}")
            ):
                check_fill(value, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "wanted", "legal"),
    [
        *(
            ("float32", "float64", True),
            ("float64", "float32", True),
            ("int64", "float32", True),
            ("bool", "int8", True),
        ),
        *(
            ("float32", "int64", False),
            ("bfloat16", "uint8", False),
            ("int64", "bool", False),
            ("float32", "bool", False),
        ),
    ],
)
def test_a_copy_loses_no_fraction(held: str, wanted: str, *, legal: bool) -> None:
    source, target = mp.region((4,), dtype=held), mp.region((4,), dtype=wanted)
    halves = mp.blocks((2,))
    source.fill(1)
    for given in ((source, target), (source[halves], target[halves])):
        if legal:
            mp.copy(*given)
            assert target.read().tolist() == [1, 1, 1, 1]
        else:
            with pytest.raises(RequestError, match=f"copy: {wanted} cannot hold what {held} may"):
                mp.copy(*given)


def test_fields_are_copied_one_by_one() -> None:
    both = {"a": "float32", "b": "int64"}
    source, target = (mp.region((4,), name=name, fields=both) for name in ("source", "target"))
    source["a"].fill(2)
    with pytest.raises(RequestError, match=r"source.* has several fields; name one"):
        mp.copy(source, target)
    mp.copy(source["a"], target["a"])
    assert target["a"].read().tolist() == [2, 2, 2, 2]
