"""METG: the smallest granularity of tasks at which a system still keeps half of the machine computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maniple.process.error import RunError

THRESHOLD = 0.5
IMPLAUSIBLE = 1.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One size of task, measured.

    Args:
        iterations: of the kernel.
        granularity_us: time times cores over tasks, in microseconds.
        efficiency: of the peak of all cores.
    """

    iterations: int
    granularity_us: float
    efficiency: float


class UndecidedError(RunError):
    """A curve that ends before METG is known.

    Args:
        message: what is missing.
        larger: whether larger tasks are needed; else smaller ones.
    """

    def __init__(self, message: str, *, larger: bool) -> None:
        super().__init__(message)
        self.larger = larger


def metg(samples: Sequence[Sample], threshold: float = THRESHOLD) -> float:
    """METG in microseconds (Slaughter et al., Task Bench, SC 2020, section 3.2, and its published scripts).

    Among the sizes whose efficiency is at least the threshold, the one of smallest granularity; then interpolated
    linearly, in efficiency, towards the next smaller size, where that one's granularity is smaller still:

        iterations  granularity  efficiency
              4096         60 us        0.83
              2048         35 us        0.71
              1024       22.5 us        0.56    the smallest at or above 0.5
               512         16 us        0.39    so METG = 16 + (22.5 - 16) * (0.5 - 0.39) / (0.56 - 0.39) = 20.2 us

    Args:
        samples: one per size, in any order.
        threshold: the efficiency to keep.

    Raises:
        UndecidedError: no size reaches the threshold, or none is below it.
        RunError: an efficiency above 150 %: the time or the peak is wrong.
    """
    curve = sorted(samples, key=lambda sample: -sample.iterations)
    for sample in curve:
        if sample.efficiency > IMPLAUSIBLE:
            raise RunError(f"{sample.iterations} iterations ran at {sample.efficiency:.0%} of the peak; measure again")
    above = [number for number, sample in enumerate(curve) if sample.efficiency >= threshold]
    if not above:
        raise UndecidedError(f"no size of task reaches {threshold:.0%}", larger=True)
    least = min(above, key=lambda number: curve[number].granularity_us)
    if least + 1 == len(curve):
        raise UndecidedError(f"no size of task lies below {threshold:.0%}", larger=False)
    upper, lower = curve[least], curve[least + 1]
    if lower.granularity_us >= upper.granularity_us:
        return upper.granularity_us
    share = (threshold - lower.efficiency) / (upper.efficiency - lower.efficiency)
    return lower.granularity_us + share * (upper.granularity_us - lower.granularity_us)
