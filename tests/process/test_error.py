from __future__ import annotations

import pytest

from maniple.process.error import ManipleError, RequestError, RunError, nearest


def test_the_family_derives_from_the_builtins() -> None:
    assert issubclass(RequestError, ManipleError)
    assert issubclass(RequestError, ValueError)
    assert issubclass(RunError, ManipleError)
    assert issubclass(RunError, RuntimeError)
    assert not issubclass(RunError, ValueError)


@pytest.mark.parametrize(
    ("name", "choices", "suffix"),
    [
        ("expret", ["soap", "expert", "random"], "; did you mean 'expert'? choices: expert, random, soap"),
        ("EXPERT", ["expert", "soap"], "; did you mean 'expert'? choices: expert, soap"),
        ("zzz", ["b", "a", "b"], "; choices: a, b"),
        ("a", [], "; there are no choices"),
    ],
)
def test_nearest_lists_the_choices_and_the_nearest(name: str, choices: list[str], suffix: str) -> None:
    assert nearest(name, choices) == suffix
