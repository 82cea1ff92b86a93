"""Version rules: which weights forward and backward read where mini-batches follow each other without a flush.

Stage i of p has forward of mini-batch k and backward of mini-batch k - (p - 1 - i) in run k, so that in forward the
updates of the p - 1 - i mini-batches before are missing. Of four stages, the runs in which mini-batch 0 is there:

    run       0    1    2    3
    stage 0   F              B
    stage 1   F         B
    stage 2   F    B
    stage 3   F B

A version is named by its age: 0 is the newest that a stage has, 1 the one before its latest update. Of four stages:

    rule            forward reads    backward reads    versions kept    what it is
    latest          0 0 0 0          0 0 0 0           1 1 1 1          no care is taken
    stash           0 0 0 0          3 2 1 0           4 3 2 1          PipeDream: backward reads what forward read
    vertical_sync   0 1 2 3          3 3 3 3           4 4 4 4          PipeDream's: all read what stage 0 read

A rule of a predictor reads, at age 0, what the weights will be some updates later: see `prediction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

__all__: list[str] = []

Ages = Callable[[int, int], int]
"""An age, of a stage among so many."""


@final
@dataclass(frozen=True, slots=True)
class VersionRule:
    """Which versions of weights a stage reads.

    Args:
        name: as `semantics.weights` has it.
        forward: the age of what forward reads.
        backward: of what backward reads.
        predicts: whether what is read is predicted; the name is then that of a predictor.
    """

    name: str
    forward: Ages
    backward: Ages
    predicts: bool = False

    def versions(self, stage: int, stages: int) -> int:
        """How many versions a stage keeps of a weight that both passes read."""
        return 1 + max(self.forward(stage, stages), self.backward(stage, stages))


def lag(stage: int, stages: int) -> int:
    """How many runs after forward of a mini-batch a stage has backward of it."""
    return stages - 1 - stage


def _newest(stage: int, stages: int) -> int:
    del stage, stages
    return 0


def _first_stages(stage: int, stages: int) -> int:
    del stage
    return stages - 1


def _since_first_stage(stage: int, stages: int) -> int:
    return lag(0, stages) - lag(stage, stages)


RULES: Final[Mapping[str, VersionRule]] = {
    rule.name: rule
    for rule in (
        VersionRule("latest", _newest, _newest),
        VersionRule("stash", _newest, lag),
        VersionRule("vertical_sync", _since_first_stage, _first_stages),
    )
}
"""By name those that predict nothing."""


def predicted(name: str) -> VersionRule:
    """The rule under which stages read what a predictor of a name gives."""
    return VersionRule(name, _newest, _newest, predicts=True)
