"""Plan tables: ranges say every number in its order, and folding loses no row."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.plan import plan_table
from maniple.operators.plan.plan_table import fold_rows, ranges


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0 1"),
        (list(range(64)), "0-63"),
        ([0, 1, 2, 5, 8, 9], "0-2 5 8 9"),
        (list(range(0, 64, 8)), "0-56:8"),
        ([3, 3, 3, 3], "3 x4"),
        ([5, 4, 3], "5 4 3"),
        ([column + 8 * row for column in range(8) for row in range(8)], "0-56:8 1-57:8 2-58:8 ... 7-63:8 (64 in all)"),
    ],
)
def test_ranges(numbers: list[int], told: str) -> None:
    assert ranges(numbers) == told


def numbers_of(told: str) -> list[int]:
    """The numbers that ranges say."""
    found: list[int] = []
    words = told.split()
    for place, word in enumerate(words):
        if word.startswith("x"):
            found += found[-1:] * (int(word[1:]) - 1)
        elif "-" in word:
            first, last, step = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?", word).groups()  # type: ignore[union-attr]
            found += range(int(first), int(last) + 1, int(step or 1))
        else:
            found.append(int(words[place]))
    return found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 3)), max_size=5))
def test_ranges_say_every_number_in_its_order(runs: list[tuple[int, int, int]]) -> None:
    numbers = [first + step * place for first, count, step in runs for place in range(count)]
    told = ranges(numbers)
    if "..." in told:
        assert told.endswith(f"({len(numbers)} in all)")
    else:
        assert numbers_of(told) == numbers


def test_the_table_of_the_docstring() -> None:
    assert plan_table.__doc__ is not None
    lines = plan_table.__doc__.splitlines()
    rule = next(line for line in lines if line.startswith("    ==="))
    cut = rule.index("     =", 8)
    first = lines.index(rule) + 3
    table = lines[first : first + 7]
    full = [tuple(re.split(r"  +", line[:cut].strip())) for line in table]
    short = [tuple(re.split(r"  +", line[cut:].strip())) for line in table if line[cut:].strip()]
    assert len(full) == 7
    assert len(short) == 3
    numbered = [(name, split, ranges([int(one) for one in processors.split()])) for name, split, processors in full]
    assert fold_rows(numbered) == short


ROWS = st.lists(
    st.tuples(
        st.sampled_from(
            ["linear", "h.0.relu", "h.1.relu", "h.2.relu", "h.3.relu", "add_1", "add_3", "add_5", "b10.c7"]
        ),
        st.sampled_from(["b=2", "whole"]),
    ),
    max_size=14,
)


def unfolded(name: str) -> list[str]:
    """The names that a folded one stands for; all its ranges count on together."""
    found = [numbers_of(part) for part in re.findall(r"\d+-\d+(?::\d+)?", name)]
    if not found:
        return [name]
    parts = re.split(r"\d+-\d+(?::\d+)?", name)
    turns = zip(*found, strict=True)
    return [
        "".join(text + str(number) for text, number in zip(parts, turn, strict=False)) + parts[-1] for turn in turns
    ]


@given(ROWS)
def test_folding_loses_no_row(rows: list[tuple[str, str]]) -> None:
    told = fold_rows(rows)
    assert len(told) <= len(rows)
    assert sorted((name, split) for names, split in told for name in unfolded(names)) == sorted(rows)


def test_layers_that_differ_stay_apart() -> None:
    rows = [(f"h.{layer}.{part}", "b=2" if (layer, part) != (3, "relu") else "whole")
            for layer in range(6) for part in ("linear", "relu")]  # fmt: skip
    assert fold_rows(rows) == [
        ("h.0-2.linear", "b=2"),
        ("h.0-2.relu", "b=2"),
        ("h.3.linear", "b=2"),
        ("h.3.relu", "whole"),
        ("h.4-5.linear", "b=2"),
        ("h.4-5.relu", "b=2"),
    ]
