"""Optimizers, by the names and with the arguments that torch gives them: ``mp.optim.AdamW(lr=3e-4, clip_norm=1.0)``."""

from __future__ import annotations

from maniple.operators.training.adam import Adam as Adam
from maniple.operators.training.adam import AdamW as AdamW
from maniple.operators.training.averaging import averaged as averaged
from maniple.operators.training.descent import SGD as SGD
from maniple.operators.training.loss_scale import LossScale as LossScale
from maniple.operators.training.muon import Muon as Muon
from maniple.operators.training.muon import non_matrices as non_matrices
from maniple.operators.training.torch_rule import by_torch as by_torch

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "LossScale",
    "Muon",
    "averaged",
    "by_torch",
    "non_matrices",
]
