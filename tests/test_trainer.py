"""Trainers: bad requests, batches of several sizes, runs ahead, several trainers, and what is left after a failure."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maniple as mp
from maniple.process.error import RequestError, RunError
from maniple.program_loader import KEPT_SIZES
from maniple.runtime.control.waiting import Waiting
from maniple.runtime.control.world import World
from maniple.runtime.execution import rank
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.mapper import LaunchView, Mapper
from maniple.runtime.schedule.failure import TaskFailed
from maniple.runtime.session.session import Session
from maniple.step_run import LoadedProgram
from maniple.testing import local_worlds

TIMEOUT_S = 60.0
SGD = mp.SGD(lr=0.1)


def network(*, outputs: bool = True, loss: bool = True) -> mp.Graph:
    g = mp.Graph("small")
    x, y = g.input("x", (8, 5), dtype="float64"), g.input("y", (8,), dtype="int64")
    h = g.relu(g.linear(x, 6))
    logits = g.linear(h, 3)
    if loss:
        g.loss(g.cross_entropy(logits, y))
    if outputs:
        g.output("logits", logits)
    return g


def batch(seed: int, size: int = 8) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn((size, 5), generator=chance, dtype=torch.float64)
    return {"x": x, "y": torch.randint(3, (size,), generator=chance)}


def plan_for(graph: mp.Graph, processors: int = 2) -> mp.Plan:
    return mp.search(graph, mp.Machine.cpu(processors))


def make(world: World | None = None, graph: mp.Graph | None = None, **options: object) -> mp.Trainer:
    chosen = network() if graph is None else graph
    where = World.solo(processors=2, cores=1) if world is None else world
    return mp.Trainer(chosen, plan_for(chosen), optimizer=SGD, world=where, **options)  # type: ignore[arg-type]


@pytest.fixture
def trainer() -> Iterator[mp.Trainer]:
    with make() as made:
        yield made


class Torch:
    """The same network, trained by torch from the same parameters."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        self.values = [value.clone().requires_grad_() for value in parameters.values()]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        first, bias, second, other = self.values
        return F.linear(F.relu(F.linear(x, first, bias)), second, other)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        loss = F.cross_entropy(self.logits(x), y)
        gradients = torch.autograd.grad(loss, self.values)
        with torch.no_grad():
            for value, gradient in zip(self.values, gradients, strict=True):
                value.sub_(gradient, alpha=0.1)
        return float(loss.detach())


SIZES = [8, 8, 3, 8, 1, 8, 3]


def test_steps_of_any_size_are_those_of_torch(trainer: mp.Trainer) -> None:
    judge = Torch(trainer.parameters())
    for seed, size in enumerate(SIZES):
        given = batch(seed, size)
        assert trainer.step(**given) == pytest.approx(judge.step(**given), rel=1e-12)
    for name, value in trainer.parameters().items():
        expected = judge.values[list(trainer.parameters()).index(name)]
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)


def test_inputs_come_by_position_or_by_name_or_both() -> None:
    given = batch(0)
    losses = []
    for args, kwargs in [
        ((given["x"], given["y"]), {}),
        ((given["x"],), {"y": given["y"]}),
        ((), {"y": given["y"], "x": given["x"]}),
    ]:
        with make() as trainer:
            losses.append(trainer.step(*args, **kwargs))
    assert losses[0] == losses[1] == losses[2]


def test_run_gives_the_losses_of_steps_in_order() -> None:
    batches = [batch(seed, size) for seed, size in enumerate(SIZES)]
    with make() as trainer:
        expected = [trainer.step(**one) for one in batches]
    with make() as trainer:
        assert list(trainer.run(batches)) == expected
        assert list(trainer.run([])) == []
    with make() as trainer:
        assert list(trainer.run((one["x"], one["y"]) for one in batches)) == expected


def test_run_takes_a_batch_before_it_gives_the_loss_of_the_one_before() -> None:
    taken: list[int] = []

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for seed in range(4):
            taken.append(seed)
            yield batch(seed)

    with make() as trainer:
        losses = trainer.run(batches())
        assert taken == []
        next(losses)
        assert taken == [0, 1]
        next(losses)
        assert taken == [0, 1, 2]
        assert len(list(losses)) == 2


