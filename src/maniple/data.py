"""Data: samples in an order that a seed decides, of which each rank reads those alone that its tasks take."""

from __future__ import annotations

from maniple.sample_loader import Loader as Loader

__all__ = ["Loader"]
