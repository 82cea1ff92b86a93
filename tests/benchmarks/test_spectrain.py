"""SpecTrain's experiment: which runs there are, a tiny one under each rule, and going on where a file ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import spectrain

RUN = spectrain.Run("text", 3, "latest", "sgd", 0.05, 1, 6)


def test_there_are_about_three_hundred_runs() -> None:
    every = list(spectrain.wanted(["digits", "text"], [4, 8, 16], list(spectrain.RULES), 5, None))
    rates, others, adamw = 2, 1 * 3, 6 * 3
    assert len(every) == len(set(every)) == 2 * (3 * 5 * rates * 5 + others * rates + adamw)
    first = list(spectrain.wanted(["digits", "text"], [8], list(spectrain.RULES), 3, None))
    assert first == [run for run in every if run.stages == 8 and run.seed < 3]


@pytest.mark.parametrize(("data", "rule"), [("digits", "2bw"), ("text", "synchronous"), ("text", "spectrain")])
def test_a_run_is_trained_and_scored(data: str, rule: str) -> None:
    if data == "digits":
        pytest.importorskip("sklearn")
    run = replace(RUN, rule=rule, data=data)
    found = spectrain.train(run)
    assert {name: found[name] for name in spectrain.Run.__dataclass_fields__} == vars_of(run)
    assert 0.0 <= float(str(found["accuracy"])) <= 1.0
    if rule == "spectrain":
        assert spectrain.train(run)["loss"] == found["loss"]


def vars_of(run: spectrain.Run) -> dict[str, object]:
    return {name: getattr(run, name) for name in spectrain.Run.__dataclass_fields__}


def test_what_is_done_is_read_and_a_line_that_was_cut_off_is_none(tmp_path: Path) -> None:
    place = tmp_path / "out.jsonl"
    told = [{**vars_of(replace(RUN, seed=seed)), "loss": loss, "accuracy": 0.5} for seed, loss in ((0, 1.0), (1, 3.0))]
    place.write_text("\n".join(map(json.dumps, told)) + '\n{"data": "te')
    found = spectrain.done(place)
    assert list(found) == [replace(RUN, seed=0), RUN]
    assert spectrain.table(found).splitlines()[-2:] == [
        "| text | 3 | sgd | 0.05 | 6 | loss |  | 2.000 ± 1.414 (2) |  |  |  |  |",
        "| text | 3 | sgd | 0.05 | 6 | accuracy % |  | 50.0 ± 0.0 (2) |  |  |  |  |",
    ]
    assert "0 of the 348 runs were made, and 2 others." in spectrain.table(found), (
        "of another depth and length than is wanted"
    )


def test_a_run_that_diverges_is_one_too() -> None:
    found = spectrain.train(replace(RUN, lr=1e30, steps=12))
    assert (found["loss"], found["accuracy"]) == (None, None)
    assert spectrain.table({RUN: found, replace(RUN, seed=2): found}).splitlines()[-2] == (
        "| text | 3 | sgd | 0.05 | 6 | loss |  | (2, 2 diverged) |  |  |  |  |"
    )


def test_a_row_of_the_simulated_table() -> None:
    head, _, row = spectrain.speed(spectrain.mp.Machine.preset("p100x2"), ["snn"])
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert float(cells["speed-up"]) > 1.0
    assert float(cells["data parallel MB"]) > float(cells["MB"])