def test_steps_and_evaluations_between_those_of_a_run_have_their_own_results() -> None:
    batches = [batch(seed) for seed in range(4)]
    with make() as trainer:
        expected = [trainer.step(**batches[i]) for i in (0, 1, 2, 3)]
    with make() as trainer:
        losses = trainer.run([batches[0], batches[1]])
        first = next(losses)  # the second batch is under way
        third = trainer.step(**batches[2])
        trainer.evaluate(batches[0]["x"])
        second = next(losses)
        assert [first, second, third, trainer.step(**batches[3])] == expected


def test_a_run_that_is_left_early_leaves_no_loss_behind() -> None:
    batches = [batch(seed) for seed in range(3)]
    with make() as trainer:
        expected = [trainer.step(**one) for one in batches]
    with make() as trainer:
        for loss in trainer.run(batches):
            assert loss == expected[0]
            break
        assert trainer.step(**batches[2]) == expected[2]


def test_evaluate_gives_whole_outputs_and_needs_only_their_inputs(trainer: mp.Trainer) -> None:
    judge = Torch(trainer.parameters())
    for size in (8, 2):
        given = batch(1, size)
        for found in (trainer.evaluate(given["x"]), trainer.evaluate(**given)):
            assert list(found) == ["logits"]
            torch.testing.assert_close(found["logits"], judge.logits(given["x"]).detach())
    before = trainer.parameters()
    trainer.evaluate(batch(2)["x"])
    for name, value in trainer.parameters().items():
        assert torch.equal(value, before[name])


def test_what_a_trainer_gives_is_a_copy(trainer: mp.Trainer) -> None:
    first = trainer.parameters()
    held = {name: value.clone() for name, value in first.items()}
    for value in first.values():
        value.zero_()
    for name, value in trainer.parameters().items():
        assert torch.equal(value, held[name])


