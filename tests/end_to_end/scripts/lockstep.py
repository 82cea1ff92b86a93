"""Trains stages that take equally long, a rank each, without a flush, for its recording: `lockstep.py RULE PARTS`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from balanced_stages import train

import maniple as mp

if __name__ == "__main__":
    torch.set_num_threads(1)
    train(mp.world(), sys.argv[1], int(sys.argv[2]))
