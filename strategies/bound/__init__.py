"""A lower bound on the step time of every plan for a graph on a machine.

No plan is faster than any of

    work        all tasks, if every processor were always busy and nothing were split
    path        the longest chain of launches that need each other, each as short as its smallest possible part
    trade-off   any share of a path and the rest of the work: what no number of parts makes little at once
    report      the loss reaches every rank: it crosses a link after a chain through the forward pass, or every rank
                computes the whole forward pass in one memory
    exchange    one memory's processors do all the work, or something crosses a link within a chain of launches

Of plans without a flush, whose steps overlap, only the first is said.

The modules say why: ``span`` for work, ``chain`` for paths, ``trade_off``, and ``crossing`` for the other two.

    linear, b=4 on 4 processors of one memory, whole 9 us, launch 1 us      work 9 us / 4      path 1 us + 8 us / 4
    the same on 4 memories, links of 100 us                                 exchange 9 us: all in one memory
"""

from __future__ import annotations

from maniple.strategies.bound.lower_bound import lower_bound_s
from maniple.strategies.bound.span import NS
from maniple.strategies.bound.whole_step import accumulated_step, whole_step

__all__ = ["NS", "accumulated_step", "lower_bound_s", "whole_step"]
