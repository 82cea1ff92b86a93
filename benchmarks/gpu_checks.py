"""All that a GPU can show, in one command of under eight minutes: run it first wherever there is one.

    python benchmarks/gpu_checks.py > found.jsonl                       on one GPU
    python benchmarks/gpu_checks.py --device null --small               a rehearsal: no time of it means anything

The package must be installed (`pip install --no-deps -e .` where nothing can be downloaded), for it finds strategies by
its entry points. It says which wheels to bring: torch, numba, numba-cuda, numpy below 2.5, msgpack, networkx and
safetensors are needed; with click, rich and pyzmq ranks may be processes (NCCL, `gpu_ranks.py`), which else are
threads; without scikit-learn the digits are drawn.

A line of JSON comes as soon as something was found, so it may be stopped at any time. The checks (`gpu_findings.py`)
run in a process of their own. One that fails is a line with `error`, and the next runs; where it ends its process, is
silent for long, or leaves a device that this process cannot use any more, the rest run in another:

    process 1    doctor   law1   ranks: the device failed
    process 2                                             nccl   digits: silent, and killed
    process 3                                                                                 kernels ...

The exit status is 0 if nothing was wrong, 1 if something was, and 2 if nothing could be checked.

The checks, in this order: doctor, law1, ranks, nccl, digits, kernels, steps, chain, memory, capture, prediction,
recording.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

FINDINGS = Path(__file__).with_name("gpu_findings.py")
CHECKS = ("doctor", "law1", "ranks", "nccl", "digits", "kernels")
CHECKS += ("steps", "chain", "memory", "capture", "prediction", "recording")
LOST, NOTHING = 3, 2
"""The exit statuses of a process of checks whose device was lost, and of one that could check nothing."""
NEEDED = {"torch": "torch", "numba": "numba", "numpy": "'numpy<2.5'"}
NEEDED |= {name: name for name in ("msgpack", "networkx", "safetensors")}
ON_CUDA = {"numba_cuda": "numba-cuda"}
BETTER = {"click": "click", "rich": "rich", "zmq": "pyzmq", "sklearn": "scikit-learn"}
"""Wheels by what is imported of them."""
Line = dict[str, Any]


def missing(wheels: dict[str, str]) -> list[str]:
    """The wheels that are not here."""

    def there(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except (ModuleNotFoundError, ValueError):
            return False

    return [wheel for name, wheel in wheels.items() if not there(name)]


def tell(line: Line, begun: float) -> bool:
    """Print a line, with when it came; says whether nothing is wrong by it."""
    at_s = round(time.monotonic() - begun, 1)
    print(json.dumps({"check": line.pop("check", None), "at_s": at_s, **line}), flush=True)
    return line.get("right") is not False and ("right" in line or "error" not in line)


def run(given: argparse.Namespace, left: deque[str], begun: float) -> tuple[bool, bool]:
    """Run what is left of the checks in a process of its own, as far as that comes.

    Args:
        given: arguments.
        left: the checks; those that are over are taken out.
        begun: when all began.

    Returns:
        Whether nothing was wrong, and whether any of them could begin.
    """
    command = [sys.executable, str(FINDINGS), "--device", given.device, "--recording", str(given.recording)]
    command += ["--small"] if given.small else []
    command += ["--seconds", str(max(0.0, given.seconds - (time.monotonic() - begun))), "--only", *left]
    pipe = subprocess.PIPE  # of its input the process sees when this one is gone
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    lines: SimpleQueue[str | None] = SimpleQueue()
    Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    right, under_way, before = True, False, len(left)
    try:
        while (text := lines.get(timeout=given.patience)) is not None:
            line = _line_of(text)
            under_way |= "begins" in line
            if "ends" in line:
                left.popleft()
            elif line and "begins" not in line:
                right &= tell(line, begun)
        status = process.wait(given.patience)
        why = f"its process ended with status {status}"
    except (Empty, subprocess.TimeoutExpired):
        status, why = -signal.SIGKILL, f"nothing came of it for {given.patience:.0f} s, and its process was killed"
    finally:
        _end(process)
    if left and not (status == LOST and len(left) < before) and (under_way or status != NOTHING):
        right &= tell({"check": left.popleft(), "error": why}, begun)
    return right, under_way


def _line_of(text: str) -> Line:
    """What a process of checks says in a line; whatever else it prints goes to the user."""
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if isinstance(line, dict):
        return line
    sys.stderr.write(text)
    return {}


def _read(stream: Iterable[str], lines: SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process, if it has not, with all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    """Run all checks; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "null"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes of a rehearsal")
    parser.add_argument("--seconds", type=float, default=450.0, help="no check begins later than this")
    parser.add_argument(
        "--patience",
        type=float,
        default=240.0,
        help="how long a check may be silent, as the first is while it compiles",
    )
    parser.add_argument("--only", nargs="*", choices=CHECKS, default=[], help="the checks to run; all by default")
    parser.add_argument("--recording", type=Path, default=Path("gpu_checks.trace.json"))
    given = parser.parse_args()
    begun = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    needed = NEEDED | (ON_CUDA if given.device == "cuda" else {})
    if lacking := missing(needed | {"maniple": "--no-deps -e ."}):
        step = f"pip install {' '.join(lacking)}"
        tell({"check": "doctor", "right": False, "missing": lacking, "next": step}, begun)
        return NOTHING
    if helpful := missing(BETTER):
        sys.stderr.write(f"more can be checked with: pip install {' '.join(helpful)}\n")
    left, right = deque(name for name in CHECKS if not given.only or name in given.only), True
    any_began = True
    while left and any_began:
        found, any_began = run(given, left, begun)
        right &= found
    return int(not right) if any_began else NOTHING


if __name__ == "__main__":
    sys.exit(main())
