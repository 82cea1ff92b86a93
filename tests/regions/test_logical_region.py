from __future__ import annotations

import pytest

from maniple.process.error import RequestError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect


def test_text_and_sizes() -> None:
    region = LogicalRegion(3, "x", Rect.of_shape((64, 784)), "float32")
    assert str(region) == "x#3[0:64, 0:784] float32"
    assert (region.itemsize, region.size_bytes) == (4, 64 * 784 * 4)
    assert hash(region) == hash(LogicalRegion(3, "x", Rect.of_shape((64, 784)), "float32"))


@pytest.mark.parametrize(
    ("dtype", "itemsize"), [("float64", 8), ("bfloat16", 2), ("int16", 2), ("uint8", 1), ("bool", 1)]
)
def test_itemsizes(dtype: str, itemsize: int) -> None:
    assert LogicalRegion(0, "loss", Rect((), ()), dtype).size_bytes == itemsize


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(RequestError, match=r"'x'.*did you mean 'float32'"):
        LogicalRegion(0, "x", Rect((), ()), "flot32")
