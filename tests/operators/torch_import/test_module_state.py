"""What a module holds and writes, imported: names that clash, buffers that are assigned, writes to parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maniple as mp
from maniple.process.error import RequestError

RATE, STEPS, TOLERANCE = 0.1, 3, 1e-10
Inputs = dict[str, Tensor]


def inputs(*names: str) -> list[Inputs]:
    chance = torch.Generator().manual_seed(len(names))
    return [{name: torch.randn(6, 4, generator=chance, dtype=torch.float64) for name in names} for _ in range(STEPS)]


def check(module: nn.Module, batches: list[Inputs], graph: mp.Graph | None = None) -> mp.Graph:
    """Steps under random plans for two processors give torch's losses and state."""
    graph = graph or mp.from_torch(module, batches[0])
    found = []
    for seed in range(2):
        plan = mp.search(graph, mp.Machine.cpu(2), strategy="random", seed=seed)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE)) as trainer:
            found.append(([trainer.step(**batch) for batch in batches], trainer.state_dict()))
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=RATE), []
    for batch in batches:
        optimizer.zero_grad()
        loss = module(**{name: value.clone() for name, value in batch.items()})
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for ours, state in found:
        assert ours == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        assert state.keys() == module.state_dict().keys()
        for name, value in module.state_dict().items():
            assert torch.allclose(state[name].double(), value.double(), rtol=TOLERANCE, atol=TOLERANCE), name
    return graph


class Clashing(nn.Module):
    """Arguments with the names of a parameter and of a buffer; another already has the name that one would get."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4), nn.Parameter(torch.linspace(1, 2, 4))
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 2.0, 3.0]))

    def forward(self, x: Tensor, weight: Tensor, mask: Tensor, input_mask: Tensor) -> Tensor:
        loss: Tensor = (self.layer(x) * self.weight * weight + self.mask * mask - input_mask).square().mean()
        return loss


def test_an_argument_with_the_name_of_a_parameter_or_buffer_is_an_input_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    module, batches = Clashing().double(), inputs("x", "weight", "mask", "input_mask")
    graph = check(module, batches)
    assert [each.name for each in graph.inputs] == ["x", "input_weight", "input_input_mask", "input_mask"]
    assert graph.state_dict().keys() == module.state_dict().keys()
    assert "weight: input_weight" in capsys.readouterr().err
    plan, given = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel"), list(batches[0].values())
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.0)) as trainer:
        own = dict(zip((each.name for each in graph.inputs), given, strict=True))
        assert trainer.step(*given) == trainer.step(**batches[0]) == trainer.step(**own)
        rows = {name: list(value) for name, value in batches[0].items()}
        assert [trainer.step(batch) for batch in mp.data.Loader(rows, batch=6, shuffle=False)] == [trainer.step(*given)]


def test_a_target_with_the_name_of_a_parameter_is_an_input_of_another() -> None:
    torch.manual_seed(0)
    module, (batch, *_) = nn.Linear(4, 4).double(), inputs("x", "y")

    def loss(output: Tensor, weight: Tensor, input: Tensor) -> Tensor:  # noqa: A002
        return ((output - weight) * input).square().mean()

    y = batch["y"]
    graph = mp.from_torch(module, (batch["x"],), loss=loss, targets=(y, y + 1))
    assert [each.name for each in graph.inputs] == ["input", "target_weight", "target_input"]
    expected = loss(module(batch["x"]), y, y + 1)
    with mp.Trainer(
        graph, mp.search(graph, mp.Machine.cpu(2), strategy="random"), optimizer=mp.SGD(lr=RATE)
    ) as trainer:
        assert trainer.step(batch["x"], y, y + 1) == pytest.approx(expected.item(), rel=TOLERANCE)
        trainer.step(input=batch["x"], weight=y, target_input=y + 1)


class Mean(nn.Module):
    """What holds a mean."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4))


class Assigned(nn.Module):
    """Buffers that forward gives other tensors, one of them in a module inside."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), Mean()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        self.inner.mean = 0.9 * self.inner.mean + 0.1 * h.detach().mean(0)
        self.steps = self.steps + 1
        loss: Tensor = (h - self.inner.mean).square().mean() / self.steps
        return loss


def test_a_buffer_that_is_assigned_has_its_next_value() -> None:
    torch.manual_seed(0)
    module = Assigned().double()
    before = dict(module.named_buffers())
    graph = mp.from_torch(module, inputs("x")[0])
    assert all(held is before[name] for name, held in module.named_buffers())
    assert module.steps == 0
    check(module, inputs("x"), graph)


class Grown(Assigned):
    """A buffer that is another shape afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        self.steps = x[0].detach()
        loss: Tensor = self.layer(x).mean()
        return loss


class Followed(nn.Module):
    """A teacher that follows a student in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for ours, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                ours.mul_(0.9).add_(theirs, alpha=0.1)
        return F.mse_loss(self.student(x), self.teacher(x))


class Scaled(nn.Module):
    """A parameter that is not trained, written outside of any mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.5)
        loss: Tensor = (self.layer(x) * self.scale).square().mean()
        return loss


