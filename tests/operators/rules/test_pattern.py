"""The text of a rule: every text comes back from what was parsed, and disagreements are shown at their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.rules.pattern import Dimension, Pattern, Term, check_patterns, parse_pattern, parse_patterns
from maniple.process.error import RequestError

NAMES = st.sampled_from(["b", "k", "d0", "Rows", "y_2"])
TERMS = st.tuples(NAMES, st.sampled_from(["", "!", "?"])).map("".join)
DIMENSIONS = st.one_of(
    TERMS,
    NAMES.map("{}~".format),
    st.integers(0, 99).map(str),
    st.lists(TERMS, min_size=2, max_size=3).map(lambda terms: f"({' '.join(terms)})"),
)
TENSORS = st.lists(DIMENSIONS, max_size=4).map(" ".join)
OPERANDS = st.one_of(TENSORS, TENSORS.map("[{}]".format), st.tuples(TENSORS, NAMES).map(lambda a: "[{}]@{}".format(*a)))


@given(operands=st.lists(OPERANDS, min_size=1, max_size=3), results=st.lists(TENSORS, min_size=1, max_size=2))
def test_what_was_parsed_reads_as_it_was_written(operands: list[str], results: list[str]) -> None:
    left, right = parse_patterns(f"{', '.join(operands)} -> {', '.join(results)}")
    assert [str(pattern) for pattern in left] == operands
    assert [str(pattern) for pattern in right] == results


def test_each_mark_says_one_thing() -> None:
    pattern = parse_pattern("b k! v? y~ (c x) 7")
    assert pattern.dimensions == (
        Dimension((Term("b"),)),
        Dimension((Term("k", whole=True),)),
        Dimension((Term("v", gathered=True),)),
        Dimension((Term("y", halo=True),)),
        Dimension((Term("c"), Term("x"))),
        Dimension((), 7),
    )
    assert [dimension.halo for dimension in pattern.dimensions] == [None, None, None, "y", None, None]
    assert pattern.factors == ("b", "k", "v", "y", "c", "x")


def test_an_operand_in_brackets_may_be_absent_and_may_join_one_part_of_a_split() -> None:
    (plain, optional, joining), _ = parse_patterns("n, [n], [n]@k -> n")
    dimensions = (Dimension((Term("n"),)),)
    assert plain == Pattern(dimensions)
    assert optional == Pattern(dimensions, optional=True)
    assert joining == Pattern(dimensions, optional=True, joins="k")


@pytest.mark.parametrize(
    ("text", "windows", "message", "place"),
    [
        ("b -> b k", set(), "factor 'k' of the result is in no operand", 7),
        ("b b -> b", set(), "factor 'b' appears twice in one tensor", 0),
        ("b, [b]@z -> b", set(), "'@z' names no factor", 6),
        ("y -> y~", {"y"}, "a result cannot have a halo", 6),
        ("b y~ -> b", {"y"}, "halo factor 'y' is in no result", 2),
        ("b y~ -> b y", set(), "no window was given for halo factor 'y'", 2),
        ("b -> b", {"b"}, "a window was given for 'b', which is no halo factor", 0),
    ],
)
def test_patterns_that_disagree_are_shown_where(text: str, windows: set[str], message: str, place: int) -> None:
    with pytest.raises(RequestError) as refused:
        check_patterns(text, *parse_patterns(text), windows, set())
    first, shown, caret = str(refused.value).splitlines()
    assert message in first
    assert shown.strip() == text
    assert caret.index("^") - shown.index(text) == place
