"""The importer: names, ties, buffers, in-place operators, constants, batches of another size, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import maniple as mp
from maniple.operators.library.elementwise.aten import AtenLinear
from maniple.operators.operator.pattern_text import broadcast, reshape_rule
from maniple.process.error import RequestError
from maniple.runtime.machine.world_machine import host_machine


class Tied(nn.Module):
    """An embedding whose weight is also the last layer's, with an in-place operator and a running buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.norm(self.embedding(tokens).mean(1) * self.scale)
        hidden = hidden.relu_()
        logits = self.head(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def tied() -> tuple[Tied, mp.Graph]:
    torch.manual_seed(0)
    module = Tied()
    return module, mp.from_torch(module, (torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)))


def test_names_are_the_module_s() -> None:
    module, graph = tied()
    assert [tensor.name for tensor in graph.inputs] == ["tokens", "labels"]
    assert [tensor.name for tensor in graph.parameters] == [name for name, _ in module.named_parameters()]
    assert {"embedding", "norm+relu", "head"} <= {node.name for node in graph.nodes}
    assert list(graph.outputs) == ["logits"]
    assert graph.opaque == ()


def test_a_state_dict_goes_round_trip_with_ties_and_buffers() -> None:
    module, graph = tied()
    assert graph.state_dict().keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        assert torch.equal(graph.state_dict()[name], value), name
    fresh = Tied()
    fresh.load_state_dict(graph.state_dict())
    graph.load_state_dict(fresh.state_dict())


def test_a_graph_of_a_module_goes_round_trip_through_a_file(tmp_path: object) -> None:
    path = f"{tmp_path}/graph.json"
    _, graph = tied()
    graph.save(path)
    assert mp.Graph.load(path).fingerprint() == graph.fingerprint()


def test_a_buffer_is_assigned_and_a_constant_is_not_in_the_state() -> None:
    _, graph = tied()
    assigned = {graph.tensors[buffer].name for buffer in graph.assignments}
    assert assigned == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert "scale" not in graph.state_dict()
    assert torch.equal(graph.state["scale"], torch.full((1,), 2.0))  # equal values are kept once


def test_numbers_that_count_samples_follow_the_batch() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.ones(1, 1, 3))

        def forward(self, x: Tensor) -> Tensor:
            joined = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
            return joined.sum() / joined.shape[0]

    graph = mp.from_torch(Counting(), (torch.zeros(4, 2, 3),))
    assert graph.with_batch(7).fingerprint() == mp.from_torch(Counting(), (torch.zeros(7, 2, 3),)).fingerprint()
    assert graph.with_batch(1).batch == 1


class Pairs(nn.Module):
    """The mean over all pairs of samples, whose count is no multiple of theirs; ``halves`` adds a half of the batch."""

    def __init__(self, *, halves: bool = False) -> None:
        super().__init__()
        self.linear, self.halves = nn.Linear(3, 2), halves

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        pairs = (z[:, None] - z[None]).square().mean()
        return pairs + z[: x.shape[0] // 2].sin().sum() / (x.shape[0] // 2) if self.halves else pairs


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("batch", [2, 3, 5, 8])
def test_numbers_that_are_no_multiple_of_the_samples_are_those_of_an_import(halves: bool, batch: int) -> None:
    torch.manual_seed(0)
    module, x = Pairs(halves=halves).double(), torch.randn(6, 3, dtype=torch.float64)
    graph = mp.from_torch(module, (x,))
    again = graph.with_batch(4).with_batch(batch)
    assert again.fingerprint() == mp.from_torch(module, (x.new_zeros(batch, 3),)).fingerprint()
    if batch < 6:
        plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
            assert trainer.step(x[:batch]) == pytest.approx(module(x[:batch]).item(), rel=1e-12)


def test_numbers_for_one_sample_lie_on_a_line_or_are_refused() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return (x * weight).flatten().sum() / (3 * x.shape[0] + 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.mean = nn.Parameter(torch.tensor([1.0, 2.0])), Mean()

        def forward(self, x: Tensor) -> Tensor:
            loss: Tensor = self.mean(x, self.weight)
            return loss

    for batch in (2, 3, 6):
        graph = mp.from_torch(Net(), (torch.zeros(batch, 2),))
        (divided,) = (node.operator for node in graph.with_batch(1).nodes if node.name == "mean.div")
        assert "4)" in str(divided)
    graph = mp.from_torch(Pairs(), (torch.zeros(6, 3),))
    with pytest.raises(RequestError, match=r"'mean' depends on.* told for 1 .*whole batches of 6$"):
        graph.with_batch(1)


def test_a_graph_from_a_file_refuses_another_batch_where_a_number_may_count_samples(tmp_path: object) -> None:
    path = f"{tmp_path}/graph.json"
    mp.from_torch(Pairs(), (torch.zeros(6, 3),)).save(path)
    graph = mp.Graph.load(path)
    assert graph.with_batch(6).fingerprint() == graph.fingerprint()
    with pytest.raises(RequestError, match=r"'div.*, 72\)' has numbers that may count samples.*whole batches of 6"):
        graph.with_batch(5)


def test_what_nothing_needs_is_left_out() -> None:
    class Wasteful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 6)

        def forward(self, x: Tensor) -> Tensor:
            first, _, _ = self.layer(x).chunk(3, 1)
            x.exp()
            return first.sum()

    graph = mp.from_torch(Wasteful(), (torch.zeros(4, 3),))
    assert [node.name for node in graph.nodes] == ["layer", "chunk", "sum"]


def test_an_operator_without_a_rule_is_listed_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Inverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ torch.linalg.inv(self.weight)).sum()

    graph = mp.from_torch(Inverse(), (torch.zeros(4, 3),))
    (line,) = graph.opaque
    assert "linalg_inv at " in line
    assert "test_from_torch.py:" in line
    assert line in capsys.readouterr().err


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x).sum()
        return found if found > 0 else -found


