"""Proofs of factor rules by trial, operators of users, and torch's draws made ours for comparison.

May import ``lowering`` and what lies below. Start with ``prover``.
"""

from __future__ import annotations
