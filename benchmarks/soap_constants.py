"""The constants of `soap`: how fast the plans are that it finds with one number of proposals under several of them.

    python benchmarks/soap_constants.py                              all models and settings
    python benchmarks/soap_constants.py --model nmt --proposals 500  one model

A row is a model and a setting: the step times of the found plans over those of the fastest named plan, by their
geometric mean over the seeds, after a quarter, a half and all of the proposals. OptCNN's plan is left out, so that all
settings begin alike. Numbers of proposals are compared, not seconds: a busy machine changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import geometric_mean

import click

from maniple.models import model
from maniple.runtime.machine import Machine
from maniple.strategies.simulation.compilation import compile_all
from maniple.strategies.soap.chains import TEMPERING, Tempering
from maniple.strategies.soap.soap import Soap
from maniple.strategies.strategy import Problem

CASES = (
    ("lenet", "p100x4"),
    ("alexnet", "p100x4"),
    ("alexnet", "p100x16"),
    ("rnnlm", "p100x16"),
    ("nmt", "p100x16"),
    ("inception_v3", "p100x16"),
)
SETTINGS = {
    "as it is": TEMPERING,
    "one chain": replace(TEMPERING, temperatures=(0.003,)),
    "cold": replace(TEMPERING, temperatures=(0.0,) * 8),
    "hot": replace(TEMPERING, temperatures=(0.01,) * 8),
    "ladder": replace(TEMPERING, temperatures=(0.0, 0.0, 0.001, 0.001, 0.003, 0.003, 0.01, 0.01)),
    "4 chains": replace(TEMPERING, temperatures=(0.003,) * 4, length=32),
    "short": replace(TEMPERING, length=4),
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
@click.option("--model", "names", multiple=True, default=[name for name, _ in CASES])
@click.option("--setting", "settings", multiple=True, default=list(SETTINGS))
@click.option("--proposals", default=1000, show_default=True)
@click.option("--seeds", default=5, show_default=True)
def main(names: Sequence[str], settings: Sequence[str], proposals: int, seeds: int) -> None:
    """Print one JSON object for each model, machine and setting, as soon as it is known."""
    compile_all()
    for name, machine_name in CASES:
        if name not in names:
            continue
        machine = Machine.preset(machine_name)
        graph = model(name)
        (start,) = best_s(Problem(graph, machine), TEMPERING, [1])
        for setting in settings:
            ends = [proposals // 4, proposals // 2, proposals]
            found = [best_s(Problem(graph, machine, seed=seed), SETTINGS[setting], ends) for seed in range(seeds)]
            shares = [geometric_mean(cost / start for cost in costs) for costs in zip(*found, strict=True)]
            row = {"model": name, "machine": machine_name, "setting": setting, "of_start": shares}
            click.echo(json.dumps(row | {"seeds": [costs[-1] / start for costs in found]}))


if __name__ == "__main__":
    main()
