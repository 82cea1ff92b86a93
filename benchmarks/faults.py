"""Runs with seeded faults, and what became of each: a table, and whatever must not be.

python benchmarks/faults.py --seeds 900 --processes 100
python benchmarks/faults.py --seeds 5:6      # one seed again
python benchmarks/faults.py --seeds 0 --streams 60

Ranks are threads over the real control plane, coordinator and tiles; of `--streams` it is a stream of large tiles that
has the fault, and those of `--processes` are processes of the real launcher, which exchange such tiles too. The exit
status is 1 where a run hung, gave a wrong number, named nobody, or left something behind.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from maniple.testing.fault_link import WIRE_FAULTS
from maniple.testing.faulty_run import STUCK, Outcome, Scenario, run

STEPS = Path(__file__).resolve().parent / "faulty_steps.py"
AT_RANK = ("kill", "stop", "raise", "exit", "leave", "hold", "memory", "disk")
"""Faults of one rank, which must be named: what they are is in `faulty_steps.py`."""
ON_STREAM = tuple(f"stream {kind}" for kind in WIRE_FAULTS)
"""Faults of a stream between two ranks."""
PROCESS_FAULTS = ("none", *AT_RANK, "launcher killed", "port taken", "stranger", *ON_STREAM)
DEADLINE_S = 90.0


def span(text: str) -> range:
    """Give the seeds of `N` or `FROM:TO`."""
    first, colon, last = text.partition(":")
    return range(int(first), int(last)) if colon else range(int(first))


def in_process(scenarios: Iterable[Scenario], at_once: int) -> list[Outcome]:
    """Run scenarios, several at once: most of their time they wait for a silence to become a failure."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(run, scenarios))


def call_at(ports: list[int], draw: random.Random, stop: threading.Event) -> None:
    """Say what nobody asked for at ports of the run, in turn, until it is over."""
    while not stop.is_set():
        for port in ports:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as link:
                    link.sendall(draw.randbytes(draw.randint(0, 200)))
                    link.settimeout(0.05)
                    link.recv(64)
            except OSError:
                stop.wait(0.01)


def with_processes(seed: int) -> tuple[str, str, list[str]]:
    """Run the real launcher with a fault; gives the fault, how the run ended, and what must not be."""
    draw = random.Random(seed)
    fault = draw.choice(PROCESS_FAULTS)
    size = draw.choice((2, 2, 3))
    victim, transport = draw.randrange(size), draw.choice(("zmq", "shared"))
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if fault != "port taken":
            taken.close()
        command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", str(size), "--transport", transport]
        command += ["--imports", "maniple.runtime.control.world"]  # and not torch, which no fault is about
        command += ["--port", str(port), "--hang-timeout", "5", *(["--verify-tiles"] if fault in ON_STREAM else [])]
        command += [str(STEPS), fault, str(victim), str(draw.randrange(1, 5))]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        told = ""
        limit = threading.Timer(DEADLINE_S, started.kill)
        limit.start()
        try:
            if started.stdout is not None and fault in {"launcher killed", "stranger"}:
                told = started.stdout.readline() + started.stdout.readline()
            if fault == "launcher killed":
                started.send_signal(signal.SIGKILL)
            elif fault == "stranger":
                ports = [port, *map(int, re.findall(r"\d+", told.partition("ports")[2]))]
                threading.Thread(target=call_at, args=(ports, draw, stop), daemon=True).start()
            out, err = started.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            started.kill()
            return fault, "wrong", [f"seed {seed}: no end within {DEADLINE_S:.0f} s"]
        finally:
            limit.cancel()
            stop.set()
    wrong = judge(fault, victim, size, started.returncode, told + out, err)
    ended = "right" if started.returncode == 0 else "all wait" if STUCK in err else "named"
    return fault, "wrong" if wrong else ended, [f"seed {seed}: {each}" for each in wrong]


def judge(fault: str, victim: int, size: int, status: int, out: str, err: str) -> list[str]:
    """Give what must not be, of a run of processes that has ended."""
    expected = {"none": {0}, "stranger": {0}, "stream delay": {0}, "launcher killed": {-9}}.get(
        fault, {0, 1} if fault in ON_STREAM else {1}
    )
    wrong = [] if status in expected else [f"{fault}: status {status}, expected {expected}: {err[-300:]}"]
    if "wrong number" in out + err:
        wrong.append(f"{fault}: a wrong number")
    if fault in AT_RANK and f"(rank {victim})" not in err:
        wrong.append(f"{fault}: rank {victim} is not named: {err[-300:]}")
    ends = f"(rank {victim})", f"(rank {(victim + 1) % size})"
    if fault in ON_STREAM and status and not any(end in err for end in ends) and STUCK not in err:
        wrong.append(f"{fault}: neither {' nor '.join(ends)} is named: {err[-300:]}")
    if fault == "port taken" and not re.search(r"port \d+ is already in use", err):
        wrong.append(f"the port is not named: {err[-300:]}")
    found = re.search(r"pids ([\d ]+)", out)
    if found is None and fault != "port taken":
        wrong.append(f"{fault}: no rank began")
    numbers = [int(word) for word in found[1].split()] if found else []
    end = time.monotonic() + 10
    while time.monotonic() < end and any(Path(f"/proc/{number}").exists() for number in numbers):
        time.sleep(0.05)
    left = [number for number in numbers if Path(f"/proc/{number}").exists()]
    for number in left:
        os.kill(number, signal.SIGKILL)
    return [*wrong, *([f"{fault}: processes {left} are left"] if left else [])]


def main() -> int:
    """Run all that was asked for, and print the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=span, default=range(900))
    asked.add_argument("--streams", type=span, default=range(0))
    asked.add_argument("--processes", type=span, default=range(0))
    asked.add_argument("--at-once", type=int, default=4)
    given = asked.parse_args()
    begun = time.monotonic()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: list[str] = []
    scenarios = [*map(Scenario.of, given.seeds), *map(Scenario.on_stream, given.streams)]
    for outcome in in_process(scenarios, given.at_once):
        scenario = outcome.scenario
        row = f"{scenario.plane:8}{scenario.fault}"
        bad = [*outcome.wrong, *([f"{outcome.left} threads are left"] if outcome.left else [])]
        wrong += [f"seed {scenario.seed} ({row}): {each}" for each in bad]
        ended = "right" if outcome.status == 0 else "all wait" if STUCK in outcome.message else "named"
        counts[row]["wrong" if bad else ended if outcome.met else "not met"] += 1
    for seed in given.processes:
        fault, ended, bad = with_processes(seed)
        wrong += bad
        counts[f"process {fault}"][ended] += 1
    kinds = ("right", "named", "all wait", "not met", "wrong")
    print(f"{'plane   fault':28}" + "".join(f"{kind:>9}" for kind in kinds))
    for row in sorted(counts):
        print(f"{row:28}" + "".join(f"{counts[row][kind]:9}" for kind in kinds))
    print(f"{sum(map(Counter.total, counts.values()))} runs in {time.monotonic() - begun:.0f} s, {len(wrong)} wrong")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