class Picking(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[x[:, 0] > 0]).sum()


class Reading(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * x.max().item()).sum()


class Lossless(nn.Linear):
    pass


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))


class Empty(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        nowhere = torch.zeros(0, dtype=torch.int64)
        return super().forward(x).index_add(0, nowhere, torch.zeros(0, 2)).sum()


class Rotated(nn.Linear):
    """As language models do: behind a cache that is empty yet, and with what of a head is not rotated, here nothing."""

    def forward(self, x: Tensor) -> Tensor:
        values = super().forward(x)
        rotated = torch.cat([values[:, :2].sin(), values[:, 2:]], 1)
        return torch.cat([torch.tensor([]), torch.cat([torch.zeros(0, 2), rotated])[:, 1:], torch.zeros(4, 0)], 1).sum()


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)


class Drawing(nn.Module):
    """Draws random numbers by a function of torch."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * self.draw(x)).sum()


def test_frozen_parameters_stay_and_a_module_of_these_alone_is_refused() -> None:
    class Sum(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sum()

    module, x = Sum(nn.Linear(3, 4), nn.Linear(4, 2)), torch.ones(4, 3)
    module[0].requires_grad_(False)
    graph = mp.from_torch(module, (x,))
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
        trainer.step(x)
        for name, value in trainer.parameters().items():
            assert torch.equal(value, module.state_dict()[name]) == name.startswith("0."), name
    module.requires_grad_(False)
    graph = mp.from_torch(module, (x,))
    with pytest.raises(RequestError, match="depends on no trained parameter; there is nothing to train"):
        mp.Trainer(graph, mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel"), optimizer=mp.SGD(lr=0.1))


@pytest.mark.parametrize(
    "draw",
    [
        torch.poisson,
        lambda x: torch.multinomial(x, 3),
        lambda x: torch.randperm(12).view(4, 3),
        lambda x: torch.randn(()),
        lambda x: nn.functional.rrelu(x, training=True),
    ],
    ids=["poisson", "multinomial", "randperm", "one number", "rrelu"],
)
def test_random_numbers_that_a_plan_would_change_are_refused(draw: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RequestError, match=r"test_from_torch.py:\d+ draws random numbers that a plan would change"):
        mp.from_torch(Drawing(draw), (torch.full((4, 3), 0.5),))


def test_what_has_no_elements_is_left_out() -> None:
    module, x = Rotated(3, 2).double(), torch.rand(4, 3).double()
    graph = mp.from_torch(module, (x,))
    (world,) = mp.testing.local_worlds(1)
    plan = mp.search(graph, host_machine(world), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(0.5), world=world) as trainer:
        loss = trainer.step(x)
        found = trainer.state_dict()
    wanted = module(x)
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-12)  # sums of some values in float64
    torch.testing.assert_close(found["weight"], (module.weight - 0.5 * module.weight.grad).detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("module", "examples", "said"),
    [
        (Branching(), (torch.zeros(4, 3),), "test_from_torch.py.*two ways out"),
        (Picking(), (torch.zeros(4, 3),), r"test_from_torch.py:\d+ gives a number or a shape .*two ways out"),
        (Reading(), (torch.zeros(4, 3),), r"test_from_torch.py:\d+.*two ways out"),
        (Lossless(3, 2), (torch.zeros(4, 3),), "gives no loss"),
        (Lossless(3, 2), torch.zeros(4, 3), "a tuple or a dict"),
        (Lossless(3, 2), (torch.zeros(4, 3), 1), r"takes \(input"),
        (Lossless(3, 2), (torch.zeros(4, 3, device="meta"),), "is on meta, the module on cpu"),
        (Complex(), (torch.zeros(4, 3),), "parameter 'weight' is torch.complex64"),
        (Empty(3, 2), (torch.zeros(4, 3),), "makes a tensor without elements"),
        (Counted(), (torch.zeros(4, 3),), "parameter 'count' is torch.int64; expected a float"),
        ("no module", (), "expected a torch.nn.Module"),
    ],
    ids=[
        "branch",
        "pick",
        "item",
        "no loss",
        "no tuple",
        "arguments",
        "device",
        "complex",
        "empty",
        "integer",
        "no module",
    ],
)
def test_what_cannot_be_imported_is_refused(module: nn.Module, examples: object, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        mp.from_torch(module, examples)  # type: ignore[arg-type]


def test_a_loss_may_be_given() -> None:
    graph = mp.from_torch(
        nn.Linear(3, 2), (torch.zeros(4, 3),), loss=nn.CrossEntropyLoss(), targets=(torch.zeros(4, dtype=torch.int64),)
    )
    assert [tensor.name for tensor in graph.inputs] == ["input", "target"]
    assert list(graph.outputs) == ["output"]


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ((4, 6, 8), (24, 8), "b f1 f2 -> (b f1) f2"),
        ((24, 8), (4, 6, 8), "(b f1) f2 -> b f1 f2"),
        ((6, 4), (8, 3), "6 4 -> 8 3"),
        ((4, 8, 16), (4, 8, 2, 8), "b f1 (f2 f3) -> b f1 f2 f3"),
        ((4, 1, 8), (4, 8, 1), "b 1 f1 -> b f1 1"),
        ((2, 6, 4), (2, 8, 3), "b 6 4 -> b 8 3"),
        ((1,), (), "1 ->"),
    ],
)
def test_a_reshape_has_the_common_refinement_as_its_rule(
    before: tuple[int, ...], after: tuple[int, ...], rule: str
) -> None:
    text, sizes = reshape_rule(before, after)
    assert text == rule
    bound = AtenLinear("reshape(x0, shape0)", text, ("float32",), sizes).rule((before,)).bind((before,))
    assert bound.result_shapes == (after,)


def test_pointwise_operands_align_at_the_end() -> None:
    operands, result = broadcast((4, 2, 8, 8), [(4, 2, 8, 8), (1, 1, 8, 8), (8,), ()])
    assert operands == [["b", "c", "y", "x"], ["1", "1", "y", "x"], ["x"], []]
    assert result == ["b", "c", "y", "x"]


def test_a_call_is_text_of_literals_and_names_alone() -> None:
    for call in ("gelu(x0", "gelu(x0.data)", "gelu(lambda: 1)", "(x0 + 1)"):
        with pytest.raises(RequestError, match="aten operator"):
            AtenLinear(call, "b -> b", ("float32",))


class Strided(nn.Module):
    """Writes a part of a parameter by where it lies in the parameter's own storage."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()  # whose instance shares a block with others
        return (hidden @ torch.as_strided_scatter(self.weight * 2, hidden[:2, :2], (2, 2), (1, 2), 0)).square().sum()


def test_what_counts_from_the_start_of_a_storage_counts_from_its_own() -> None:
    module, x = Strided().double(), torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    graph = mp.from_torch(module, (x,))
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="random", seed=1)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
        ours = [trainer.step(x) for _ in range(3)]
    descent = torch.optim.SGD(module.parameters(), lr=0.1)
    for loss in ours:
        expected = module(x)
        assert loss == pytest.approx(expected.item(), rel=1e-9)
        descent.zero_grad()
        expected.backward()
        descent.step()
