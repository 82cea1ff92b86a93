from __future__ import annotations

import math

import numpy as np
import pytest

from maniple.process.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Coherence, Privilege, ReductionOp, reduce

FOLDS = {"+": np.add, "*": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize(
    ("privilege", "text", "reads", "writes", "reduces"),
    [
        (READ, "read", True, False, False),
        (WRITE_DISCARD, "write-discard", False, True, False),
        (READ_WRITE, "read-write", True, True, False),
        (reduce("+"), "reduce(+)", False, False, True),
        (reduce("min"), "reduce(min)", False, False, True),
    ],
)
def test_privilege_table(privilege: Privilege, text: str, reads: bool, writes: bool, reduces: bool) -> None:
    assert str(privilege) == text
    assert (privilege.reads, privilege.writes, privilege.reduces) == (reads, writes, reduces)


@pytest.mark.parametrize("symbol", sorted(FOLDS))
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"])
def test_the_identity_changes_nothing(symbol: str, dtype: str) -> None:
    op = reduce(symbol).op
    assert op is not None
    identity = np.array(op.identity(dtype), dtype=dtype)
    values = np.array([0, 1, 1, 0] if dtype == "bool" else [0, 1, 7, 100], dtype=dtype)
    if dtype.startswith(("float", "int")):
        values = np.concatenate([values, -values])
    assert np.array_equal(FOLDS[symbol](identity, values), values)


def test_bfloat16_is_as_the_other_floats() -> None:
    op = reduce("min").op
    assert op is not None
    assert op.identity("bfloat16") == math.inf


def test_equal_privileges_are_one_value() -> None:
    assert reduce("+") == Privilege("reduce", ReductionOp("sum", "+"))
    assert len({reduce("+"), reduce("+"), reduce("*"), READ}) == 3
    assert [coherence.value for coherence in Coherence] == ["exclusive", "atomic", "simultaneous"]


def test_wrong_requests_name_the_good_choices() -> None:
    with pytest.raises(RequestError, match=r"did you mean 'max'\? choices: \*, \+, max, min"):
        reduce("mx")
    with pytest.raises(RequestError, match="did you mean 'read-write'"):
        Privilege("read-writ")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="only reduce"):
        Privilege("read", reduce("+").op)
    with pytest.raises(RequestError, match="only reduce"):
        Privilege("reduce")
    op = reduce("+").op
    assert op is not None
    with pytest.raises(RequestError, match="did you mean 'float32'"):
        op.identity("float33")
