"""Ranks that are forked from one process: each is what an interpreter of its own would have been, and none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from maniple.process.error import RunError
from maniple.runtime.cluster.children.nursery import Nursery, suits
from maniple.runtime.cluster.launcher import LaunchRequest, RankCommand, RankProcess, Streams
from maniple.runtime.cluster.local import LocalLauncher

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")

TIMEOUT_S = 30.0
# What a program sees of its process; what the two ways must have alike.
STATE = """
import json, os, resource, signal, sys, threading

def of(stream):
    return [stream.name, stream.mode, stream.encoding, stream.errors, stream.isatty(), stream.seekable(),
            stream.line_buffering, stream.write_through, stream.newlines, type(stream.buffer).__name__, stream.fileno()]

print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "folder": os.getcwd(),
    "main": sorted(globals()), "named": [__name__, __file__, getattr(__spec__, "name", None), __package__],
    "loader": type(__loader__).__name__,
    "module": sys.modules["__main__"].__dict__ is globals(),
    "shown": [word for word in open("/proc/self/cmdline").read().split(chr(0)) if word],
    "environ": {name: value for name, value in os.environ.items()},
    "streams": [of(sys.stdin), of(sys.stdout), of(sys.stderr), sys.stdout is sys.__stdout__],
    "leads": os.getsid(0) == os.getpgid(0) == os.getpid(), "parent": os.getppid(),
    "files": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
    "signals": {number: repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
    "masked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "threads": threading.active_count(), "main thread": threading.current_thread() is threading.main_thread(),
}))
"""


@contextmanager
def ranks(
    folder: Path, *programs: tuple[str, ...], imports: str | None = "colorsys", inherited: tuple[int, ...] = ()
) -> Iterator[list[RankProcess]]:
    """Ranks of one launch, whose output goes to files; all are ended, and none is a zombie."""
    before = children()  # of other tests of this process
    launcher, started, request = LocalLauncher(), list[RankProcess](), LaunchRequest(programs[0], imports=imports)
    with launcher.preparing(request, max(2, len(programs))):
        for rank, program in enumerate(programs):
            with (folder / f"out-{rank}").open("wb") as file:
                variables = {"RANK": str(rank), "PYTHONUNBUFFERED": "1"}
                command = RankCommand(rank, 0, (sys.executable, *program), variables, frozenset(), inherited)
                started.append(launcher.start(command, Streams(subprocess.DEVNULL, file.fileno(), file.fileno())))
    try:
        yield started
    finally:
        for process in started:
            process.kill()
        waited = [process.wait(TIMEOUT_S) for process in started]
        assert all(waited)
    assert children() <= before


def children() -> set[int]:
    """The numbers of this process's children, zombies among them."""
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = status.read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            found |= {int(status.parent.name)} if int(parent) == os.getpid() else set()
    return found


