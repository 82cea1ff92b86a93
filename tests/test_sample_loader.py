"""Loaders: an order of the seed's alone, each rank reads its rows only, and a place to go on from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from continued_training import network, new, on_ranks
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import maniple as mp
from maniple.process.error import ManipleError, RequestError
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine
from maniple.sample_batch import SampleBatch, needed_rows
from maniple.sample_order import order
from maniple.step_metrics import model_flops


class Samples:
    """A data set that counts what is read."""

    def __init__(self, count: int = 40) -> None:
        chance = torch.Generator().manual_seed(1)
        self.x = torch.randn((count, 6), generator=chance, dtype=torch.float64)
        self.y = torch.randint(5, (count,), generator=chance)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.read.append(index)
        return {"x": self.x[index], "y": self.y[index]}


class Column:
    """One part of each sample of these."""

    def __init__(self, name: str) -> None:
        self._values = getattr(Samples(), name)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        return self._values[index]


def numbers(loader: mp.data.Loader) -> list[tuple[int, ...]]:
    return [tuple(batch.numbers) for batch in loader]


@given(st.integers(1, 300), st.integers(-(2**70), 2**70), st.integers(0, 5))
def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(samples: int, seed: int, epoch: int) -> None:
    found = order(samples, seed, epoch).tolist()
    assert sorted(found) == list(range(samples))
    assert found == order(samples, seed, epoch).tolist()
    if samples > 20:
        assert found != order(samples, seed, epoch + 1).tolist()
        assert found != order(samples, seed + 1, epoch).tolist()
        assert found != list(range(samples))


def test_the_order_is_this_one() -> None:
    """The table of the module: no version of a library may change it."""
    assert [order(6, 7, epoch).tolist() for epoch in range(2)] == ORDERS


ORDERS = [[5, 4, 2, 1, 3, 0], [5, 0, 4, 2, 3, 1]]


def test_a_sample_may_come_at_any_place() -> None:
    """Over a thousand seeds each of eight samples is first about as often: within four deviations of 125."""
    counts = [0] * 8
    for seed in range(1000):
        counts[order(8, seed, 0)[0]] += 1
    assert all(abs(count - 125) < 4 * (1000 * 7 / 64) ** 0.5 for count in counts), counts


def test_epochs_follow_one_another_and_batches_are_all_of_one() -> None:
    loader = mp.data.Loader(Samples(10), 4, seed=3)
    assert len(loader) == 3
    first, second = numbers(loader), numbers(loader)
    for epoch, batches in enumerate([first, second]):
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sum(batches, ()) == tuple(order(10, 3, epoch).tolist())
    plain = mp.data.Loader(Samples(10), 4, shuffle=False)
    assert numbers(plain) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("taken", [0, 1, 3, 4])
def test_it_goes_on_in_the_middle_of_an_epoch_with_other_workers(taken: int, workers: int) -> None:
    whole = mp.data.Loader(Samples(), 12, seed=5)
    expected = [*numbers(whole), *numbers(whole)]
    begun = mp.data.Loader(Samples(), 12, seed=5, workers=2)
    batches = iter(begun)
    for _ in range(taken):
        next(batches)
    start = json.loads(json.dumps(begun.position()))
    later = mp.data.Loader(Samples(), 12, seed=5, workers=workers, start=start)
    found = numbers(later)
    assert found == (expected[taken:4] if taken < 4 else expected[4:])


def test_another_batch_size_goes_on_where_the_samples_are_whole_batches_of_it() -> None:
    begun = mp.data.Loader(Samples(), 12, seed=5)
    next(iter(begun))
    later = mp.data.Loader(Samples(), 4, seed=5, start=begun.position())
    assert sum(numbers(later), ()) == tuple(order(40, 5, 0)[12:].tolist())
    with pytest.raises(RequestError, match="12 samples of the epoch are done, which are no whole number of batches"):
        mp.data.Loader(Samples(), 8, seed=5, start=begun.position())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch": 0}, "batch: expected an integer >= 1"),
        ({"workers": -1}, "workers: expected an integer >= 0"),
        ({"prefetch": True}, "prefetch: expected an integer >= 1"),
        ({"start": {"epoch": 1}}, "start: expected what position"),
        ({"start": {"seed": 1, "samples": 40, "batch": 4, "epoch": 0, "batches": 0}}, "data of seed 1, this has 0"),
        ({"start": {"seed": 0, "samples": 41, "batch": 4, "epoch": 0, "batches": 0}}, "of samples 41, this has 40"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        mp.data.Loader(Samples(), **{"batch": 12, **options})


def test_no_samples_are_refused_and_so_are_two_epochs_at_a_time() -> None:
    with pytest.raises(RequestError, match="the data set is empty"):
        mp.data.Loader([], 4)
    loader = mp.data.Loader(Samples(10), 4)
    first = iter(loader)
    next(first)
    list(loader)
    with pytest.raises(RequestError, match="iterate once at a time"):
        list(first)


def plan_by_samples(world: World) -> mp.Plan:
    return mp.search(network(), host_machine(world), strategy="data_parallel")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("ranks", "processors"), [(1, 2), (2, 2), (3, 1)])
def test_a_rank_reads_its_rows_only_and_steps_are_those_of_whole_batches(
    ranks: int, processors: int, workers: int
) -> None:
    def body(world: World) -> tuple[list[float], list[int], list[int], int]:
        x, y = Column("x"), Column("y")
        loader = mp.data.Loader({"x": x, "y": y}, 12, seed=5, workers=workers)
        plan = plan_by_samples(world)
        with mp.Trainer(network(), plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            losses = list(trainer.run(loader))
            rows = needed_rows(trainer._load("step", 12), trainer._runtime.memories)
            assert loader.samples_read == {"x": len(x.read), "y": len(y.read)}, "what is read ahead is used"
        return losses, x.read, y.read, len(rows["x"])

    def whole(world: World) -> list[float]:
        data = Samples()
        with mp.Trainer(network(), plan_by_samples(world), optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            cuts = order(40, 5, 0)
            rows = [torch.as_tensor(cuts[first : first + 12]) for first in range(0, 40, 12)]
            return [trainer.step(x=data.x[cut], y=data.y[cut]) for cut in rows]

    found = on_ranks(ranks, body, processors=processors)
    expected = on_ranks(ranks, whole, processors=processors)
    assert [losses for losses, *_ in found] == expected
    assert sorted(number for _, read, _, _ in found for number in read) == list(range(40)), "each at one rank"
    assert [rows for *_, rows in found] == [12 // ranks] * ranks
    for _, _, labels, _ in found:  # the loss divides by how many of all labels count
        assert sorted(labels) == list(range(40))


def test_a_plan_that_cuts_no_samples_has_every_rank_read_what_it_takes() -> None:
    """Reading follows the plan, also when another is adopted in the middle."""

    def body(world: World) -> tuple[list[float], dict[str, int]]:
        loader = mp.data.Loader(Samples(), 12, seed=5, workers=1)
        with new(world, mp.SGD(lr=0.1), seed=world.size) as trainer:
            losses = []
            for number, batch in enumerate(loader):
                if number == 2:
                    trainer.adopt(plan_by_samples(world))
                losses.append(trainer.step(batch))
            return losses, loader.samples_read

    alone = on_ranks(1, body)[0][0]
    for losses, _ in on_ranks(2, body):
        assert losses == pytest.approx(alone, rel=1e-10)


def test_ranks_with_other_orders_or_other_data_are_stopped() -> None:
    for seeds, counts in [((1, 2), (40, 40)), ((1, 1), (40, 39))]:

        def body(world: World, seeds: Any = seeds, counts: Any = counts) -> None:
            loader = mp.data.Loader(Samples(counts[world.rank]), 12, seed=seeds[world.rank])
            with new(world) as trainer:
                list(trainer.run(loader))

        with pytest.raises(ManipleError, match="inputs"):
            on_ranks(2, body)


def test_a_loader_that_ends_early_on_one_rank_is_named() -> None:
    def body(world: World) -> None:
        loader = mp.data.Loader(Samples(), 12, seed=1)
        with new(world) as trainer:
            for number, batch in enumerate(loader):
                if number == 2 and world.rank == 1:
                    break
                trainer.step(batch)
            trainer.parameters()

    with pytest.raises(ManipleError, match=r"rank 1.*parameters|parameters.*rank 1|step 2"):
        on_ranks(2, body)


def test_torchs_loader_works_as_it_is() -> None:
    data = Samples()
    pairs = [(data.x[number], data.y[number]) for number in order(40, 5, 0)]
    with new(World.solo(2, 1)) as trainer:
        theirs = list(trainer.run(DataLoader(pairs, batch_size=12)))  # type: ignore[arg-type]
    with new(World.solo(2, 1)) as trainer:
        assert list(trainer.run(mp.data.Loader(data, 12, seed=5))) == theirs


def test_means_over_a_loader_are_those_of_all_samples() -> None:
    def graph() -> mp.Graph:
        g = mp.Graph("means")
        x, y = g.input("x", (12, 6), dtype="float64"), g.input("y", (12,), dtype="int64")
        logits = g.linear(x, 5)
        loss = g.cross_entropy(logits, y)
        g.loss(loss)
        g.output("loss", loss)
        g.output("logits", logits)
        return g

    def body(world: World) -> dict[str, torch.Tensor]:
        data = Samples()
        plan = mp.search(graph(), host_machine(world), strategy="random", seed=3)
        with mp.Trainer(graph(), plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            found = trainer.evaluate(mp.data.Loader(data, 12, shuffle=False))
            pairs = [(data.x[number], data.y[number]) for number in range(40)]
            theirs = trainer.evaluate(DataLoader(pairs, batch_size=7))  # type: ignore[arg-type]
            parameters = trainer.state_dict()
            with pytest.raises(RequestError, match="gave no batch"):
                trainer.evaluate(iter([]))
        weight, bias = (parameters[name] for name in ("linear.weight", "linear.bias"))
        logits = torch.nn.functional.linear(data.x, weight, bias)
        expected = {"loss": torch.nn.functional.cross_entropy(logits, data.y), "logits": logits.mean(0)}
        for means in (found, theirs):
            for name, value in expected.items():
                torch.testing.assert_close(means[name], value, rtol=1e-12, atol=1e-14)
        return found

    mine, its = on_ranks(2, body)
    assert all(torch.equal(mine[name], its[name]) for name in mine)


def test_a_checkpoint_has_the_place_in_the_data(tmp_path: Path) -> None:
    def first(world: World) -> list[float]:
        loader = mp.data.Loader(Samples(), 12, seed=5, workers=2)
        with new(world, mp.SGD(lr=0.1)) as trainer:
            losses = []
            for number, loss in enumerate(trainer.run(loader)):
                losses.append(loss)
                if number == 0:  # two batches have been taken by now, and two steps submitted
                    trainer.save(tmp_path, data=loader)
            return losses

    def second(world: World) -> list[float]:
        with mp.Trainer.resume(tmp_path, network(), world=world) as trainer:
            assert trainer.position["batches"] == 2
            loader = mp.data.Loader(Samples(), 12, seed=5, start=trainer.position)
            return list(trainer.run(loader))

    expected = [losses[2:] for losses in on_ranks(2, first)]
    assert on_ranks(2, second) == expected


def test_metrics_are_lines_of_json() -> None:
    lines: list[str] = []

    def body(world: World) -> int:
        with new(world) as trainer:
            trainer.write_metrics(lines.append, every=2, peak_flops_per_s=1e9)
            losses = list(trainer.run(mp.data.Loader(Samples(), 12, seed=5)))
            trainer.write_metrics(None)
            trainer.step(next(iter(mp.data.Loader(Samples(), 12))))
            for bad in ({"every": 0}, {"peak_flops_per_s": 0.0}):
                with pytest.raises(RequestError, match="write_metrics"):
                    trainer.write_metrics(lines.append, **bad)  # type: ignore[arg-type]
        found = [json.loads(line) for line in lines] if world.rank == 0 else []
        for line in found:
            assert line["loss"] == losses[line["step"]]
            assert line["samples_per_s"] == pytest.approx(line["samples"] / line["seconds"])
            rate = model_flops(network()) / 12 * line["samples_per_s"]
            assert line["model_flop_utilisation"] == pytest.approx(rate / 1e9)
        return len(found)

    assert on_ranks(2, body) == [2, 0]
    assert all(line.endswith("\n") for line in lines)


def test_the_operations_of_a_model_are_counted_once() -> None:
    """A linear layer of 6 to 5 for 12 samples: 2*12*6*5 forward, twice that backward, and its loss."""
    g = mp.Graph("one layer")
    x, y = g.input("x", (12, 6)), g.input("y", (12, 5))
    out = g.linear(x, 5, bias=False)
    g.loss(g.mse_loss(out, y))
    with_loss = model_flops(g)
    assert 3 * 720 <= with_loss <= 3 * 720 + 12 * 5 * 20


def test_a_batch_names_its_samples() -> None:
    batch = SampleBatch((3, 1), "told", ("x",), lambda rows: rows)
    assert (len(batch), batch.read({"x": (0,)})) == (2, {"x": (0,)})


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RequestError, match="different numbers of samples: 'x' has 40, 'y' has 3"):
        mp.data.Loader({"x": Column("x"), "y": [0, 1, 2]}, 12)
    with new(World.solo(1, 1)) as trainer:
        for columns, problem in [
            ({"x": Column("x")}, "no column for input 'y'; it has x"),
            ({"x": Column("x"), "y": Column("y"), "z": Column("y")}, "a column 'z', which graph 'small' has no input"),
            ({"x": Column("y"), "y": Column("y")}, "expected dtype float64"),
        ]:
            with pytest.raises(RequestError, match=problem):
                trainer.step(next(iter(mp.data.Loader(columns, 12))))
        for data, problem in [(Samples(), "batch has 13 samples, the graph 12"), ([object()] * 40, "make no batch")]:
            with pytest.raises(RequestError, match=problem):
                trainer.step(next(iter(mp.data.Loader(data, 13 if isinstance(data, Samples) else 4))))
        assert trainer.step(next(iter(mp.data.Loader(Samples(), 12)))) > 0