class Bounded(nn.Module):
    """A table whose rows are bounded as they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, max_norm=1.0)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.table((x > 0).long()).square().mean()
        return loss


class Shared(nn.Module):
    """Two parameters of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
        self.last.weight.data = self.first.weight.data

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.last(self.first(x)).square().mean()
        return loss


class Apart(nn.Module):
    """Parameters that lie side by side in one memory, as those of recurrent layers do."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.linspace(-1, 1, 32).double()
        self.first, self.last = (nn.Parameter(part.view(4, 4)) for part in (whole[:16], whole[16:]))

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = (x @ self.first @ self.last).square().mean()
        return loss


class Columns(nn.Module):
    """Parameters that lie between each other: columns of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.linspace(-1, 1, 32).double().view(4, 8)
        self.first, self.last = (nn.Parameter(part) for part in (whole[:, :4], whole[:, 4:]))

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = (x @ self.first @ self.last).square().mean()
        return loss


class Within(nn.Module):
    """A parameter whose elements every second one of another's are."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.linspace(-1, 1, 32).double().view(4, 8)
        self.whole, self.part = nn.Parameter(whole), nn.Parameter(whole[:, ::2])

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = (x @ self.part @ self.whole).square().mean()
        return loss


@pytest.mark.parametrize("make", [Apart, Columns])
def test_parameters_of_one_memory_that_share_no_element_are_apart(make: Callable[[], nn.Module]) -> None:
    check(make(), inputs("x"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Followed, r"test_module_state.py:\d+ to parameter 'teacher.weight', which only the optimizer does here; make"),
        (Scaled, r"test_module_state.py:\d+ to parameter 'scale'"),
        (Bounded, r"to parameter 'table.weight'"),
        (Shared, r"parameters 'first.weight' and 'last.weight' share memory.*one parameter at two places"),
        (Within, r"parameters 'part' and 'whole' share memory|parameters 'whole' and 'part' share memory"),
        (Grown, r"forward makes buffer 'steps' a tensor of shape \(4,\); expected one of shape \(\), torch.int64"),
    ],
)
def test_what_would_be_lost_is_refused(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        mp.from_torch(make().double(), inputs("x")[0])


class Idle(nn.Module):
    """Writes to what operators give that have nothing to do: they give their operand itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.drops = nn.ModuleList([nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.Dropout1d(0.5)]).eval()

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        for drop in self.drops:
            drop(h).add_(0.5)
        F.dropout(h, 0.0).mul_(1.5)
        h.type_as(x).sub_(x)
        loss: Tensor = h.square().mean()
        return loss


def test_what_gives_its_operand_itself_is_written_with_it() -> None:
    torch.manual_seed(0)
    check(Idle().double(), inputs("x"))


@pytest.mark.parametrize("by_place", [True, False])
def test_hooks_of_the_module_see_its_arguments_as_they_were_given(by_place: bool) -> None:
    torch.manual_seed(0)
    module, (batch, *_) = nn.Linear(4, 4).double(), inputs("input")

    def double(owner: nn.Module, args: tuple[Tensor, ...], named: Inputs) -> tuple[tuple[Tensor, ...], Inputs]:
        del owner
        assert len(args) == by_place
        return tuple(2 * value for value in args), {name: 2 * value for name, value in named.items()}

    module.register_forward_pre_hook(double, with_kwargs=True)
    module.register_forward_hook(lambda owner, args, found: found + owner.bias)
    graph = mp.from_torch(module, (batch["input"],) if by_place else batch, loss=lambda found: found.square().mean())
    expected = (module(batch["input"]) if by_place else module(**batch)).square().mean()
    with mp.Trainer(
        graph, mp.search(graph, mp.Machine.cpu(2), strategy="random"), optimizer=mp.SGD(lr=RATE)
    ) as trainer:
        assert trainer.step(batch["input"]) == pytest.approx(expected.item(), rel=TOLERANCE)


class Frozen(nn.Module):
    """A norm by running statistics, in a program with views that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4).eval()

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        h[:, 0] = 0
        loss: Tensor = self.norm(h).pow(3).mean()
        return loss


def test_a_norm_by_running_statistics_may_stand_beside_writes() -> None:
    torch.manual_seed(0)
    assert check(Frozen().double(), inputs("x")).opaque == ()


def test_another_batch_is_imported_in_the_modes_of_the_first() -> None:
    """Whoever evaluates the module itself between steps has it out of training when a smaller batch comes."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.BatchNorm1d(4).eval())
    x, loss = torch.zeros(6, 4), F.mse_loss
    first, other = (mp.from_torch(module, (x,), loss=loss, targets=(x,)) for _ in range(2))
    expected = first.with_batch(3).fingerprint()
    module.eval()
    assert other.with_batch(3).fingerprint() == expected
    assert not any(part.training for part in module.modules())
