"""The tolerance of re-ordered floating-point sums: what law 1 allows two results to differ by."""

from __future__ import annotations

import torch

# |a - b| <= tol * max(1, max|b|), for each element by itself.
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def violations(name: str, found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> list[str]:
    """A line for each element that is too far from what was wanted; a NaN is, and so is whatever is not finite.

    Args:
        name: what the values are.
        found: any shape.
        wanted: the same shape.
        tolerance: as in ``TOLERANCE``.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return [f"{name}: {tuple(found.shape)} {found.dtype}, wanted {tuple(wanted.shape)} {wanted.dtype}"]
    if not wanted.numel():
        return []
    bound = tolerance * max(1.0, float(wanted.abs().max()))
    near = ((found - wanted).abs() <= bound) & wanted.isfinite()  # false for a NaN on either side
    return [
        f"{name}{place}: {float(found[tuple(place)])!r}, wanted {float(wanted[tuple(place)])!r} +- {bound:g}"
        for place in (~near).nonzero().tolist()
    ]
