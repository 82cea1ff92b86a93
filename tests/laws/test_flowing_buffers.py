"""Without a flush buffers get what they get with one: running statistics, and how many mini-batches were counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from chained_stages import BATCH, OPTIMIZERS, WIDTH, batches, staged
from thread_ranks import run_on_ranks
from torch import Tensor, nn

import maniple as mp
from maniple.process.error import RequestError
from maniple.runtime.control.world import World
from maniple.strategies.simulation.simulation import Simulation

WITHIN, STEPS = 1e-10, 10
State = dict[str, Tensor]


class Normed(nn.Module):
    """Layers with a batch norm each; torch counts the mini-batches."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(stages))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH, momentum=0.3, dtype=torch.float64) for _ in range(stages))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return F.cross_entropy(x, y)


def built(stages: int, size: int) -> tuple[mp.Graph, list[list[str]]]:
    """The graph as torch's module is captured, and the operators of each stage."""
    torch.manual_seed(0)
    graph = mp.from_torch(Normed(stages), batches(1, size)[0])
    found: list[list[str]] = [[] for _ in range(stages)]
    stage_of = {t.id: int(t.name.split(".")[1]) for t in graph.lasting if t.name.startswith(("layers", "norms"))}
    for node in graph.nodes:
        stage = max((stage_of.get(operand, 0) for operand in node.operands if operand is not None), default=0)
        found[stage].append(node.name)
        stage_of.update(dict.fromkeys(node.results, stage))
    return graph, found


def trained(
    state: State, given: Sequence[tuple[Tensor, Tensor]], delays: Sequence[int], parts: int, split: int
) -> tuple[list[float], State]:
    """What plain torch makes of it, by formula: each stage reads parameters that are some updates old.

    Each micro-batch, or the part of it that a replica has, is normalized by itself, and a buffer gets the mean of what
    they give it, by their shares of the mini-batch, from what the mini-batch before left, however old the weights are.
    """
    buffers = {name: value.clone() for name, value in state.items() if "running" in name or "num" in name}
    live = {name: value.clone() for name, value in state.items() if name not in buffers}
    optimizer, had, losses = OPTIMIZERS["momentum"][1](list(live.values())), list[State](), list[float]()
    for number, (x, y) in enumerate(given):
        h = x
        had.append({name: value.clone() for name, value in live.items()})
        old = [had[max(0, number - delay)] for delay in delays]
        read = {name: old[int(name.split(".")[1])][name].clone().requires_grad_() for name in live}
        for stage in range(len(delays)):
            norm, layer, found = f"norms.{stage}.", f"layers.{stage}.", list[Tensor]()
            h = F.linear(h, read[layer + "weight"], read[layer + "bias"])
            running = [buffers[norm + "running_mean"], buffers[norm + "running_var"]]
            following = [torch.zeros_like(each) for each in running]
            for tile in (tile for part in h.tensor_split(parts) for tile in part.tensor_split(split)):
                own = [each.clone() for each in running]
                found.append(F.batch_norm(tile, *own, read[norm + "weight"], read[norm + "bias"], True, 0.3))
                for total, value in zip(following, own, strict=True):
                    total.add_(value, alpha=len(tile) / len(h))
            buffers[norm + "running_mean"], buffers[norm + "running_var"] = following
            buffers[norm + "num_batches_tracked"] = buffers[norm + "num_batches_tracked"] + 1
            h = torch.relu(torch.cat(found))
        loss = F.cross_entropy(h, y)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        for name, value in live.items():
            value.grad = read[name].grad
        optimizer.step()
    return losses, live | buffers


@pytest.mark.parametrize(
    ("rule", "stages", "parts", "size", "ranks", "split"),
    [
        ("2bw", 2, 4, 11, 1, 1),  # more micro-batches than stages, of different sizes
        ("2bw", 3, 3, 12, 3, 1),  # as many: those of stage 0 all go forward in the run in which the mini-batch begins
        ("2bw", 2, 3, 12, 2, 2),  # replicas
        ("stash", 3, 1, BATCH, 3, 1),
        ("vertical_sync", 2, 1, BATCH, 1, 1),
    ],
)
def test_buffers_are_those_of_plain_torch(
    rule: str, stages: int, parts: int, size: int, ranks: int, split: int
) -> None:
    graph, cut = built(stages, size)
    assert sum("num_batches_tracked" in graph.tensors[buffer].name for buffer in graph.assignments) == stages
    given, plan = batches(STEPS, size), staged(graph, cut, rule, parts=parts, width=split)
    plan = replace(plan, semantics=(("batch_norm", "local_stats"), *plan.semantics))
    optimizer = OPTIMIZERS["momentum"][0]

    def body(world: World) -> tuple[State, list[float], State, int, mp.Machine]:
        with mp.Trainer(graph, plan, optimizer=optimizer, seed=1, world=world) as trainer:
            first = trainer.state_dict()
            losses = list(trainer.run({"x": x, "y": y} for x, y in given))
            return first, losses, trainer.state_dict(), trainer.schedule.total_bytes, trainer.machine

    late = {"2bw": lambda _: 1, "stash": lambda stage: stages - 1 - stage, "vertical_sync": lambda _: stages - 1}[rule]
    for first, losses, last, moved, machine in run_on_ranks(ranks, body, processors=stages * split // ranks):
        wanted, state = trained(first, given, [late(stage) for stage in range(stages)], parts, split)
        assert losses == pytest.approx(wanted, abs=WITHIN)
        assert last.keys() == state.keys()
        for name, value in state.items():
            assert torch.allclose(last[name], value, rtol=0, atol=WITHIN), name
        assert moved == Simulation(graph, machine, plan, optimizer=optimizer).bytes


class Faded(nn.Module):
    """A buffer that changes in each step, and that forward and backward read, of one stage or of two."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2))
        self.register_buffer("scale", torch.ones(WIDTH, dtype=torch.float64))
        self.again = again

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.layers[1](torch.relu(self.layers[0](x) * self.scale))
        loss = F.cross_entropy(x * self.scale if self.again else x, y)
        self.scale.mul_(0.5)
        return loss


@pytest.mark.parametrize(("rule", "again"), [("stash", False), ("2bw", False), ("2bw", True)])
def test_a_buffer_that_mini_batches_would_read_of_each_other_is_refused(rule: str, again: bool) -> None:
    graph = mp.from_torch(Faded(again=again), batches(1)[0])
    names = [node.name for node in graph.nodes]
    second = next(i for i, node in enumerate(graph.nodes) if graph.tensor("layers.1.weight").id in node.operands)
    counts = [node.name for node in graph.nodes if set(node.results) & set(graph.assignments.values())]
    stages = [[*names[:second], *counts], [name for name in names[second:] if name not in counts]]
    message = (
        r"semantics\.weights: scale gets a next value in each step, and has one version: .* mul\.forward of stage 0"
    )
    with pytest.raises(RequestError, match=message):
        mp.Trainer(graph, staged(graph, stages, rule, parts=2), optimizer=mp.SGD(lr=0.1))
