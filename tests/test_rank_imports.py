"""What ranks of a host import as one: it leaves a process that may be forked, and nothing large to import after it."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, os, random, sys, threading
import numpy as np

import torch
before, own = random.getstate(), torch.get_rng_state()
import maniple.rank_imports
imported = set(sys.modules)
import maniple as mp

told = {
    "threads": threading.active_count(),
    "all threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1,
    "draws nothing": random.getstate() == before and torch.equal(torch.get_rng_state(), own),
    "gpu": torch.cuda.is_initialized(),
    "launched": sys.excepthook is not sys.__excepthook__,
}
graph = mp.Graph("small")
x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
hidden = graph.softmax(graph.relu(graph.linear(x, 4)), 1)  # without a body of ours
graph.loss(graph.cross_entropy(graph.linear(hidden, 2), y))
plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
    trainer.step(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))
told["later"] = sorted(set(sys.modules) - imported)
told["of scipy"] = "scipy.linalg" in sys.modules
import numba
told["a product"] = float(numba.njit(lambda x: np.dot(x, x))(np.full(3, 2.0)))
told["of torch's compiler"] = sorted(sys.modules.keys() & {"sympy", "torch._dynamo", "torch._inductor"})
print(json.dumps(told))
"""


def test_a_process_that_imported_it_may_be_forked_and_has_all_that_takes_long() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    later = told.pop("later")
    assert told == {
        "threads": 1,
        "all threads": 1,
        "draws nothing": True,
        "gpu": False,
        "launched": False,
        "of scipy": False,
        "a product": 12.0,
        "of torch's compiler": [],
    }
    packages = {name.partition(".")[0] for name in later}
    assert not packages & {"torch", "numba", "numpy", "scipy", "sympy", "llvmlite", "zmq", "networkx"}, later
    assert len(later) < 40