def has_ended(pid: int) -> bool:
    """Whether a process is no more, or waits for its parent to look: for this one, where another nursery is open."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


def ended(process: RankProcess) -> int:
    return until(process.poll)


def until(look: Callable[[], int | None]) -> int:
    end = time.monotonic() + TIMEOUT_S
    while (found := look()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "programs" / "program.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("way", ["file", "relative file", "module"])
def test_a_rank_is_as_if_its_interpreter_had_been_started_for_it(
    way: str, program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(program(STATE))
    monkeypatch.chdir(path.parent)
    target = {"file": (str(path),), "relative file": ("./program.py",), "module": ("-m", "program")}[way]
    told, pipe = [], os.pipe()
    os.set_inheritable(pipe[1], True)
    for imports in ("colorsys", None):
        with ranks(tmp_path, (*target, "a b", ""), (*target, "c"), imports=imports, inherited=pipe) as processes:
            assert [ended(process) for process in processes] == [0, 0]
        told.append([json.loads((tmp_path / f"out-{rank}").read_text()) for rank in range(2)])
    for end in pipe:
        os.close(end)
    for found, alike in zip(*told, strict=True):
        for name, value in found.items():
            assert value == alike[name], name
        assert found["leads"]
        assert found["parent"] == os.getpid()
        assert found["files"] == sorted({0, 1, 2, *pipe})


ENDS = {
    "": 0,
    "import sys; sys.exit(3)": 3,
    "import sys; sys.exit('said')": 1,
    "raise ValueError('broken')": 1,
    "broken = = 3": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "import atexit; atexit.register(print, 'last'); print('first')": 0,
    "import sys; sys.excepthook = lambda kind, *_: print('hooked', kind); 1 / 0": 1,
    "def deep(n):\n    1 / n\n    deep(n - 1)\ntry:\n    deep(2)\nexcept Exception as e:\n    raise OSError from e": 1,
    "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()": 0,
}


def test_it_ends_as_it_would_have(program: Callable[[str], str], tmp_path: Path) -> None:
    """Its exit status, and what it says last, to the letter: of a traceback, too."""
    paths = []
    for number, text in enumerate(ENDS):
        paths.append(Path(program(text)).with_name(f"program_{number}.py"))
        Path(program(text)).rename(paths[-1])
    told = []
    for imports in ("colorsys", None):
        with ranks(tmp_path, *((str(path),) for path in paths), imports=imports) as processes:
            assert [ended(process) for process in processes] == list(ENDS.values())
        told.append([(tmp_path / f"out-{rank}").read_text() for rank in range(len(paths))])
    assert told[0] == told[1]
    assert "Traceback" in told[0][3]


def test_what_is_imported_is_imported_once(program: Callable[[str], str], tmp_path: Path) -> None:
    shared = Path(program("")).with_name("shared.py")
    shared.write_text("import os, numpy, torch\npid = os.getpid()\nprint('imported')\n", encoding="utf-8")
    own = (
        "import random, sys\nassert 'shared' in sys.modules\nimport shared, numpy, torch\n"
        "print(shared.pid, random.random(), numpy.random.random(), torch.rand(()).item())\n"
    )
    with ranks(tmp_path, *[(program(own),)] * 3, imports="shared") as processes:
        assert [ended(process) for process in processes] == [0, 0, 0]
    first, *others = [(tmp_path / f"out-{rank}").read_text().splitlines() for rank in range(3)]
    assert first[0] == "imported"  # what imports print is shown once, with rank 0's output
    lines = [first[1], *(line for (line,) in others)]
    assert len({line.split()[0] for line in lines}) == 1
    for drawn in zip(*(line.split()[1:] for line in lines), strict=True):  # and random numbers are each rank's own
        assert len(set(drawn)) == 3


SPOILT = {
    "cannot be imported (OSError: no torch here)": "raise OSError('no torch here')\n",
    "starts threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
}


@pytest.mark.parametrize("fault", sorted(SPOILT))
def test_where_imports_do_not_let_it_be_forked_a_rank_begins_anew(
    fault: str, program: Callable[[str], str], tmp_path: Path
) -> None:
    own = "import sys, threading\nprint('spoilt' in sys.modules, threading.active_count(), sys.argv[1:])\n"
    Path(program(own)).with_name("spoilt.py").write_text(SPOILT[fault], encoding="utf-8")
    with ranks(tmp_path, (program(own), "a"), (program(own), "b"), imports="spoilt") as processes:
        assert [ended(process) for process in processes] == [0, 0]
    first, second = [(tmp_path / f"out-{rank}").read_text().splitlines() for rank in range(2)]
    assert first[0].startswith(f"maniple: spoilt {fault}, so each rank imports for itself")
    assert (first[1], second) == ("False 1 ['a']", ["False 1 ['b']"])


def test_a_host_that_forks_no_more_is_told_in_the_ranks_log(program: Callable[[str], str], tmp_path: Path) -> None:
    full = "import os\ndef fork():\n    raise BlockingIOError(11, 'Resource temporarily unavailable')\nos.fork = fork\n"
    Path(program("")).with_name("full.py").write_text(full, encoding="utf-8")
    with ranks(tmp_path, (program(""),), (program(""),), imports="full") as processes:
        assert [ended(process) for process in processes] == [1, 1]
    said = "maniple: this rank cannot be started: Resource temporarily unavailable\n"
    assert [(tmp_path / f"out-{rank}").read_text() for rank in range(2)] == [said, said]


SLOW = "import os, time\nopen('{}', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def nursery_of(path: Path) -> int:
    return until(lambda: int(path.read_text() or 0) or None if path.exists() else None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_nursery_that_ends_too_soon_is_the_end_of_its_ranks(
    number: int, program: Callable[[str], str], tmp_path: Path
) -> None:
    Path(program("")).with_name("slow.py").write_text(SLOW.format(tmp_path / "pid"), encoding="utf-8")
    with ranks(tmp_path, (program("print('ran')"),), (program("print('ran')"),), imports="slow") as processes:
        assert [process.poll() for process in processes] == [None, None]
        os.kill(nursery_of(tmp_path / "pid"), number)
        assert [ended(process) for process in processes] == [-number, -number]
    assert [(tmp_path / f"out-{rank}").read_text() for rank in range(2)] == ["", ""]


def test_ranks_that_are_ended_before_they_are_there_never_run(program: Callable[[str], str], tmp_path: Path) -> None:
    Path(program("")).with_name("slow.py").write_text(SLOW.format(tmp_path / "pid"), encoding="utf-8")
    with ranks(tmp_path, (program("print('ran')"),), (program("print('ran')"),), imports="slow") as processes:
        pid = nursery_of(tmp_path / "pid")
        assert processes[0].pass_on(signal.SIGSTOP, group=True)  # what suspends a rank suspends the nursery
        until(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text() or None)
        assert not processes[0].pass_on(signal.SIGRTMIN, group=False)  # it has no stacks to write
        processes[1].terminate()
        assert [ended(process) for process in processes] == [-signal.SIGKILL] * 2
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("moment_s", [0.0, 0.02, 0.05, 0.1, 0.15])
def test_whenever_a_nursery_is_killed_no_rank_runs_that_nobody_knows(
    moment_s: float, program: Callable[[str], str], tmp_path: Path
) -> None:
    own = program("import time\ntime.sleep(60)\n")
    with ranks(tmp_path, *[(own,)] * 8) as processes:
        time.sleep(moment_s)  # any moment must do: no event is waited for
        for process in processes:
            process.kill()
        assert {ended(process) for process in processes} == {-signal.SIGKILL}
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_ranks_end_with_who_asked_for_them(program: Callable[[str], str], tmp_path: Path) -> None:
    own = program(
        f"import os, time\nopen('{tmp_path}/' + os.environ['RANK'], 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    asks = (
        "import subprocess, sys\n"
        "from maniple.runtime.cluster.launcher import LaunchRequest, RankCommand, Streams\n"
        "from maniple.runtime.cluster.local import LocalLauncher\n"
        "launcher = LocalLauncher()\n"
        f"with launcher.preparing(LaunchRequest(({own!r},), imports='colorsys'), 2):\n"
        "    all = [launcher.start(RankCommand(rank, 0, (sys.executable, *sys.argv[1:]), {'RANK': str(rank)}),\n"
        "           Streams(subprocess.DEVNULL, 1, 2)) for rank in range(2)]\n"
        "while True:\n"
        "    [rank.poll() for rank in all]\n"
    )
    with subprocess.Popen([sys.executable, "-c", asks, own]) as asker:
        pids = [nursery_of(tmp_path / str(rank)) for rank in range(2)]
        asker.kill()
    for pid in pids:
        until(lambda pid=pid: has_ended(pid) or None)


def test_which_ranks_are_forked(program: Callable[[str], str], tmp_path: Path) -> None:
    path = program("")
    archive = tmp_path / "program.pyz"
    archive.write_bytes(b"PK")
    request = LaunchRequest((path,), imports="colorsys")
    assert suits(request, 2)
    assert suits(replace(request, device="null"), 2)
    assert suits(replace(request, target=("-m", "colorsys")), 2)
    for other in (
        replace(request, imports=None),
        replace(request, device="cuda"),
        replace(request, target=(str(archive),)),
    ):
        assert not suits(other, 2)
    assert not suits(request, 1)


def test_a_nursery_that_cannot_be_started_leaves_no_file_open(
    program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = open_files()
    with pytest.raises(RunError, match="/no/such/python cannot be started"):
        Nursery(RankCommand(0, 0, ("python", program("")), {}), Streams(subprocess.DEVNULL, 1, 2), "colorsys")
    assert open_files() == before