def test_the_seed_decides_the_parameters() -> None:
    found = []
    for seed in (0, 0, 1):
        with make(seed=seed) as trainer:
            found.append(torch.cat([value.flatten() for value in trainer.parameters().values()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_several_trainers_of_one_world_one_after_another_and_side_by_side() -> None:
    world = World.solo(processors=2, cores=1)
    batches = [batch(seed) for seed in range(4)]
    with make(world) as first:
        expected = [first.step(**one) for one in batches]
    held = RankRuntime.of(world).kept_bytes()
    assert held == 0
    second, third = make(world), make(world)
    mixed = [(second.step(**one), third.step(**one)) for one in batches]
    assert mixed == [(loss, loss) for loss in expected]
    second.close()
    assert third.step(**batches[0]) > 0.0
    third.close()
    assert RankRuntime.of(world).kept_bytes() == 0


# --------------------------------------------------------------------------------------------------------- bad requests


def refused(trainer: mp.Trainer, call: Callable[[], object], *parts: str) -> None:
    with pytest.raises(RequestError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("method", ["step", "evaluate"])
def test_inputs_that_do_not_fit_are_refused(trainer: mp.Trainer, method: str) -> None:
    call = getattr(trainer, method)
    good = batch(0)
    x, y = good["x"], good["y"]
    with make() as untouched:
        expected = untouched.step(**good)
    refused(trainer, call, "'x' is missing")
    refused(trainer, lambda: call(x=x, z=y), "no input 'z'", "choices: x, y")
    refused(trainer, lambda: call(x, y, y), "inputs", "got 3")
    refused(trainer, lambda: call(x, x=x, y=y), "'x' was given twice")
    refused(trainer, lambda: call(x=x.float(), y=y), "'x': expected dtype float64, got float32")
    refused(trainer, lambda: call(x=x, y=y.int()), "'y': expected dtype int64, got int32")
    refused(
        trainer,
        lambda: call(x=x.numpy(), y=y),
        "'x': expected a torch.Tensor, got ndarray; make one",
        "torch.as_tensor",
    )
    refused(trainer, lambda: call(x=x[:, :4], y=y), "'x': expected shape (n, 5) with n <= 8, got (8, 4)")
    refused(trainer, lambda: call(x=x[0], y=y), "'x': expected shape")
    refused(trainer, lambda: call(x=x[:3], y=y), "different numbers of samples", "'x' has 3", "'y' has 8")
    refused(trainer, lambda: call(x=x[:0], y=y[:0]), "the batch is empty")
    refused(trainer, lambda: call(x=torch.cat([x, x]), y=torch.cat([y, y])), "16 samples, the graph 8")
    assert trainer.step(**good) == expected


def test_arguments_of_another_kind_are_refused(trainer: mp.Trainer) -> None:
    plan: Any = "plan.json"
    with make() as untouched:
        expected = untouched.step(**batch(0))
    refused(
        trainer, lambda: trainer.adopt(plan), "expected a plan or a frontier, such as mp.Plan.load(path)", "got str"
    )
    refused(trainer, lambda: mp.Trainer(trainer.graph, plan, optimizer=mp.SGD(lr=0.1)), "expected a plan", "got str")
    module: Any = torch.nn.Linear(2, 2)
    refused(trainer, lambda: mp.Trainer(module, trainer.plan, optimizer=mp.SGD(lr=0.1)), "a graph", "got Linear")
    refused(trainer, lambda: mp.search(module, mp.Machine.cpu(1), strategy="random"), "search: expected a graph")
    theirs: Any = torch.optim.SGD(module.parameters(), lr=0.1)
    refused(trainer, lambda: mp.Trainer(trainer.graph, trainer.plan, optimizer=theirs), "one of mp.optim", "by_torch")
    assert trainer.step(**batch(0)) == expected


def test_a_missing_label_is_refused(trainer: mp.Trainer) -> None:
    refused(trainer, lambda: trainer.step(batch(0)["x"]), "'y' is missing; expected x, y")


def test_a_bad_batch_in_a_run_is_refused_when_it_comes(trainer: mp.Trainer) -> None:
    losses = trainer.run([batch(0), batch(1), {"x": batch(2)["x"]}])
    next(losses)
    refused(trainer, lambda: next(losses), "'y' is missing")
    assert trainer.step(**batch(3)) > 0.0


def test_there_is_nothing_to_measure_before_a_step(trainer: mp.Trainer) -> None:
    refused(trainer, trainer.bytes, "no step has run yet; call step first")
    refused(trainer, trainer.timeline, "no step has run yet")
    assert trainer.total_bytes() == 0
    trainer.step(**batch(0))
    assert trainer.bytes() == {"predicted": 0, "measured": 0}
    assert {event.category for event in trainer.timeline().events} <= {"task", "fold"}
    assert len(trainer.timeline().spans) == len(trainer.schedule)


def test_a_closed_trainer_says_so() -> None:
    trainer = make()
    trainer.step(**batch(0))
    trainer.close()
    trainer.close()
    for call in (
        lambda: trainer.step(**batch(0)),
        lambda: trainer.evaluate(batch(0)["x"]),
        lambda: list(trainer.run([batch(0)])),
        trainer.parameters,
        trainer.bytes,
        trainer.total_bytes,
        trainer.timeline,
    ):
        refused(trainer, call, "the trainer is closed; make another")


ENTRIES: dict[str, Callable[[mp.Trainer], object]] = {
    "step": lambda trainer: trainer.step(**batch(0)),
    "run": lambda trainer: list(trainer.run([batch(0)])),
    "evaluate": lambda trainer: trainer.evaluate(batch(0)["x"]),
    "parameters": lambda trainer: trainer.parameters(),
    "state_dict": lambda trainer: trainer.state_dict(),
    "load_state_dict": lambda trainer: trainer.load_state_dict({}),
    "bytes": lambda trainer: trainer.bytes(),
    "total_bytes": lambda trainer: trainer.total_bytes(),
    "memory": lambda trainer: trainer.memory(),
    "timeline": lambda trainer: trainer.timeline(),
    "captures": lambda trainer: trainer.captures(),
    "report": lambda trainer: trainer.report(),
    "optimizer_state": lambda trainer: trainer.optimizer_state(),
    "load_optimizer_state": lambda trainer: trainer.load_optimizer_state({}),
    "torch_optimizer": lambda trainer: trainer.torch_optimizer(),
    "save": lambda trainer: trainer.save("."),
    "resume": lambda trainer: mp.Trainer.resume(".", trainer.graph, world=trainer._world),
    "adopt": lambda trainer: trainer.adopt(trainer.plan),
    "on_change": lambda trainer: trainer.on_change(lambda machine: None),
    "load_weights": lambda trainer: trainer.load_weights("."),
    "save_weights": lambda trainer: trainer.save_weights("."),
    "torch_optimizer_state": lambda trainer: trainer.torch_optimizer_state(),
    "load_torch_optimizer_state": lambda trainer: trainer.load_torch_optimizer_state({}),
    "write_metrics": lambda trainer: trainer.write_metrics(None),
    "close": lambda trainer: trainer.close(),
    "schedule": lambda trainer: trainer.schedule,
    "another trainer": lambda trainer: make(trainer._world),
}


def test_every_call_is_refused_while_another_thread_is_inside_one(trainer: mp.Trainer) -> None:
    named = {name for name in dir(mp.Trainer) if callable(getattr(mp.Trainer, name)) and name[0] != "_"}
    assert named == set(ENTRIES) - {"schedule", "another trainer"}
    trainer.turn.take()
    try:
        with ThreadPoolExecutor(1) as pool:
            for call in ENTRIES.values():
                with pytest.raises(RequestError, match="while thread"):
                    pool.submit(call, trainer).result(TIMEOUT_S)
    finally:
        trainer.turn.give()
    assert trainer.step(**batch(0)) > 0.0


def test_an_optimizer_of_torch_is_refused_and_none_is_exchanged_later(trainer: mp.Trainer) -> None:
    graph = network()
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(RequestError, match=r"expected one of mp.optim, .*; got torch.optim.sgd.SGD"):
        mp.Trainer(graph, plan_for(graph), optimizer=theirs, world=World.solo(processors=2))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="optimizer"):
        trainer.optimizer = mp.SGD(lr=0.0)  # type: ignore[misc]
    assert trainer.optimizer is SGD


def test_a_graph_without_outputs_cannot_be_evaluated() -> None:
    with make(graph=network(outputs=False)) as trainer:
        refused(trainer, lambda: trainer.evaluate(batch(0)["x"]), "'small' has no output to evaluate")


def test_a_graph_without_a_loss_cannot_be_trained() -> None:
    graph = network(loss=False)
    with pytest.raises(RequestError, match="loss"):
        mp.Trainer(graph, plan_for(network()), optimizer=SGD, world=World.solo())


def test_a_plan_for_more_processors_than_were_launched_is_refused() -> None:
    (world,) = local_worlds(1, processors=2)
    graph = network()
    with pytest.raises(RequestError, match="processor"):
        mp.Trainer(graph, plan_for(graph, 3), optimizer=SGD, world=world)
    with mp.Trainer(graph, plan_for(graph, 2), optimizer=SGD, world=world) as trainer:
        assert trainer.step(**batch(0)) > 0.0


def test_a_plan_of_another_graph_is_refused() -> None:
    other = mp.Graph("other")
    x, y = other.input("x", (8, 5), dtype="float64"), other.input("y", (8,), dtype="int64")
    other.loss(other.cross_entropy(other.linear(x, 3), y))
    with pytest.raises(RequestError):
        mp.Trainer(network(), plan_for(other), optimizer=SGD, world=World.solo())


# ------------------------------------------------------------------------------------------------- mappers and failures


class Backwards(Mapper):
    """Every task on the other processor than the plan says."""

    def select_processor(self, task: mp.plugins.TaskView) -> int:
        assert task.launch.suggested is not None
        return 1 - task.launch.suggested[task.index]


class Wrong(Mapper):
    def shard(self, launch: LaunchView) -> Sequence[int]:
        return [7] * len(launch.colors)


def test_a_mapper_moves_tasks_and_changes_no_result() -> None:
    batches = [batch(seed) for seed in range(3)]
    with make() as plain, make(mapper=Backwards()) as mapped:
        assert [mapped.step(**one) for one in batches] == [plain.step(**one) for one in batches]
        tasks = [row for row in range(len(plain.schedule)) if plain.schedule.label(row).startswith("linear.forward")]
        before = [int(plain.schedule.processor[row]) for row in tasks]
        assert [int(mapped.schedule.processor[row]) for row in tasks] == [1 - processor for processor in before]


def test_an_illegal_answer_is_refused_before_the_first_step() -> None:
    with pytest.raises(RequestError, match=r"mapper Wrong\.shard answered 7 for .*legal: ranks \[0\]"):
        make(mapper=Wrong())
    with pytest.raises(RequestError, match=r"expected an object of a class .* make one: Wrong\(\)"):
        make(mapper=Wrong)


def test_a_label_out_of_range_leaves_the_parameters_and_a_new_trainer_goes_on() -> None:
    world = World.solo(processors=2, cores=1)
    broken = make(world)
    given = batch(0)
    broken.step(**given)
    before = broken.parameters()
    with pytest.raises(TaskFailed, match=r"cross_entropy.* failed on node 0 \(rank 0\)") as caught:
        broken.step(given["x"], torch.full((8,), 99))
    assert caught.value.__cause__ is not None
    for call in (lambda: broken.step(**given), lambda: broken.evaluate(x=given["x"]), broken.total_bytes):
        with pytest.raises(RunError, match=r"goes no further: step 1 was stopped before any parameter was updated"):
            call()
    kept = broken.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    with make(world) as fresh, make() as other:
        fresh.load_state_dict(kept)
        other.load_state_dict(kept)
        assert fresh.step(**given) == other.step(**given)


@mp.task
def fails(x: mp.ReadWrite) -> None:
    raise ArithmeticError("of other regions")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_task_of_other_regions_that_fails_leaves_the_trainer(ranks: int) -> None:
    graph = network()
    with make() as untroubled:
        expected = [untroubled.step(**batch(number)) for number in range(3)]

    def body(world: World) -> list[float]:
        session = Session(RankRuntime.of(world), host_machine(world), Mapper())
        with mp.Trainer(graph, plan_for(graph), optimizer=SGD, world=world) as trainer:
            losses = [trainer.step(**batch(0))]
            x = session.region((2,), name="x")
            x.fill(0.0)
            failing = session.launch(fails, x)
            with pytest.raises(TaskFailed, match="of other regions"):
                failing.get()
            losses.append(trainer.step(**batch(1)))
            with pytest.raises(RunError, match=r"which was not written because task .*fails"):
                x.read()
            before = trainer.state_dict()
            losses.append(trainer.step(**batch(2)))
            assert not torch.equal(before["linear.weight"], trainer.parameters()["linear.weight"])
            return losses

    def main(world: World) -> list[float]:
        try:
            return body(world)
        except BaseException as error:
            world.control.fail("", repr(error))
            raise

    worlds = [World.solo(processors=2, cores=1)] if ranks == 1 else local_worlds(ranks)
    try:
        with ThreadPoolExecutor(ranks) as pool:
            found = list(pool.map(main, worlds, timeout=TIMEOUT_S))
    finally:
        for world in worlds:
            RankRuntime.of(world).close()
    for losses in found:
        assert losses == pytest.approx(expected, rel=1e-12)


def test_a_trainer_says_first_what_failed_unseen() -> None:
    world = World.solo(processors=2, cores=1)
    session = Session(RankRuntime.of(world), host_machine(world), Mapper())
    with make(world) as trainer:
        x = session.region((2,), name="x")
        x.fill(0.0)
        session.launch(fails, x)
        session.runtime.drain()
        with pytest.raises(TaskFailed, match="of other regions"):
            trainer.step(**batch(0))
        assert trainer.step(**batch(0)) > 0
    session.runtime.close()


def test_a_step_is_asked_once_whether_it_may_be_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    check, inside = Waiting.check, rank.inside_task

    def checked(waiting: Waiting) -> None:
        asked.append("failed?")
        check(waiting)

    def counted() -> bool:
        asked.append("inside a task?")
        return inside()

    with make() as trainer:
        for _ in range(3):
            trainer.step(**batch(0))
        with monkeypatch.context() as patch:
            patch.setattr(Waiting, "check", checked)
            patch.setattr(rank, "inside_task", counted)
            step = trainer._submit((), batch(0))
            assert asked == ["inside a task?", "failed?"]
        trainer._collect(step)


def test_weights_of_two_steps_are_named_and_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    bind, failing = mp.SGD.bind_update, threading.Event()
    bound: list[object] = []

    def binding(optimizer: mp.SGD, *given: object) -> Callable[[], None]:
        update = bind(optimizer, *given)  # type: ignore[arg-type]
        bound.append(update)
        second = len(bound) == 2

        def run() -> None:
            if second and failing.is_set():
                raise ArithmeticError("the update of a block failed")
            update()

        return run

    monkeypatch.setattr(mp.SGD, "bind_update", binding)
    world = World.solo(processors=1, cores=1)
    graph = network()
    with mp.Trainer(graph, plan_for(graph, 1), optimizer=SGD, world=world) as broken:
        broken.step(**batch(0))
        failing.set()
        with pytest.raises(TaskFailed, match="the update of a block failed"):
            broken.step(**batch(1))
        with pytest.raises(RunError, match=r"updates of 2 parameters .* of two steps now: linear[^ ]*, linear"):
            broken.state_dict()
    with make(world, graph) as other:  # the rank goes on
        assert other.step(**batch(0)) > 0


def test_a_failure_between_updates_ends_the_trainers_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's second update raises in step 1, after its first."""
    worlds, graph = local_worlds(2), network()
    bind, here, failing = mp.SGD.bind_update, threading.local(), threading.Event()

    def binding(optimizer: mp.SGD, *given: object) -> Callable[[], None]:
        update = bind(optimizer, *given)  # type: ignore[arg-type]
        here.bound = getattr(here, "bound", 0) + 1
        second = here.rank == 0 and here.bound == 2  # in the order of the lane

        def run() -> None:
            if second and failing.is_set():
                raise ArithmeticError("the update of a block failed")
            update()

        return run

    monkeypatch.setattr(mp.SGD, "bind_update", binding)

    def main(world: World) -> list[str]:
        here.rank = world.rank
        trainer = mp.Trainer(graph, plan_for(graph), optimizer=SGD, world=world)
        trainer.step(**batch(0))
        world.control.gather(b"")
        failing.set()
        said = []
        # Rank 1 may have done its share of a step when rank 0 fails.
        more = [lambda: [*trainer.run(map(batch, (1, 2, 3)))], lambda: trainer.step(**batch(4)), trainer.parameters]
        for call in more:
            with pytest.raises(RunError) as caught:
                call()
            said.append(str(caught.value))
        return said

    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(main, worlds, timeout=TIMEOUT_S))
    finally:
        for world in worlds:
            RankRuntime.of(world).close()
    assert all("the update of a block failed" in text for said in found for text in said)
    for text in found[0][1:]:
        assert re.match("this trainer goes no further: step 1 was stopped after updates of 2 parameters", text)


def test_ranks_give_the_same_losses_and_measure_what_was_predicted() -> None:
    batches = [batch(seed, size) for seed, size in enumerate(SIZES)]
    with make() as alone:
        expected = list(alone.run(batches))
    worlds = local_worlds(2, shuffle=3)
    graph = network()

    def main(world: World) -> object:
        try:
            with mp.Trainer(graph, plan_for(graph), optimizer=SGD, world=world) as trainer:
                losses = list(trainer.run(batches))
                last = trainer.bytes()
                total = trainer.total_bytes()
                lanes = {(event.rank, event.lane) for event in trainer.timeline().events}
                return losses, last, total, lanes, trainer.parameters()["linear.weight"].tolist()
        except BaseException as error:
            world.control.fail("", repr(error))
            raise

    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(main, worlds, timeout=TIMEOUT_S)
    finally:
        for world in worlds:
            RankRuntime.of(world).close()
    assert first == second
    losses, last, total, lanes, _ = first  # type: ignore[misc]
    assert losses == pytest.approx(expected, rel=1e-12)
    assert last["predicted"] == last["measured"] > 0
    assert total > last["measured"]
    assert lanes == {(0, "p0"), (0, "copy engine"), (1, "p1"), (1, "copy engine")}


def test_ranks_with_different_batches_are_stopped() -> None:
    worlds = local_worlds(2)
    graph = network()

    def main(world: World) -> str:
        try:
            with mp.Trainer(graph, plan_for(graph), optimizer=SGD, world=world) as trainer:
                trainer.step(**batch(world.rank))
        except RunError as error:
            world.control.fail("", str(error))
            return str(error)
        return "went on"

    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(main, worlds, timeout=TIMEOUT_S))
    finally:
        for world in worlds:
            RankRuntime.of(world).close()
    for message in found:
        assert "its inputs differ" in message
        assert "trainer.step 0 of 8 samples" in message


def test_run_copies_a_batch_before_it_asks_for_the_next_one() -> None:
    graph = network()
    plan = mp.search(graph, mp.Machine.preset("cpu:1"))

    def refilled() -> Iterator[dict[str, torch.Tensor]]:
        """Give every batch in the same tensors."""
        held = batch(0)
        for seed in range(6):
            for name, value in batch(seed).items():
                held[name].copy_(value)
            yield held

    losses = []
    for source in ([batch(seed) for seed in range(6)], refilled()):
        with mp.Trainer(graph, plan, optimizer=SGD) as trainer:
            losses.append(list(trainer.run(source)))
    assert losses[0] == losses[1]


def test_only_a_few_smaller_batch_sizes_stay_loaded() -> None:
    graph = network()
    plan = mp.search(graph, mp.Machine.preset("cpu:1"))
    with mp.Trainer(graph, plan, optimizer=SGD) as trainer:
        for size in (7, 6, 5, 4, 3, 2, 1, 8, 7):
            trainer.step(**batch(0, size))
        assert len(trainer._loaded) == 1 + KEPT_SIZES
        assert trainer.bytes() == {"predicted": 0, "measured": 0}


def test_evaluation_inside_inference_mode_leaves_the_trainer_usable() -> None:
    graph = network()
    plan = mp.search(graph, mp.Machine.preset("cpu:1"))
    with torch.inference_mode(), mp.Trainer(graph, plan, optimizer=SGD) as trainer:
        trainer.evaluate(x=batch(0)["x"])
        with torch.inference_mode(mode=False):
            first = trainer.step(**batch(0))
            assert trainer.step(**batch(0)) < first


class Interrupted:
    """Sends SIGINT to this process when a chosen function is called for the first time, and lets it go on."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.sent = False

    def __call__(self, *args: object, **kwargs: object) -> object:
        if not self.sent:
            self.sent = True
            signal.raise_signal(signal.SIGINT)
        return self.function(*args, **kwargs)


@pytest.mark.usefixtures("pythons_handler")
@pytest.mark.parametrize("where", ["prepare", "commit", "feed"])
def test_an_interrupted_step_is_made_whole_or_not_at_all(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network()
    plan = mp.search(graph, mp.Machine.preset("cpu:1"))
    losses = []
    for interrupt in (False, True):
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.0)) as trainer:
            first = trainer.step(**batch(0))
            if interrupt:
                owner = LoadedProgram if where == "feed" else type(trainer._loaded["step", 8].replay)
                interrupted = Interrupted(getattr(owner, where))
                monkeypatch.setattr(owner, where, lambda *args, to=interrupted: to(*args))
                with pytest.raises(KeyboardInterrupt):
                    trainer.step(**batch(1))
                monkeypatch.undo()
            losses.append([first, *(trainer.step(**batch(seed)) for seed in (2, 3, 2))])
    assert losses[0] == losses[1]
