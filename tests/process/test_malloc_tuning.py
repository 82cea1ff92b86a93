"""What a process frees is kept: the next step finds it without a page fault, unless the user has said otherwise."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from maniple.process import environment

# Two blocks that lie behind each other, as the scratch of two bodies; no thread of torch or numba is there.
STEPS = """
import resource
import numpy as np
{first}
def step():
    for size in (5_000_000, 3_000_000):
        np.full(size, 1.0, dtype=np.float32)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print({said}, (faults() - before) // 10)
"""
MANY, FEW = 500, 50
"""Page faults of a step; with huge pages, which numpy asks for, a fault brings 2 MiB of the 30."""


def run(first: str, said: str, variables: dict[str, str]) -> tuple[str, int]:
    plain = {
        name: value for name, value in environment.copy_variables().items() if name not in environment.HEAP_VARIABLES
    }
    done = subprocess.run(
        [sys.executable, "-c", STEPS.format(first=first, said=said)],
        capture_output=True, text=True, check=True, env={**plain, **variables},
    )  # fmt: skip
    answer, faults = done.stdout.split()
    return answer, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of another C library is left as it is")
def test_what_a_step_frees_the_next_one_takes() -> None:
    """Steps fault again and again where the user has said so, and no more where the heap is kept."""
    kept = "from maniple.process.malloc_tuning import keep_freed; kept = keep_freed()"
    # A threshold that is said keeps glibc from adapting it: every block of this size is mapped alone.
    fixed = {"MALLOC_MMAP_THRESHOLD_": "131072"}
    assert run("", "None", fixed)[1] > MANY
    answer, faults = run(kept, "kept", fixed)
    assert (answer, faults > MANY) == ("False", True)
    answer, faults = run(kept, "kept", {})
    assert (answer, faults < FEW) == ("True", True)
