"""The text of a factor rule: what is written left and right of the arrow, parsed into dimensions and factors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, final

from maniple.process.error import RequestError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]+")


@final
@dataclass(frozen=True, slots=True)
class Term:
    """One occurrence of a factor in a dimension.

    Args:
        factor: The factor's name.
        whole: Written ``k!``: the factor is never split.
        halo: Written ``y~``: the dimension is the input extent that output factor ``y`` reads through a window.
        gathered: Written ``v?``: values of another operand pick along the dimension, so that a point of the iteration
            space costs nothing for what is not picked.
    """

    factor: str
    whole: bool = False
    halo: bool = False
    gathered: bool = False

    def __str__(self) -> str:
        return f"{self.factor}{'!' if self.whole else ''}{'~' if self.halo else ''}{'?' if self.gathered else ''}"


@final
@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of an operand or result: a single term, or a compound ``(c y x)`` with the major term first.

    Args:
        terms: Its factors; none for a dimension written as a number.
        extent: Of a dimension without factors: the extent that it always has, and of which every tile uses all.
    """

    terms: tuple[Term, ...]
    extent: int = 1

    @property
    def halo(self) -> str | None:
        """The output factor whose window this dimension is, or None."""
        return self.terms[0].factor if self.terms and self.terms[0].halo else None

    def __str__(self) -> str:
        if not self.terms:
            return str(self.extent)
        text = " ".join(str(term) for term in self.terms)
        return text if len(self.terms) == 1 else f"({text})"


