"""The CUDA kernels in numba's simulator, in a process of its own: it is chosen when numba is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Blocks of fewer threads, each of which the simulator runs as one of Python's. (PTX is that of blocks as they are.)
SMALL_BLOCKS = """
import sys
from maniple.runtime.devices import cuda_kernels
cuda_kernels.THREADS = 8
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_every_cuda_kernel_in_the_simulator() -> None:
    checks = Path(__file__).parents[1] / "simulated_cuda.py"
    found = subprocess.run(
        [sys.executable, "-c", SMALL_BLOCKS, str(checks)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert " passed" in found.stdout


def test_every_cuda_kernel_compiles_to_ptx() -> None:
    """For sm_80 and sm_90; NVVM and its library are packages of the extra `ptx`, and no device is needed."""
    try:
        there = importlib.util.find_spec("numba_cuda") and importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        there = None
    if there is None:
        pytest.skip("numba-cuda and NVVM are not installed: pip install 'maniple[ptx]'")
    program = Path(__file__).parents[1] / "ptx_of_kernels.py"
    command, given = [sys.executable, str(program)], {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=given)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(" sm_80 ") == found.stdout.count(" sm_90 ") > 40


def test_nothing_imports_cuda_before_it_is_used() -> None:
    code = (
        "import sys, maniple.operators.training.descent_kernels, maniple.operators.library.randomness.dropout_kernels\n"
        "import maniple.operators.library.losses.cross_entropy_kernels, maniple.runtime.session.session\n"
        "print([name for name in sys.modules if name.startswith('maniple') and 'cuda' in name])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "[]"
