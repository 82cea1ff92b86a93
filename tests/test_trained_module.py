"""Modules that are trained in place: the same training, memory that is there once, a module as torch leaves one."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import maniple as mp
from maniple.models import digits_cnn
from maniple.process.error import RequestError, RunError
from maniple.runtime.control.world import World
from maniple.testing import local_worlds, run_on_worlds

BATCH, STEPS = 8, 3
OPTIMIZER = mp.SGD(lr=0.1, momentum=0.9)
Batch = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """Linear layers, a batch norm with statistics, and a table of words that is the classifier, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 16)
        self.hidden = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 12, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.out(torch.relu(self.norm(self.hidden(self.words(x))))), y)


def drawn() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Net().double()


DRAWN = drawn()


def batches() -> list[Batch]:
    chance = torch.Generator().manual_seed(1)
    return [
        (torch.randint(12, (BATCH,), generator=chance), torch.randint(12, (BATCH,), generator=chance))
        for _ in range(STEPS)
    ]


def net() -> Net:
    """The same on every call, whichever rank's thread calls it."""
    return copy.deepcopy(DRAWN)


def graph_of(module: nn.Module) -> mp.Graph:
    return mp.from_torch(module, batches()[0])


def plan_of(graph: mp.Graph, strategy: str, ranks: int, seed: int = 0) -> mp.Plan:
    return mp.search(graph, mp.Machine.preset(f"cpu:{ranks}"), strategy=strategy, seed=seed)


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items() if "tracked" not in name}


def assert_values(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def trained(world: World, strategy: str, *, in_place: bool) -> tuple[list[float], dict[str, torch.Tensor], nn.Module]:
    """Losses, what was trained by the trainer's word, and the module."""
    module = net()
    graph = graph_of(module)
    plan = plan_of(graph, strategy, world.size, seed=5)
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world, in_place=in_place) as trainer:
        losses = [trainer.step(*batch) for batch in batches()]
        found = {name: value for name, value in trainer.state_dict().items() if "tracked" not in name}
    return losses, found, module


@pytest.mark.parametrize("strategy", ["data_parallel", "model_parallel", "random"])
@pytest.mark.parametrize(("ranks", "shared"), [(1, False), (2, False), (2, True)])
def test_it_is_the_same_training_and_the_module_has_what_was_trained(
    strategy: str, ranks: int, *, shared: bool
) -> None:
    """To the last bit; without it, the module has what it began with."""

    def program(world: World) -> None:
        losses, state, module = trained(world, strategy, in_place=False)
        own_losses, own_state, own = trained(world, strategy, in_place=True)
        assert own_losses == losses
        assert_values(own_state, state)
        assert_values(values(own), state)
        assert_values(values(module), values(net()))

    run_on_worlds(local_worlds(ranks, shared=shared), program)


def test_the_module_is_what_torch_would_have_left() -> None:
    """In float64, to 1e-12: sums in another order."""
    _, _, module = trained(World.solo(), "data_parallel", in_place=True)
    plain = net()
    descent = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches():
        descent.zero_grad()
        plain(x, y).backward()
        descent.step()
    for name, value in values(plain).items():
        assert torch.allclose(values(module)[name], value, rtol=1e-12, atol=1e-12), name
    assert module.get_parameter("out.weight") is module.get_parameter("words.weight")


def test_values_are_there_once_and_each_step_shows_in_the_module() -> None:
    module = net()
    before = {name: weakref.ref(value.untyped_storage()) for name, value in module.named_parameters()}
    first = {name: value.data_ptr() for name, value in module.named_parameters()}
    graph = graph_of(module)
    with mp.Trainer(graph, plan_of(graph, "data_parallel", 1), optimizer=OPTIMIZER, in_place=True) as trainer:
        assert all(old() is None for old in before.values()), "the module's old memory is still referred to"
        places = {name: value.data_ptr() for name, value in module.named_parameters()}
        assert all(places[name] != first[name] for name in places)
        for batch in batches():
            trainer.step(*batch)
            assert_values({name: value.detach().clone() for name, value in module.named_parameters()},
                          {name: trainer.state_dict()[name] for name in places})  # fmt: skip
        fresh = values(net())
        trainer.load_state_dict({**trainer.state_dict(), **fresh})
        assert_values(values(module), fresh)
    assert {name: value.data_ptr() for name, value in module.named_parameters()} == places


def test_afterwards_torch_trains_it_and_so_does_another_trainer() -> None:
    """What is trained begins where the last training ended."""
    _, state, module = trained(World.solo(), "data_parallel", in_place=True)
    x, y = batches()[0]
    loss = module(x, y)
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.0).step()
    assert_values({name: value.detach() for name, value in module.named_parameters()},
                  {name: state[name] for name, _ in module.named_parameters()})  # fmt: skip
    graph = graph_of(module)
    with mp.Trainer(graph, plan_of(graph, "data_parallel", 1), optimizer=OPTIMIZER) as trainer:
        assert trainer.step(x, y) == pytest.approx(loss.item(), rel=1e-12)


