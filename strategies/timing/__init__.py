"""Timing: when the rows of a simulated step run after a change.

From scratch they run as ``runtime/schedule/order`` says. Start with ``ledger``.
"""

from __future__ import annotations