@final
@dataclass(frozen=True, slots=True)
class Pattern:
    """The dimensions of one operand, result or saved tensor.

    Args:
        dimensions: One per dimension of the tensor.
        optional: Written in brackets: the operand may be absent.
        joins: Written ``[o]@i``: the operand is used only by the first part of a split of factor ``i``.
    """

    dimensions: tuple[Dimension, ...]
    optional: bool = False
    joins: str | None = None

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors in order of appearance."""
        return tuple(term.factor for dimension in self.dimensions for term in dimension.terms)

    def __str__(self) -> str:
        text = " ".join(str(dimension) for dimension in self.dimensions)
        if not self.optional:
            return text
        return f"[{text}]" + (f"@{self.joins}" if self.joins else "")


def refuse(text: str, place: int, message: str) -> NoReturn:
    """Raise a RequestError that shows ``place`` in ``text`` with a caret.

    Raises:
        RequestError: Always.
    """
    raise RequestError(f"factor rule: {message}\n    {text}\n    {' ' * place}^")


def parse_patterns(text: str) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
    """The operands and the results of a rule's text.

    Args:
        text: ``"operand, operand, [optional]@factor -> result, result"``.

    Raises:
        RequestError: The text is not a rule; the message shows the place.
    """
    arrow = text.find("->")
    if arrow < 0:
        refuse(text, len(text), "expected '->' between the operands and the results")
    if (second := text.find("->", arrow + 2)) >= 0:
        refuse(text, second, "expected one '->', found a second")
    operands = tuple(_parse_operand(text, start, stop) for start, stop in _pieces(text, 0, arrow))
    results = tuple(
        Pattern(_parse_dimensions(text, start, stop)) for start, stop in _pieces(text, arrow + 2, len(text))
    )
    return operands, results


def _pieces(text: str, start: int, stop: int) -> list[tuple[int, int]]:
    """Where the tensors that commas separate begin and end in text[start:stop]."""
    pieces = []
    for piece in text[start:stop].split(","):
        pieces.append((start, start + len(piece)))
        start += len(piece) + 1
    return pieces


def parse_pattern(text: str) -> Pattern:
    """The dimensions of a tensor by itself, e.g. of a saved region: ``"b c!"``.

    Raises:
        RequestError: The text is not a list of dimensions.
    """
    return Pattern(_parse_dimensions(text, 0, len(text)))


def check_patterns(
    text: str, operands: tuple[Pattern, ...], results: tuple[Pattern, ...], windows: set[str], sizes: set[str]
) -> None:
    """Refuse patterns that do not agree with each other.

    Args:
        text: The rule that they come from.
        operands: The operands' patterns.
        results: The results'.
        windows: The factors that a window was given for.
        sizes: The factors whose extent was given.

    Raises:
        RequestError: Shows the place.
    """
    arrow = text.find("->")
    known = {name for operand in operands for name in operand.factors} | sizes
    produced = {name for result in results for name in result.factors}
    for name in sorted(produced - known):
        refuse(text, text.find(name, arrow), f"factor '{name}' of the result is in no operand")
    for pattern in (*operands, *results):
        if repeated := [name for name in pattern.factors if pattern.factors.count(name) > 1]:
            refuse(text, text.find(repeated[0]), f"factor '{repeated[0]}' appears twice in one tensor")
        if pattern.joins is not None and pattern.joins not in known:
            refuse(text, text.find(f"@{pattern.joins}"), f"'@{pattern.joins}' names no factor")
    if any(dimension.halo for result in results for dimension in result.dimensions):
        refuse(text, text.find("~", arrow), "a result cannot have a halo")
    windowed = {dimension.halo for operand in operands for dimension in operand.dimensions if dimension.halo}
    for name in sorted(windowed):
        if name not in produced:
            refuse(text, text.find(f"{name}~"), f"halo factor '{name}' is in no result")
        if name not in windows:
            refuse(text, text.find(f"{name}~"), f"no window was given for halo factor '{name}'")
    if unused := sorted(windows - windowed):
        refuse(text, 0, f"a window was given for '{unused[0]}', which is no halo factor")


def _parse_operand(text: str, start: int, stop: int) -> Pattern:
    """The operand that is written in text[start:stop]."""
    while start < stop and text[start] == " ":
        start += 1
    if start == stop or text[start] != "[":
        return Pattern(_parse_dimensions(text, start, stop))
    close = text.find("]", start, stop)
    if close < 0:
        refuse(text, start, "'[' is never closed")
    joins = None
    rest = text[close + 1 : stop].strip(" ")
    if rest:
        name = rest[1:]
        if rest[0] != "@" or not _NAME.fullmatch(name):
            refuse(text, close + 1, "expected '@' and one factor, or nothing, after ']'")
        joins = name
    return Pattern(_parse_dimensions(text, start + 1, close), optional=True, joins=joins)


def _parse_dimensions(text: str, start: int, stop: int) -> tuple[Dimension, ...]:
    """The dimensions that are written in text[start:stop]."""
    dimensions: list[Dimension] = []
    place = start
    while place < stop:
        if text[place] == " ":
            place += 1
        elif text[place] == "(":
            dimension, place = _parse_compound(text, place, stop)
            dimensions.append(dimension)
        elif number := _NUMBER.match(text, place, stop):
            dimensions.append(Dimension((), int(number.group())))
            place = number.end()
        else:
            term, place = _parse_term(text, place, stop)
            dimensions.append(Dimension((term,)))
    return tuple(dimensions)


def _parse_compound(text: str, opening: int, stop: int) -> tuple[Dimension, int]:
    """The compound that opens at ``opening``, and the place after it."""
    terms: list[Term] = []
    place = opening + 1
    while place < stop and text[place] != ")":
        if text[place] == " ":
            place += 1
            continue
        begin = place
        term, place = _parse_term(text, place, stop)
        if term.halo:
            refuse(text, begin, "a halo dimension cannot be part of a compound")
        terms.append(term)
    if place >= stop:
        refuse(text, opening, "'(' is never closed")
    if len(terms) < 2:
        refuse(text, opening, "a compound needs at least two factors")
    return Dimension(tuple(terms)), place + 1


def _parse_term(text: str, place: int, stop: int) -> tuple[Term, int]:
    """The factor at ``place`` with its suffix, and the place after it."""
    match = _NAME.match(text, place, stop)
    if match is None:
        refuse(text, place, f"expected a factor's name, found '{text[place]}'")
    end = match.end()
    suffix = text[end] if end < stop and text[end] in "!~?" else ""
    if not suffix and end < stop and text[end] not in " )]":
        refuse(text, end, f"unknown suffix '{text[end]}' of factor '{match.group()}'; the suffixes are !, ~ and ?")
    end += len(suffix)
    if end < stop and text[end] not in " )":
        refuse(text, end, f"expected a space, found '{text[end]}'")
    return Term(match.group(), suffix == "!", suffix == "~", suffix == "?"), end
