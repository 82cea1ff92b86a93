"""The end of a program: what it launched still runs, and a failure that nobody waited for is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_files")]

PROGRAM = """
import sys, time
import maniple as mp

@mp.task
def work(x: mp.ReadWrite, kind: str) -> None:
    if kind == "raise":
        raise ValueError("broken")
    if kind == "exit":
        sys.exit(0)
    if kind == "nested":
        mp.fence()
    time.sleep(0.05)
    open(sys.argv[2], "a").write("done\\n")

X = mp.region((4,))
X.fill(0.0)
for _ in range(5):
    mp.launch(work, X, sys.argv[1])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(command: list[str], program: Path, kind: str) -> subprocess.CompletedProcess[str]:
    output = program.with_name("output")
    return subprocess.run(
        [*command, str(program), kind, str(output)], capture_output=True, text=True, check=False, timeout=60
    )


ALONE = [sys.executable]
BY_ITSELF = [sys.executable, "-u"]  # an interpreter that was not forked
LAUNCHED = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2"]


@pytest.mark.parametrize("command", [BY_ITSELF, LAUNCHED])
def test_a_program_without_a_fence_still_runs_what_it_launched(command: list[str], program: Path) -> None:
    ended = run(command, program, "work")
    assert ended.returncode == 0, ended.stderr
    assert program.with_name("output").read_text().count("done") == 5


# How a task failed is told in one process as in several; that it is told is seen in both.
@pytest.mark.parametrize(
    ("command", "kind", "cause"),
    [
        (ALONE, "raise", "broken"),
        (LAUNCHED, "raise", "broken"),
        (ALONE, "exit", "SystemExit"),
        (ALONE, "nested", "inside a task"),
    ],
)
def test_a_task_that_failed_unseen_fails_the_program(command: list[str], program: Path, kind: str, cause: str) -> None:
    ended = run(command, program, kind)
    assert ended.returncode == 1
    assert cause in ended.stderr
    assert "work[]@p0" in ended.stderr


GOES_ON = """
import sys, time
import maniple as mp

@mp.task
def bad(color: mp.Color, x: mp.ReadWrite) -> None:
    if color[0] == 1:
        raise ValueError("broken")

@mp.task
def add(x: mp.Read, y: mp.ReadWrite) -> None:
    y += x

P = mp.blocks((2,))
x, y = mp.region((4,), name="x"), mp.region((4,), name="y")
x.fill(3.0)
y.fill(1.0)
mp.index_launch(bad, 2, x[P])
mp.index_launch(add, 2, x[P], y[P])
if sys.argv[1] == "unseen":     # nobody waits for x, and other regions are made
    time.sleep(0.2)
    z = mp.region((4,), name="z")
    z.fill(0.0)
    print(z.read().tolist())
    sys.exit(0)
for read in (y.read, y.read):
    try:
        print(read().tolist())
    except mp.RunError as error:
        print(type(error).__name__, "broken" in str(error))
print(mp.launch(add, x[P][0], y[P][0]).get())
x.fill(1.0)
y.fill(0.0)
mp.index_launch(add, 2, x[P].shift(1, periodic=True), y[P])
print(y.read().tolist(), flush=True)
"""


@pytest.mark.parametrize("command", [ALONE, LAUNCHED])
def test_a_failure_is_not_lost_when_other_regions_are_made(command: list[str], program: Path) -> None:
    program.write_text(GOES_ON)
    ended = run(command, program, "unseen")
    assert ended.returncode == 1
    assert "bad[1]@p" in ended.stderr
    assert "belongs to another program" not in ended.stderr


@pytest.mark.parametrize("command", [ALONE, LAUNCHED])
def test_a_program_that_catches_a_failure_goes_on(command: list[str], program: Path) -> None:
    program.write_text(GOES_ON)
    ended = run(command, program, "caught")
    assert ended.returncode == 0, ended.stderr
    said = ["TaskFailed True", "PoisonedRegion True", "None", "[1.0, 1.0, 1.0, 1.0]"]
    assert ended.stdout.splitlines() == said


@pytest.mark.parametrize("heard", [True, False])
def test_a_prompt_says_it_at_the_next_call_or_at_the_end(heard: bool, program: Path) -> None:
    """At a prompt, where an earlier mistake was printed and the program went on.

    The task fails in its own time: calls are made until one says so, and then one more, which says nothing.
    """
    program.write_text(GOES_ON.partition("if sys")[0])
    calls = ["while True: mp.region((4,))", "", "mp.region((4,))"]
    more = ["1 / 0", "print('still here')", *(calls if heard else [])]
    command = [sys.executable, "-i", "-q", str(program), "prompt"]
    ended = subprocess.run(
        command, input="\n".join(more) + "\n", capture_output=True, text=True, check=False, timeout=60
    )
    assert "still here" in ended.stdout
    assert ended.stderr.count("TaskFailed: task __main__.bad[1]") == heard
    assert ended.stderr.count("error: task __main__.bad[1]") == (not heard)
    assert ended.returncode == (0 if heard else 1)