def test_what_the_program_moves_meanwhile_gets_its_values_at_the_end() -> None:
    """`module.to` gives parameters other memory; no step shows in that, and the end does."""
    module = net()
    graph = graph_of(module)
    with mp.Trainer(graph, plan_of(graph, "data_parallel", 1), optimizer=OPTIMIZER, in_place=True) as trainer:
        module.float()
        assert module.hidden.weight.dtype == torch.float32
        for batch in batches():
            trainer.step(*batch)
        trained = trainer.parameters()
    for name, value in module.named_parameters():
        assert torch.equal(value.detach(), trained[name].float()), name


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_goes_on_under_another_plan(ranks: int) -> None:
    def program(world: World) -> None:
        def run(*, in_place: bool) -> tuple[list[float], nn.Module]:
            module = net()
            graph = graph_of(module)
            plans = [plan_of(graph, "random", world.size, seed) for seed in (1, 2, 3)]
            with mp.Trainer(graph, plans[0], optimizer=OPTIMIZER, world=world, in_place=in_place) as trainer:
                losses = []
                for plan, batch in zip(plans, batches(), strict=True):
                    trainer.adopt(plan)
                    losses.append(trainer.step(*batch))
                    if in_place and world.size == 1:
                        found = trainer.parameters()
                        assert_values({name: value.data.clone() for name, value in module.named_parameters()}, found)
                state = trainer.parameters()
            if in_place:
                assert_values({name: value.data for name, value in module.named_parameters()}, state)
            return losses, module

        assert run(in_place=True)[0] == run(in_place=False)[0]

    run_on_worlds(local_worlds(ranks), program)


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_goes_on_from_a_checkpoint(ranks: int, tmp_path: Path) -> None:
    def program(world: World) -> None:
        graph = graph_of(net())
        plan = plan_of(graph, "data_parallel", world.size)
        with mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world) as trainer:
            trainer.step(*batches()[0])
            trainer.save(tmp_path / "kept")
            for batch in batches()[1:]:
                trainer.step(*batch)
            expected = trainer.parameters()
        module = net()
        graph = graph_of(module)
        with mp.Trainer.resume(tmp_path / "kept", graph, plan, world=world, in_place=True) as trainer:
            for batch in batches()[1:]:
                trainer.step(*batch)
        assert_values({name: value.data for name, value in module.named_parameters()}, expected)

    run_on_worlds(local_worlds(ranks), program)


def test_a_step_that_fails_leaves_a_module_that_can_be_looked_at() -> None:
    """The one of a NaN was updated by it, as torch would have; the module stays what the trainer trained."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mean(self.layer(x))

    module = Scaled()
    graph = mp.from_torch(module, (torch.zeros(2, 4),))
    plan = plan_of(graph, "data_parallel", 1)
    trainer = mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True)
    with pytest.raises(RunError, match="NaN"), trainer:
        trainer.step(torch.full((2, 4), float("nan")))
    assert module.layer.weight.isnan().all()
    module.layer.reset_parameters()
    graph = mp.from_torch(module, (torch.zeros(2, 4),))
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True) as trainer:
        assert trainer.step(torch.ones(2, 4)) == pytest.approx(trainer.step(torch.ones(2, 4)), abs=10.0)


class Shared(nn.Linear):
    """A buffer is a row of the weight, and in torch is trained with it."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.first: torch.Tensor
        self.register_buffer("first", self.weight.detach()[0])

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  (torch's name)
        return super().forward(input) + self.first


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Shared, "'weight' and 'first' share memory"),
        (on_meta, "parameter 'weight' has no values in the module"),
    ],
)
def test_what_has_no_memory_of_its_own_is_refused(make: Callable[[], nn.Module], told: str) -> None:
    module = make()
    inputs = torch.zeros(2, 4, device=next(module.parameters()).device)
    graph = mp.from_torch(module, (inputs,), loss=lambda found: found.square().mean())
    before = [value.data_ptr() for value in module.parameters()]
    with pytest.raises(RequestError, match=told):
        mp.Trainer(graph, plan_of(graph, "data_parallel", 1), optimizer=OPTIMIZER, in_place=True)
    assert [value.data_ptr() for value in module.parameters()] == before


def test_a_graph_that_no_module_is_of_is_refused() -> None:
    graph = digits_cnn(batch=4)
    with pytest.raises(RequestError, match=r"has no module; import one with mp\.from_torch"):
        mp.Trainer(graph, plan_of(graph, "data_parallel", 1), optimizer=OPTIMIZER, in_place=True)


