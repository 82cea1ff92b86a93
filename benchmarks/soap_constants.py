"""The constants of `soap`: how fast the plans are that it finds with one number of proposals under several of them.

    python benchmarks/soap_constants.py                              all models and settings
    python benchmarks/soap_constants.py --case nmt@p100x16           one model

A row is a model and a setting: the step times of the found plans over those of the fastest named plan, by their
geometric mean over the seeds, after a quarter, a half and all of the proposals. OptCNN's plan is left out, so that all
settings begin alike. Numbers of proposals are compared, not seconds: a busy machine changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import geometric_mean

import click

from maniple.models import model
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.compilation import compile_all
from maniple.strategies.soap.chains import TEMPERING, Tempering
from maniple.strategies.soap.seeding import SEEDS
from maniple.strategies.soap.soap import Soap

CASES = (
    "lenet@p100x4",
    "alexnet@p100x4",
    "alexnet@p100x16",
    "rnnlm@p100x16",
    "nmt@p100x16",
    "inception_v3@p100x16",
)
SETTINGS = {
    "as it is": TEMPERING,
    "4 walks": replace(TEMPERING, temperatures=(0.0, 0.001, 0.003, 0.01)),
    "1 walk": replace(TEMPERING, temperatures=(0.003,)),
    "of 16": replace(TEMPERING, length=16),
    "all 0": replace(TEMPERING, temperatures=(0.0,) * 8),
    "all 0.003": replace(TEMPERING, temperatures=(0.003,) * 8),
    "to 0.03": replace(TEMPERING, temperatures=(0.0, 0.003, 0.01, 0.03) * 2),
    "restart at once": replace(TEMPERING, restart=1),
}


def best_s(problem: Problem, tempering: Tempering, ends: Sequence[int]) -> list[float]:
    """Give the best step time after each of some numbers of proposals."""
    strategy, found = Soap(tempering, share=0), []
    state = strategy.init(problem)
    for end in ends:
        while strategy.progress(state).proposals < end and not strategy.terminate(state):
            state = strategy.step(state)
        found.append(state.found.cost)
    return found


@click.command()
@click.option("--case", "cases", multiple=True, default=CASES, help="model@machine; may be given several times.")
@click.option("--setting", "settings", multiple=True, default=list(SETTINGS))
@click.option("--proposals", default=1000, show_default=True)
@click.option("--seeds", default=5, show_default=True)
def main(cases: Sequence[str], settings: Sequence[str], proposals: int, seeds: int) -> None:
    """Print one JSON object for each model, machine and setting, as soon as it is known."""
    compile_all()
    for case, setting in product(cases, settings):
        name, _, machine_name = case.partition("@")
        machine = Machine.preset(machine_name)
        problem = Problem(model(name), machine)
        (start,) = best_s(problem, TEMPERING, [len(SEEDS)])
        ends = [proposals // 4, proposals // 2, proposals]
        found = [best_s(replace(problem, seed=seed), SETTINGS[setting], ends) for seed in range(seeds)]
        shares = [geometric_mean(cost / start for cost in costs) for costs in zip(*found, strict=True)]
        row = {"case": case, "setting": setting, "start_ms": start * 1e3, "of_start": shares}
        click.echo(json.dumps(row | {"seeds": [costs[-1] / start for costs in found]}))


if __name__ == "__main__":
    main()
