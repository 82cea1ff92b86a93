"""Predictions: published delays, the arithmetic of a block, and optimizers that do not say what they subtract."""

from __future__ import annotations

import pytest
import torch

import maniple as mp
from maniple.operators.training.prediction import (
    PREDICTORS,
    AbstractPredictor,
    Delays,
    NesterovLookahead,
    SpecTrain,
    check_optimizer,
)
from maniple.process.error import RequestError


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [("spectrain", (3, 2, 2, 1), (0, 0, 1, 1)), ("nesterov", (3, 2, 1, 0), (0, 0, 0, 0))],
)
def test_delays_of_four_stages(name: str, forward: tuple[int, ...], backward: tuple[int, ...]) -> None:
    """SpecTrain's are its paper's table; forward is also N - 1 - ceil(k / 2)."""
    predictor = PREDICTORS.lookup(name)()
    found = [predictor.delays(stage, 4) for stage in range(4)]
    assert found == [Delays(*pair) for pair in zip(forward, backward, strict=True)]


def test_spectrain_aims_at_the_weights_at_the_end_of_the_round_trip() -> None:
    for stages in (2, 4, 8, 16):
        for stage in range(stages):
            assert SpecTrain().delays(stage, stages).forward == stages - 1 - (stage + 1) // 2


@pytest.mark.parametrize(("predictor", "often"), [(SpecTrain(), 3.0), (NesterovLookahead(), 0.9 + 0.81 + 0.729)])
def test_a_block_is_predicted_from_what_the_next_update_subtracts(predictor: AbstractPredictor, often: float) -> None:
    optimizer = mp.SGD(lr=0.1, momentum=0.9, enters_always=True)
    weight, momentum = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([0.5, -1.0], dtype=torch.float64)
    row = torch.tensor([4.0, 0.1, 0.0, 0.9, 0.0], dtype=torch.float64)
    target = torch.empty_like(weight)
    for cores in (1, 2):
        predictor.bind(optimizer, weight, (momentum,), cores, row, 3, target)()
        assert torch.allclose(target, weight - often * 0.1 * momentum, rtol=0, atol=1e-15)
        assert weight.tolist() == [1.0, 2.0], "the weights are those that were updated"


def test_an_optimizer_that_cannot_say_what_it_subtracts_is_refused() -> None:
    with pytest.raises(RequestError, match=r"semantics\.weights: expected an optimizer that gathers .*SGD without mom"):
        check_optimizer(mp.SGD(lr=0.1), ("w",), "spectrain")
    with pytest.raises(RequestError, match="what its next update subtracts is not known"):
        check_optimizer(mp.optim.by_torch(torch.optim.Adagrad, lr=0.1), ("w",), "spectrain")
    check_optimizer(mp.optim.AdamW(lr=0.1), ("w",), "spectrain")
