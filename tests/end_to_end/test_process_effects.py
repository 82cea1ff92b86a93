"""A process after it has used Maniple: as before, but for what docs/reference/processors.md names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

STATE = """
    import gc, json, os, random, signal, sys, threading, warnings
    import numpy as np
    import torch
    import torch.nn.functional as F
    import maniple as mp

    def elsewhere():
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start(); thread.join()
        return found[0]

    def state():
        return {
            "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks), gc.get_debug()],
            "threads": torch.get_num_threads(),
            "threads of a new thread": elsewhere(),
            "interop threads": torch.get_num_interop_threads(),
            "excepthook": id(sys.excepthook),
            "other hooks": [id(threading.excepthook), id(sys.unraisablehook), id(sys.displayhook)],
            "tracing": [sys.getprofile() is None, sys.gettrace() is None, threading.getprofile() is None],
            "switch interval": sys.getswitchinterval(),
            "recursion limit": sys.getrecursionlimit(),
            "signals": {s.name: repr(signal.getsignal(s)) for s in sorted(signal.valid_signals() - {9, 19})
                        if isinstance(s, signal.Signals)},
            "apply": repr(vars(torch.autograd.Function)["apply"]),
            "hooks": [repr(torch.Tensor.register_hook), repr(torch.Tensor.register_post_accumulate_grad_hook)],
            "grad": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_dtype())],
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "random": [hash(torch.get_rng_state().numpy().tobytes()), repr(np.random.get_state()[1][:8]),
                       hash(random.getstate())],
            # torch's exporter, once it is loaded, says where its compiler would keep things.
            "environment": sorted(item for item in os.environ.items() if not item[0].startswith("TORCHINDUCTOR_")),
            "warnings": len(warnings.filters),
            "folder": os.getcwd(),
            "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "print options": repr(np.get_printoptions()),
        }

    def shown(before):
        after = state()
        print(json.dumps(sorted(name for name in before if before[name] != after[name])))
"""
WORK = """
    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 4)

        def forward(self, x, y):
            return F.cross_entropy(self.layer(x), y)

    small = Small()

    @mp.task
    def double(x: mp.ReadWrite) -> None:
        x *= 2

    def use():
        x, y = torch.ones(4, 6), torch.arange(4)
        graph = mp.from_torch(small, (x, y))
        plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1, momentum=0.9)) as trainer:
            trainer.step(x, y)
            trainer.memory()
        a = mp.region((4,), name="a")
        a.fill(1.0)
        for _ in range(3):
            with mp.trace("step"):
                mp.launch(double, a)
        with mp.record():
            mp.launch(double, a)
        assert a.read().tolist() == [16.0] * 4
"""
PROGRAM = """
    torch.set_num_threads(3)
    before = state()
    use()
    shown(before)
"""
# A failure of each kind that leaves by an exception.
FAILING = """
    class Hooked(Small):
        def forward(self, x, y):
            x.register_hook(print)
            return super().forward(x, y)

    @mp.task
    def explode(x: mp.ReadWrite) -> None:
        raise ValueError("no")

    hooked = Hooked()

    before = state()
    a = mp.region((4,))
    a.fill(1.0)
    for call in (
        lambda: mp.from_torch(hooked, (torch.ones(4, 6, requires_grad=True), torch.arange(4))),
        lambda: (mp.launch(explode, a), mp.fence()),
    ):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, file=sys.stderr)
        else:
            raise AssertionError("nothing failed")
    shown(before)
"""


def changed(tmp_path: Path, program: str, *launch: str) -> list[str]:
    """What a program finds changed."""
    script = tmp_path / "program.py"
    script.write_text("".join(textwrap.dedent(part) for part in (STATE, WORK, program)))
    command = [sys.executable, *launch, str(script)]
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_program_leaves_its_process_as_it_was(tmp_path: Path) -> None:
    assert changed(tmp_path, PROGRAM) == []


def test_so_does_one_that_fails(tmp_path: Path) -> None:
    assert changed(tmp_path, FAILING) == []


@pytest.mark.jobs
def test_a_rank_of_a_launch_changes_what_is_named(tmp_path: Path) -> None:
    """Its exceptions are told to the launcher, which was so before the program began."""
    assert changed(tmp_path, PROGRAM, "-m", "maniple.cli", "run") == []


def test_a_change_is_seen(tmp_path: Path) -> None:
    careless = "before = state()\ngc.disable()\ntorch.set_grad_enabled(False)\nshown(before)\n"
    assert changed(tmp_path, careless) == ["gc", "grad"]
