"""A pipeline of four stages as launches, in a given order of the actions of each: what 1F1B and GPipe come to."""

from __future__ import annotations

from collections.abc import Callable

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.schedule import Schedule

STAGES = 4
TILE = 25_000
Order = Callable[[int, int], list[tuple[str, int]]]


def one_forward_one_backward(stage: int, micro_batches: int) -> list[tuple[str, int]]:
    """1F1B: a stage is ahead by as many micro-batches as there are stages from it on."""
    ahead = min(STAGES - stage, micro_batches)
    actions = [("F", batch) for batch in range(ahead)]
    for batch in range(micro_batches):
        actions.append(("B", batch))
        if ahead + batch < micro_batches:
            actions.append(("F", ahead + batch))
    return actions


def forward_then_backward(_: int, micro_batches: int) -> list[tuple[str, int]]:
    """GPipe."""
    return [(kind, batch) for kind in "FB" for batch in range(micro_batches)]


def merged(order: Order, micro_batches: int) -> list[tuple[str, int, int]]:
    """One order of the actions of all stages that agrees with what each waits for."""
    left = [order(stage, micro_batches) for stage in range(STAGES)]
    done: list[tuple[str, int, int]] = []
    while any(left):
        for stage, actions in enumerate(left):
            if not actions:
                continue
            kind, batch = actions[0]
            near = stage - 1 if kind == "F" else stage + 1
            if not 0 <= near < STAGES or (kind, batch, near) in done:
                done.append((*actions.pop(0), stage))
    return done


def pipeline(order: Order, micro_batches: int, preset: str = f"cpu:{STAGES}x1") -> Schedule:
    """A stage on each memory; what a stage keeps and sends are regions of one micro-batch, and a token its order."""
    regions: dict[str, LogicalRegion] = {}

    def use(name: str, privilege: Privilege, size: int = TILE) -> Requirement:
        bounds = Rect((0,), (size,))
        region = regions.setdefault(name, LogicalRegion(len(regions), name, bounds, "float32"))
        return Requirement(region, privilege, (bounds,))

    launches = []
    for kind, batch, stage in merged(order, micro_batches):
        token = f"token {stage}"
        uses = [use(token, READ_WRITE if token in regions else WRITE_DISCARD, 1)]
        if kind == "F":
            before, behind, kept = f"value {stage - 1}", f"value {stage}", WRITE_DISCARD
            comes, goes = stage > 0, stage < STAGES - 1
        else:
            before, behind, kept = f"grad {stage}", f"grad {stage - 1}", READ
            comes, goes = stage < STAGES - 1, stage > 0
        uses += [use(f"{before}.{batch}", READ)] if comes else []
        uses.append(use(f"kept {stage}.{batch}", kept))
        uses += [use(f"{behind}.{batch}", WRITE_DISCARD)] if goes else []
        flops = 1e9 if kind == "F" else 2e9
        launches.append(Launch(f"{kind}{batch}", (Point((), stage),), tuple(uses), None, (flops,)))
    return lower(Program(tuple(launches), {}), FragmentCache(Machine.preset(preset)))
