"""The dots of a factor rule: dimensions that are there whatever the rank, aligned at the end as torch broadcasts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from maniple.operators.rules.pattern import parse_pattern, refuse
from maniple.process.error import RequestError

Shape = tuple[int, ...]

_DOTS = "..."


def expand_ellipsis(text: str, names: tuple[str, ...] | None, shapes: Sequence[Shape | None] | None) -> str:
    """The text with every ``...`` replaced by factors.

    With names alone all dots stand for those. With shapes the dots of each operand stand for as many dimensions as its
    shape has beyond those that are written, and are aligned at the end; where one operand has extent 1 and another has
    more, the first is written as ``1``. The dots of a result stand for all of them.

        "..., ... n -> ... n" of (8, 1, 5) and (4, 5, 3)  is  "d0 1 d2, d1 d2 n -> d0 d1 d2 n"

    Args:
        text: A rule, e.g. ``"b ... -> b ..."``.
        names: The factors that the longest dots stand for; None: ``d0 d1 ...``.
        shapes: Of the operands; None for an absent one.

    Raises:
        RequestError: The text has dots and neither names nor shapes were given, or the shapes do not broadcast.
    """
    place = text.find(_DOTS)
    if place < 0:
        return text
    if shapes is None:
        if names is None:
            refuse(text, place, "'...' needs the names of its factors, or the shapes of the operands")
        return _tidy(text.replace(_DOTS, " ".join(names)))
    left, arrow, right = text.partition("->")
    pieces = left.split(",")
    parts = [_dots_of(piece, shape) for piece, shape in zip(pieces, shapes, strict=False)]
    rank = max((len(part) for part in parts if part is not None), default=0)
    known = names if names is not None else tuple(f"d{axis}" for axis in range(rank))
    if len(known) != rank:
        refuse(text, place, f"expected {rank} names for '...', got {len(known)}")
    extents = _broadcast(text, [part for part in parts if part is not None], rank)
    written = [
        piece if part is None else piece.replace(_DOTS, _write(part, known, extents))
        for piece, part in zip(pieces, [*parts, *(None for _ in pieces[len(parts) :])], strict=True)
    ]
    return _tidy(",".join(written) + arrow + right.replace(_DOTS, " ".join(known)))


def _dots_of(piece: str, shape: Shape | None) -> Shape | None:
    """The extents that the dots of an operand stand for; None where it has none."""
    if _DOTS not in piece or shape is None:
        return None
    before, _, after = piece.strip(" []").partition(_DOTS)
    leading, trailing = len(parse_pattern(before).dimensions), len(parse_pattern(after).dimensions)
    if len(shape) < leading + trailing:
        raise RequestError(
            f"factor rule: '{piece.strip()}' needs at least {leading + trailing} dimensions, got {shape}"
        )
    return shape[leading : len(shape) - trailing]


def _broadcast(text: str, parts: list[Shape], rank: int) -> Shape:
    """The extents of the longest dots.

    Raises:
        RequestError: Two extents differ, and neither is 1.
    """
    extents = [1] * rank
    for part in parts:
        for axis, extent in enumerate(part, rank - len(part)):
            if extent != 1 and extents[axis] not in (1, extent):
                raise RequestError(f"factor rule '{text}': the shapes {parts} of '...' do not broadcast")
            extents[axis] = max(extents[axis], extent)
    return tuple(extents)


def _write(part: Shape, names: tuple[str, ...], extents: Shape) -> str:
    """The dimensions of one operand's dots."""
    first = len(names) - len(part)
    return " ".join("1" if extent < extents[axis] else names[axis] for axis, extent in enumerate(part, first))


def _tidy(text: str) -> str:
    """The text without doubled spaces."""
    return re.sub(r" +", " ", text).replace(" ,", ",").strip(" ")
