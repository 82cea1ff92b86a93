"""Predictions of weights: what a weight will be some updates from now, from what the optimizer keeps of it.

In a pipeline without a flush a stage computes with weights that lack the updates of mini-batches under way. A predictor
says for each stage how many updates are missing, the delay, and what the weights are once they are made. Of four:

    predictor   delays of forward   of backward   the weights w, where u is what the next update is to subtract
    spectrain   3 2 2 1             0 0 1 1       w - s u
    nesterov    3 2 1 0             0 0 0 0       w - c (1 + c + ... + c**(s - 1)) u, where c is the momentum, or beta1

SpecTrain (Chen, Yang, Cheng, "Efficient and Robust Parallel DNN Training through Model Parallelism on Multi-GPU
Platform", 2018) takes the gradients to come to be as those before; the look-ahead of Nesterov's momentum takes them to
be zero, so that what was gathered dies away. The weights themselves are updated once for each gradient; what is
predicted is a copy that lives as long as a pass reads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.process.error import RequestError
from maniple.process.registry import Registry, class_check, group

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []


@final
class Delays(NamedTuple):
    """How many updates the weights lack that a stage computes with.

    Args:
        forward: in forward.
        backward: in backward.
    """

    forward: int
    backward: int


class AbstractPredictor(ABC):
    """How weights are predicted."""

    @abstractmethod
    def delays(self, stage: int, stages: int) -> Delays:
        """How many updates ahead a stage of so many reads; 0: the weights as they are."""

    @abstractmethod
    def shift(self, delay: int, decay: float) -> float:
        """How often what the next update is to subtract is subtracted.

        Args:
            delay: how many updates ahead, at least 1.
            decay: what an optimizer keeps, from update to update, of the gradients that it gathers.
        """

    def bind(
        self,
        optimizer: AbstractOptimizer,
        weight: Tensor,
        states: tuple[Tensor, ...],
        cores: int,
        row: Tensor,
        delay: int,
        target: Tensor,
    ) -> Callable[[], None]:
        """A function that writes the prediction of a block each time that it is called.

        Args:
            optimizer: of the parameter.
            weight: the block's value; only read, as are the states.
            states: what the optimizer keeps of it.
            cores: that the processor owns.
            row: the numbers of the step; see ``AbstractOptimizer.bind_update``.
            delay: how many updates ahead.
            target: the prediction; written.
        """
        direction = optimizer.bind_direction(weight, states, cores, row, target)
        place = decay_place(optimizer)

        def predict() -> None:
            direction()
            decay = float(row[place]) if place else 0.0
            target.mul_(-self.shift(delay, decay)).add_(weight)

        return predict


@final
class SpecTrain(AbstractPredictor):
    """As many steps as are missing, each as the next one will be."""

    def delays(self, stage: int, stages: int) -> Delays:
        """Both passes aim at the weights as they are when the mini-batch's round trip ends, at stage 0."""
        return Delays(stage // 2 + stages - stage - 1, stage // 2)

    def shift(self, delay: int, decay: float) -> float:
        """See ``AbstractPredictor.shift``."""
        del decay
        return float(delay)


@final
class NesterovLookahead(AbstractPredictor):
    """As many steps as are missing, of gradients that are zero in the mean: each is smaller than the one before."""

    def delays(self, stage: int, stages: int) -> Delays:
        """Forward aims at the weights that backward will find."""
        return Delays(stages - 1 - stage, 0)

    def shift(self, delay: int, decay: float) -> float:
        """See ``AbstractPredictor.shift``."""
        return sum(decay**step for step in range(1, delay + 1))


def decay_place(optimizer: AbstractOptimizer) -> int:
    """Where the numbers of a step have what an optimizer keeps of the gradients it gathers; 0 where it has none."""
    names = ("momentum", "beta1")
    return next((place for place, name in enumerate(optimizer.numbers, 1) if name in names), 0)


def check_optimizer(optimizer: AbstractOptimizer, names: tuple[str, ...], predictor: str) -> None:
    """Refuse an optimizer of which it is not known what it will subtract.

    Args:
        optimizer: of all parameters.
        names: of the parameters.
        predictor: for messages.

    Raises:
        RequestError: it keeps nothing of the gradients, or its rule is torch's own.
    """
    import torch

    for name in names:
        own = optimizer.of(name)
        if not own.states:
            raise RequestError(
                f"plan: semantics.weights: expected an optimizer that gathers gradients, as {predictor} predicts "
                f"weights from what the next update will subtract; got {type(own).__name__} without momentum for {name}"
            )
        block = torch.zeros(1, dtype=torch.float64)
        row = torch.ones(1 + len(own.numbers), dtype=torch.float64)
        try:
            own.bind_direction(block, tuple(block.clone() for _ in own.states), 2, row, block.clone())
        except RequestError as error:
            raise RequestError(f"plan: semantics.weights={predictor}: {error}") from None


_BUILT_IN = {
    "nesterov": "maniple.operators.training.prediction:NesterovLookahead",
    "spectrain": "maniple.operators.training.prediction:SpecTrain",
}


def _points() -> list[EntryPoint]:
    own = [EntryPoint(name, value, group("predictor")) for name, value in _BUILT_IN.items()]
    return [*own, *entry_points(group=group("predictor"))]


PREDICTORS: Registry[type[AbstractPredictor]] = Registry(
    "predictor",
    class_check("predictor", AbstractPredictor, "derive it from AbstractPredictor"),  # type: ignore[type-abstract]
    _points,
)
"""All predictors that a plan can name."""
