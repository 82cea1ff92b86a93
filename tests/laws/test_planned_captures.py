"""What is said of captures from a plan alone is what a run makes of it, until a device refuses more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from trained_networks import NETWORKS

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.lanes.planned_captures import PlannedPiece, planned_pieces
from maniple.testing import local_worlds, run_on_worlds

DIGITS = NETWORKS["digits"]
OPTIMIZER = mp.optim.AdamW(lr=0.01, clip_norm=1.0)
INPUT, FETCH = "every run takes another tensor of the program's", "every run gives the program a tensor of its own"


def planned(graph: mp.Graph, plan: mp.Plan, machine: mp.Machine) -> Iterator[PlannedPiece]:
    program = training_step(graph, plan, machine, OPTIMIZER)
    return planned_pieces(lower(program, FragmentCache(machine)), program.lasting)


@pytest.mark.parametrize("strategy", ["data_parallel", "model_parallel", "random"])
@pytest.mark.parametrize(("ranks", "processors"), [(1, 1), (1, 2), (2, 1)])
def test_planned_pieces_are_those_of_a_run(strategy: str, ranks: int, processors: int) -> None:
    graph = DIGITS.graph("float32")
    plan = mp.search(graph, mp.Machine.cpu(processors, ranks=ranks), strategy=strategy, seed=2)

    def pieces(world: World) -> tuple[list[tuple[tuple[str, ...], str]], list[PlannedPiece]]:
        with mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world) as trainer:
            trainer.step(**DIGITS.samples(0, DIGITS.batch, "float32"))
            run = [(labels, why) for labels, why, _ in trainer.captures()]  # they are captured in the second step
            machine = trainer.machine
            own = {each for memory in machine.memories_of(world.rank) for each in machine.processors_of(memory)}
            said = [piece for piece in planned(graph, plan, machine) if piece.processor in own]
        RankRuntime.of(world).close()
        return run, said

    worlds = local_worlds(ranks, processors=processors, device="null")
    for run, said in run_on_worlds(worlds, pieces):
        assert [(piece.tasks, piece.eager) for piece in said] == run
        assert {piece.eager for piece in said} <= {"", INPUT, FETCH}
        assert any(len(piece.tasks) > 1 for piece in said)


def test_nothing_is_captured_where_no_processor_is_a_gpu() -> None:
    graph, machine = DIGITS.graph("float32"), mp.Machine.cpu(2)
    assert not [*planned(graph, mp.search(graph, machine, strategy="data_parallel"), machine)]
