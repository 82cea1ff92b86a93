"""Training without a flush in plain torch, with a list of all weights that each stage ever had.

A chain of stages, each a linear layer and a relu; the last gives scores. Weights are read from the lists by the rule's
own words, and gradients are written out, for forward and backward of a layer may read different weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Make = Callable[[list[Tensor]], torch.optim.Optimizer]


@dataclass
class Stage:
    """A stage.

    Args:
        number: from 0.
        weights: the versions of its weight and bias, the oldest first.
        optimizer: of the newest.
        live: what the optimizer updates.
    """

    number: int
    weights: list[tuple[Tensor, Tensor]]
    optimizer: torch.optim.Optimizer
    live: tuple[Tensor, Tensor]
    kept: dict[int, tuple[Tensor, Tensor, int]] = field(default_factory=dict)

    def update(self, gradients: tuple[Tensor, Tensor]) -> None:
        for parameter, gradient in zip(self.live, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.weights.append((self.live[0].clone(), self.live[1].clone()))

    def step_ahead(self) -> tuple[Tensor, ...]:
        """What the next update is to subtract, by the optimizer's state."""
        group = self.optimizer.param_groups[0]
        return tuple(subtracted(self.optimizer.state[parameter], group, parameter) for parameter in self.live)


def subtracted(state: dict[str, Tensor], group: dict[str, object], like: Tensor) -> Tensor:
    lr = float(group["lr"])  # type: ignore[arg-type]
    if not state:
        return torch.zeros_like(like)
    if "momentum_buffer" in state:
        return lr * state["momentum_buffer"]
    (beta1, beta2), done = group["betas"], int(state["step"])  # type: ignore[misc]
    mean = state["exp_avg"] / (1 - beta1**done)
    square = (beta2 * state["exp_avg_sq"] + (1 - beta2) * mean**2) / (1 - beta2 ** (done + 1))
    return lr * mean / (square.sqrt() + float(group["eps"]))  # type: ignore[arg-type]


def read(stage: Stage, rule: str, stages: int, batch: int, *, forward: bool) -> tuple[Tensor, Tensor]:
    """The weights that a pass of a mini-batch reads, by what the rule says."""
    newest = stage.weights[-1]
    if rule == "latest":
        return newest
    if rule == "stash":
        return newest if forward else stage.weights[stage.kept[batch][2]]
    if rule == "vertical_sync":  # what stage 0 had seen as the mini-batch came in
        return stage.weights[max(0, batch - (stages - 1))]
    k = stage.number
    if rule == "spectrain":
        steps = float(k // 2 + stages - k - 1 if forward else k // 2)
    else:
        group = stage.optimizer.param_groups[0]
        decay = float(group["momentum"] if "momentum" in group else group["betas"][0])
        steps = sum(decay**power for power in range(1, (stages - 1 - k if forward else 0) + 1))
    ahead = stage.step_ahead()
    return newest[0] - steps * ahead[0], newest[1] - steps * ahead[1]


Network = Callable[[Sequence[tuple[Tensor, Tensor]], Tensor], Tensor]
"""Scores, of weights and inputs."""


def plain(read: Sequence[tuple[Tensor, Tensor]], value: Tensor) -> Tensor:
    """Stages one behind the other."""
    for weight, bias in read:
        value = torch.relu(value @ weight.T + bias)
    return value


def delayed(
    first: list[tuple[Tensor, Tensor]],
    batches: list[tuple[Tensor, Tensor]],
    delays: Sequence[int],
    make: Make,
    network: Network = plain,
) -> tuple[list[float], list[list[tuple[Tensor, Tensor]]]]:
    """The same where both passes of a mini-batch read what the stage had some updates before, by formula alone.

    W(t + 1) is W(t) stepped by the gradient of mini-batch t at W(t - d) of every stage: PipeDream's with d = p - 1 - i,
    its vertical sync with p - 1, PipeDream-2BW with 1. No pipeline is played: gradients are torch's own.
    """
    live = [(weight.clone(), bias.clone()) for weight, bias in first]
    optimizer = make([tensor for pair in live for tensor in pair])
    had, losses = [[(weight.clone(), bias.clone())] for weight, bias in first], []
    for number, (value, labels) in enumerate(batches):
        old = [own[max(0, number - delay)] for own, delay in zip(had, delays, strict=True)]
        read = [(weight.clone().requires_grad_(), bias.clone().requires_grad_()) for weight, bias in old]
        loss = torch.nn.functional.cross_entropy(network(read, value), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        for newest, seen in zip(live, read, strict=True):
            newest[0].grad, newest[1].grad = seen[0].grad, seen[1].grad
        optimizer.step()
        for own, (weight, bias) in zip(had, live, strict=True):
            own.append((weight.clone(), bias.clone()))
    return losses, had


def train(
    first: list[tuple[Tensor, Tensor]], batches: list[tuple[Tensor, Tensor]], rule: str, make: Make
) -> tuple[list[float], list[list[tuple[Tensor, Tensor]]]]:
    """The losses of mini-batches, and for each stage all weights that it had, the oldest first.

    Args:
        first: the weights to begin with, a pair for each stage.
        batches: inputs and labels.
        rule: by its name.
        make: the optimizer of some parameters.
    """
    if rule == "2bw":
        return delayed(first, batches, [1] * len(first), make)
    stages = []
    for number, pair in enumerate(first):
        live = pair[0].clone(), pair[1].clone()
        stages.append(Stage(number, [(pair[0].clone(), pair[1].clone())], make(list(live)), live))
    count, losses = len(stages), [0.0] * len(batches)
    scores: dict[int, Tensor] = {}
    gradients: dict[tuple[int, int], Tensor] = {}  # of what a stage gave, by mini-batch
    for run in range(len(batches) + count - 1):
        if run < len(batches):
            value = batches[run][0]
            for stage in stages:
                weight, bias = read(stage, rule, count, run, forward=True)
                given = torch.relu(value @ weight.T + bias)
                stage.kept[run] = value, given, len(stage.weights) - 1
                value = given
            scores[run] = value
        for stage in stages:
            batch = run - (count - 1 - stage.number)
            if not 0 <= batch < len(batches):
                continue
            if stage.number == count - 1:
                labels = batches[batch][1]
                log = torch.log_softmax(scores[batch], 1)
                losses[batch] = float(-log[torch.arange(len(labels)), labels].mean())
                hot = torch.nn.functional.one_hot(labels, log.shape[1])
                gradients[stage.number, batch] = (log.exp() - hot) / len(labels)
            value, given, _ = stage.kept[batch]
            weight, _ = read(stage, rule, count, batch, forward=False)
            slope = gradients.pop((stage.number, batch)) * (given > 0)
            del stage.kept[batch]
            gradients[stage.number - 1, batch] = slope @ weight
            stage.update((slope.T @ value, slope.sum(0)))
    return losses, [stage.weights for stage in stages]
