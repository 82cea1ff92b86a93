"""Stock tasks: what cannot be filled is refused where it is asked for, however often."""

from __future__ import annotations

import re

import pytest

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
