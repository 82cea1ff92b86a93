"""Imports in a process that passes: the graph is that of an import here, and what torch exports by is not loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import maniple as mp
from maniple.operators.graph import graph_file
from maniple.operators.torch_import import passing_process
from maniple.operators.torch_import.found_graph import FoundGraph
from maniple.operators.torch_import.passing_process import can_pass, made_in_passing
from maniple.process.quiet_thread import QuietThread

PROGRAM = """
import json, sys
import torch
from torch import nn
import maniple as mp

LOADED = ("torch._dynamo", "torch.export._trace", "sympy", "networkx")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("places", torch.randn(8), persistent=False)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.calls = 0

    def forward(self, x, y):
        self.calls += 1
        print("forward", flush=False)
        found = self.norm(self.words(x)) + self.places * self.scale
        return nn.functional.cross_entropy(self.head(torch.tanh(self.inner(found))), y)

torch.manual_seed(0)
net, x, y = Net(), torch.randint(0, 12, (6,)), torch.randint(0, 12, (6,))
apart = mp.from_torch(net, (x, y))
told = {}
import importlib
importer, processes = importlib.import_module("maniple.operators.torch_import.from_torch"), []
passing = importer.made_in_passing
importer.made_in_passing = lambda make: processes.append(make) or passing(make)
apart.foresee_batches([6, 4, 1])
foreseen = {count: apart.with_batch(count).fingerprint() for count in (4, 3, 2, 1)}
told["processes"] = len(processes)
told |= {"loaded by the import": [name for name in LOADED if name in sys.modules], "calls": net.calls}
with mp.Trainer(apart, mp.search(apart, mp.Machine.detect(), strategy="data_parallel"), optimizer=mp.SGD(lr=0.1)) as t:
    told["losses"] = [t.step(x, y) for _ in range(2)]
told["loaded by training"] = [name for name in LOADED if name in sys.modules]
try:
    mp.from_torch(nn.Linear(3, 3), (torch.ones(2, 3),), loss=lambda out: out.sum() if out.sum() > 0 else -out.sum())
except mp.RequestError as error:
    told["cause"] = type(error.__cause__).__name__

import torch._dynamo
here = mp.from_torch(net, (x, y))
told["tensors"] = [str(t) for t in apart.tensors] == [str(t) for t in here.tensors]
told["nodes"] = [str(n) for n in apart.nodes] == [str(n) for n in here.nodes]
told["values"] = apart.state.keys() == here.state.keys() and all(
    torch.equal(apart.state[name], here.state[name]) for name in here.state
)
told["shared"] = apart.state["inner.weight"].data_ptr() == net.inner.weight.data_ptr()
told["recounted"] = foreseen == {count: here.with_batch(count).fingerprint() for count in foreseen}
with mp.Trainer(here, mp.search(here, mp.Machine.detect(), strategy="data_parallel"), optimizer=mp.SGD(lr=0.1)) as t:
    told["same losses"] = [t.step(x, y) for _ in range(2)] == told.pop("losses")
print()
print(json.dumps(told))
"""


def test_an_import_leaves_nothing_behind_and_is_what_it_is_here() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {
        "loaded by the import": [],
        "calls": 0,
        "loaded by training": [],
        "cause": told["cause"],
        "tensors": True,
        "nodes": True,
        "values": True,
        "shared": True,
        "recounted": True,
        "processes": 1,  # for all numbers of samples that were foreseen
        "same losses": True,
    }
    assert told["cause"] != "NoneType", "what is refused is refused here, with its cause"
    assert done.stdout.startswith("forward\n"), "what a forward prints is printed"


def test_what_raises_there_gives_nothing() -> None:
    def fails() -> bytes:
        raise ValueError

    assert made_in_passing(lambda: b"found" * 50_000) == b"found" * 50_000
    assert made_in_passing(fails) == b""


def test_one_that_ends_or_waits_for_good_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a thread of a library held at the fork is never given; the import goes on without the process."""
    monkeypatch.setattr(passing_process, "IDLE_S", 0.1)
    held = threading.Lock()
    held.acquire()

    def wait() -> bytes:
        held.acquire()
        return b"never"

    def die() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b"never"

    assert made_in_passing(wait) == b""
    assert made_in_passing(die) == b""
    assert made_in_passing(lambda: b"whole" * 300_000) == b"whole" * 300_000


def test_what_was_sent_in_part_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing_process, "LENGTH", 4)
    fork = os.fork

    def shorter() -> int:
        child = fork()
        if child == 0:
            monkeypatch.setattr(passing_process, "LENGTH", 2)
        return child

    monkeypatch.setattr(os, "fork", shorter)
    assert made_in_passing(lambda: b"abcdef") == b""


def test_there_is_no_such_process_beside_threads_that_may_hold_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing_process, "_COMPILER", "no module of this name")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *beside])
    values = [torch.ones(2)]
    beside: list[threading.Thread] = [QuietThread()]
    assert can_pass(values) == (sys.platform == "linux")
    beside.append(threading.Thread())
    assert not can_pass(values)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.arange(6).reshape(2, 3).T,
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
    ],
    ids=["a number", "nothing", "booleans", "transposed", "a half", "complex"],
)
def test_constants_are_sent_as_they_are(value: torch.Tensor) -> None:
    graph = mp.Graph("small")
    labels = graph.input("y", (2,), "int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.input("x", (2, 2)), 2), labels))
    sent = FoundGraph(graph_file.to_json(graph), ("linear.weight",), {"known": value}, ("told",), ("counted",))
    found = FoundGraph.of_bytes(sent.to_bytes())
    assert found.graph().fingerprint() == graph.fingerprint()
    assert (found.held, found.closed, found.changed) == (sent.held, sent.closed, sent.changed)
    assert found.constants["known"].dtype == value.dtype
    assert torch.equal(found.constants["known"], value)