@pytest.mark.parametrize("in_place", [False, True])
def test_while_it_is_trained_in_place_no_other_trainer_begins_with_it(*, in_place: bool) -> None:
    """Nor one of another graph of the same module; one that is closed is in nobody's way."""
    module = net()
    graph, other = graph_of(module), graph_of(module)
    plan = plan_of(graph, "data_parallel", 1)
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True):
        for each in (graph, other):
            with pytest.raises(RequestError, match="trained in place by another trainer"):
                mp.Trainer(each, plan, optimizer=OPTIMIZER, in_place=in_place)
    with mp.Trainer(other, plan, optimizer=OPTIMIZER, in_place=in_place) as trainer:
        trainer.step(*batches()[0])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_no_tensor_is_trained_in_place_by_two_trainers(*, in_place: bool, tied: bool) -> None:
    """Neither of a module within the module, nor of one that has a weight in common with it."""
    whole, other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4)
    if tied:
        other.weight = whole.get_parameter("0.weight")
    else:
        other = whole[0]
    graphs = [mp.from_torch(each, (torch.ones(2, 4),), loss=lambda found: found.square().mean())
              for each in (whole, other)]  # fmt: skip
    plans = [plan_of(graph, "data_parallel", 1) for graph in graphs]
    with mp.Trainer(graphs[0], plans[0], optimizer=OPTIMIZER, in_place=True) as trainer:
        with pytest.raises(RequestError, match="'weight' is trained in place by another trainer"):
            mp.Trainer(graphs[1], plans[1], optimizer=OPTIMIZER, in_place=in_place)
        trainer.adopt(plans[0])
        with pytest.raises(RequestError, match="'weight' is trained in place by another trainer"):
            mp.Trainer(graphs[1], plans[1], optimizer=OPTIMIZER, in_place=in_place)
    with mp.Trainer(graphs[1], plans[1], optimizer=OPTIMIZER, in_place=in_place) as trainer:
        assert torch.equal(trainer.parameters()["weight"], whole.get_parameter("0.weight"))


def assigned(module: nn.Module) -> None:
    module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()}, assign=True)


def to_other_numbers(module: nn.Module) -> None:
    module.half()


@pytest.mark.parametrize("change", [assigned, to_other_numbers])
def test_a_module_that_is_another_since_it_was_imported_is_refused_and_keeps_its_values(
    change: Callable[[nn.Module], None],
) -> None:
    module = nn.Linear(4, 4)
    graph = mp.from_torch(module, (torch.ones(2, 4),), loss=lambda found: found.square().mean())
    plan = plan_of(graph, "data_parallel", 1)
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER):
        pass  # reads the graph's values
    change(module)
    kept = values(module)
    with pytest.raises(RequestError, match=r"'weight' of the module is not what graph .* begins with"):
        mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True)
    assert_values(values(module), kept)
    module = nn.Linear(4, 4)
    graph = mp.from_torch(module, (torch.ones(2, 4),), loss=lambda found: found.square().mean())
    module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True):
        assert (module.weight == 1).all()  # values that were written into it are what it has


def test_a_program_that_breaks_off_finds_a_module_that_no_step_goes_on_to_write() -> None:
    """A later step of `run` is under way as the first loss is given: the module is what that one leaves."""
    module = nn.Linear(256, 256)
    x = torch.ones(64, 256)
    graph = mp.from_torch(module, (x,), loss=lambda found: found.square().mean())
    plan = plan_of(graph, "data_parallel", 1)
    whole = copy.deepcopy(module)
    with suppress(KeyError), mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True) as trainer:
        for _ in trainer.run([(x,)] * 3):
            raise KeyError
    found = values(module)
    graph = mp.from_torch(whole, (x,), loss=lambda found: found.square().mean())
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True) as trainer:
        for _ in range(2):
            trainer.step(x)
    assert_values(found, values(whole))


def test_a_step_that_fails_as_a_program_breaks_off_is_told() -> None:
    """The module is what that step left, so the program hears of it, beside the error that it broke off with."""
    module = nn.Embedding(4, 4)
    words = torch.zeros(2, dtype=torch.int64)
    graph = mp.from_torch(module, (words,), loss=lambda found: found.square().mean())
    plan = plan_of(graph, "data_parallel", 1)

    def broken_off() -> None:
        with mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True) as trainer:
            next(trainer.run([(words,), (words + 9,), (words,)]))
            raise KeyError

    with pytest.raises(RunError, match="expected row numbers from 0 to 3, got 9") as found:
        broken_off()
    assert isinstance(found.value.__context__, KeyError)
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, in_place=True) as trainer:
        trainer.step(words)


def test_a_plan_whose_weights_have_versions_is_refused() -> None:
    def program(world: World) -> None:
        module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        with torch.no_grad():
            for value in module.parameters():
                value.fill_(0.1)
        graph = mp.from_torch(module, (torch.zeros(4, 4),), loss=lambda found: found.square().mean())
        machine, semantics = mp.Machine.preset("cpu:2"), {"weights": "stash"}
        plan = mp.search(graph, machine, strategy="pipedream", semantics=semantics)
        with pytest.raises(RequestError, match="in_place: expected a plan whose steps end with a flush"):
            mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world, in_place=True)
        mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world).close()

    run_on_worlds(local_worlds(2), program)
