"""Pipelines over real processes: the order of a plan is the order that runs, and who is killed in it is named."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
from maniple.runtime.control.world import World
from maniple.testing import local_worlds, run_on_worlds

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "pipelined.py"
DRAWN = SCRIPT.with_name("drawn_pipelines.py")
STOP_S = 10.0


def load(file: Path) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> Any:
    return load(SCRIPT)


def launch(*arguments: str, transport: str = "shared", script: Path = SCRIPT, count: int = 2) -> subprocess.Popen[str]:
    hosts = ("--ranks-per-node" if transport == "shared" else "--nodes", str(count))
    command = [sys.executable, "-m", "maniple.cli", "run", *hosts, "--transport", transport, str(script), *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def order_of(script: Any, order: str, micro_batches: int) -> PipelineOrder:
    graph = script.network()
    found = script.whole(graph).with_pipeline(script.STAGES, order=order, micro_batches=micro_batches).order(graph)
    assert found is not None
    return found


def ran(spans: list[Any], stage: int) -> list[tuple[str, int, int, int]]:
    """What a stage's processor ran of micro-batches, in order: F or B, the micro-batch, from when to when."""
    found: list[tuple[str, int, int, int]] = []
    for lane, name, start, end in spans:
        if lane == f"p{stage}" and (task := re.match(r"\w+\.(forward|backward)\b.*?#(\d+)", name)):
            kind, part = "F" if task[1] == "forward" else "B", int(task[2])
            if found and found[-1][:2] == (kind, part):
                found[-1] = (kind, part, found[-1][2], end)
            else:
                found.append((kind, part, start, end))
    return found


@pytest.mark.parametrize(
    ("order", "micro_batches", "transport"),
    [("1f1b", 8, "shared"), ("1f1b", 5, "zmq"), ("gpipe", 3, "zmq"), ("early_backward", 7, "shared")],
)
def test_the_order_of_a_plan_is_the_order_that_runs(
    tmp_path: Path, script: Any, order: str, micro_batches: int, transport: str
) -> None:
    """Law 9; and what the ranks computed is what one process computes of the whole batch."""
    run = launch(str(tmp_path / "out.json"), order, str(micro_batches), "-1", transport=transport)
    _, errors = run.communicate(timeout=100)
    assert run.returncode == 0, errors
    out = json.loads((tmp_path / "out.json").read_text())
    graph, expected = script.network(), order_of(script, order, micro_batches)
    in_flight = []
    for stage, lane in enumerate(expected.lanes):
        actions = ran(out["ran"], stage)
        assert [action[:2] for action in actions] == [(action.kind, action.micro_batch) for action in lane]
        now, most = 0, 0
        for kind, *_ in actions:
            now += 1 if kind == "F" else -1
            most = max(most, now)
        in_flight.append(most)
    assert tuple(in_flight) == expected.in_flight()
    first, last = (ran(out["ran"], stage) for stage in (0, 1))
    begins = {part: start for kind, part, start, _ in first if kind == "F"}
    ends = {part: end for kind, part, _, end in last if kind == "B"}
    assert any(begins[part + 1] < ends[part] for part in range(micro_batches - 1))  # side by side, on two ranks

    with mp.Trainer(
        graph,
        script.whole(graph),
        optimizer=mp.SGD(lr=0.1, momentum=0.9),
        seed=1,
        world=World.solo(processors=2, cores=1),
    ) as trainer:
        losses = [trainer.step(x, labels) for x, labels in script.batches()]
        wanted = trainer.parameters()
    assert out["losses"] == pytest.approx(losses, abs=1e-10)
    for name, value in wanted.items():
        assert torch.allclose(torch.tensor(out["parameters"][name], dtype=torch.float64), value, atol=1e-10, rtol=0)


@pytest.fixture(scope="module")
def drawing() -> Any:
    return load(DRAWN)


@pytest.fixture(scope="module")
def wanted(drawing: Any) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
    """What one process of four processors makes of each case, of the whole batch."""

    def train(world: World) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
        return [drawing.trained(case, case.whole, world) for case in drawing.cases()]

    return run_on_worlds(local_worlds(1, None, 4), train, 90.0)[0]


@pytest.mark.parametrize(("first", "transport"), [(0, "shared"), (1, "zmq")])
def test_orders_and_drawn_pipelines_over_processes_train_as_the_whole_batch(
    tmp_path: Path, first: int, transport: str, drawing: Any, wanted: list[tuple[list[float], dict[str, torch.Tensor]]]
) -> None:
    """Law 1 on four processes, which train every other one of ten orders and four drawn pipelines in a row."""
    out = tmp_path / "out.json"
    ranks = launch(str(out), str(first), transport=transport, script=DRAWN, count=4)
    _, errors = ranks.communicate(timeout=100)
    assert ranks.returncode == 0, errors
    cases = drawing.cases()[first::2]
    assert {len(case.plan.stages) for case in cases} >= {3, 4}
    for found, expected, case in zip(json.loads(out.read_text()), wanted[first::2], cases, strict=True):
        assert found[0] == pytest.approx(expected[0], abs=1e-10), case.said
        for name, value in expected[1].items():
            own = torch.tensor(found[1][name], dtype=torch.float64)
            assert torch.allclose(own, value, atol=1e-10, rtol=0), case.said


@pytest.mark.parametrize(
    ("rank", "action", "transport"),
    [(0, "0F1", "zmq"), (1, "1B3", "shared"), (0, "0B7", "zmq"), (1, "1F0", "shared")],
    ids=["ramp", "steady", "drain", "first"],
)
def test_a_rank_that_is_killed_in_a_pipeline_is_named(tmp_path: Path, rank: int, action: str, transport: str) -> None:
    run = launch(str(tmp_path / "out.json"), "1f1b", "8", str(rank), action, transport=transport)
    assert run.stdout is not None
    pids = next(([int(word) for word in line.split()[1:]] for line in run.stdout if line.startswith("pids ")), [])
    assert pids, run.communicate()[1]
    begun = time.monotonic()
    try:
        _, errors = run.communicate(timeout=60)
    finally:
        run.kill()
    assert time.monotonic() - begun < STOP_S
    assert run.returncode == 1
    assert Counter(re.findall(r"^error: ", errors, re.MULTILINE))["error: "] == 1, errors
    assert f"rank {rank}" in errors
    assert "SIGKILL" in errors or "killed" in errors
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
