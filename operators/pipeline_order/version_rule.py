"""Version rules: which weights forward and backward read where mini-batches follow each other without a flush.

Stage i of p has forward of mini-batch k and backward of mini-batch k - (p - 1 - i) in run k, so that in forward the
updates of the p - 1 - i mini-batches before are missing. Of four stages, the runs in which mini-batch 0 is there:

    run       0    1    2    3
    stage 0   F              B
    stage 1   F         B
    stage 2   F    B
    stage 3   F B

Of a mini-batch that is cut into at least as many micro-batches as stages, every stage has backward in the run after the
one that the mini-batch began, each followed by forward of the micro-batch that comes next. Three stages, four
micro-batches, of which a capital is of the mini-batch that began in this run, and the others of the one before:

    stage 0   b0 f3 b1 F0 b2 F1 b3 F2
    stage 1   b0 f2 b1 f3 b2 F0 b3 F1
    stage 2   b0 f1 b1 f2 b2 f3 b3 F0

So a micro-batch has as many turns from its forward at a stage to its backward there as stages are left, and what tiles
take on their way makes every turn longer. *Early*, with more micro-batches than stages, a stage is further ahead, by as
many turns as there are more, and at most as stages follow it:

    stage 0   b0 F0 b1 F1 b2 F2 b3 F3
    stage 1   b0 f3 b1 F0 b2 F1 b3 F2
    stage 2   b0 f1 b1 f2 b2 f3 b3 F0

What the next run reads, the gradients of one rule and the last forward of another, a stage computes last, for it leaves
as the next run begins; so the stage that reads it need not wait for a pass more.

A version is named by its age: 0 is the newest that a stage has, 1 the one before its latest update. Of four stages:

    rule            forward reads    backward reads    versions kept    what it is
    latest          0 0 0 0          0 0 0 0           1 1 1 1          no care is taken
    stash           0 0 0 0          3 2 1 0           4 3 2 1          PipeDream: backward reads what forward read
    vertical_sync   0 1 2 3          3 3 3 3           4 4 4 4          PipeDream's: all read what stage 0 read
    2bw             F 0, f 1         1 1 1 1           2 2 2 2          PipeDream-2BW: all are one update late

Only `2bw` adds the gradients of micro-batches up: W(t+1) = W(t) - what the optimizer makes of the gradient of
mini-batch t at W(t-1), in every stage (Narayanan et al., ICML 2021, section 3.1). A rule of a predictor reads, at
age 0, what the weights will be some updates later: see `prediction`.
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
        forward: the age of what forward reads of a mini-batch in the run in which it begins.
        keeps: whether a pass that comes runs later reads the same version, which has grown older.
        predicts: whether what is read is predicted; the name is then that of a predictor.
        adds: whether an update has the gradients of several micro-batches, at least as many as there are stages.
        early: whether more of these are in flight than stages are left, so that tiles have time on their way.
    """

    name: str
    forward: Ages
    keeps: bool = False
    predicts: bool = False
    adds: bool = False
    early: bool = False

    def age(self, stage: int, stages: int, behind: int) -> int:
        """The age of what a pass reads, so many runs after its mini-batch began."""
        return self.forward(stage, stages) + (behind if self.keeps else 0)

    def backward(self, stage: int, stages: int) -> int:
        """The age of what backward reads."""
        return self.age(stage, stages, self.behind(stage, stages))

    def behind(self, stage: int, stages: int) -> int:
        """How many runs after a mini-batch began a stage has backward of it, and updates its weights."""
        return 1 if self.adds else lag(stage, stages)

    def begins(self, stage: int, stages: int, part: int, parts: int) -> int:
        """How many runs after a mini-batch of some micro-batches began a stage has forward of one of them."""
        return int(self.adds and part >= self.ahead(stage, stages, parts))

    def ahead(self, stage: int, stages: int, parts: int) -> int:
        """How many turns before backward of a micro-batch a stage has forward of it: so many are in flight after it."""
        follow = lag(stage, stages)
        return follow + self.adds + (min(follow, parts - stages) if self.early else 0)

    def versions(self, stage: int, stages: int) -> int:
        """How many versions a stage keeps of a weight that both passes read."""
        return 1 + max(self.forward(stage, stages), self.backward(stage, stages))


def lag(stage: int, stages: int) -> int:
    """How many micro-batches a stage has forward of before it has backward of the first: as many as stages follow.

    Where a mini-batch is not cut, so many runs after forward of it a stage has backward of it.
    """
    return stages - 1 - stage


def _newest(stage: int, stages: int) -> int:
    del stage, stages
    return 0


def _since_first_stage(stage: int, stages: int) -> int:
    return lag(0, stages) - lag(stage, stages)


RULES: Final[Mapping[str, VersionRule]] = {
    rule.name: rule
    for rule in (
        VersionRule("latest", _newest),
        VersionRule("stash", _newest, keeps=True),
        VersionRule("vertical_sync", _since_first_stage, keeps=True),
        VersionRule("2bw", _newest, keeps=True, adds=True),
    )
}
"""By name those that predict nothing."""


def predicted(name: str) -> VersionRule:
    """The rule under which stages read what a predictor of a name gives."""
    return VersionRule(name, _newest, predicts=True)
