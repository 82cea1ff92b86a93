"""What torch's host allocator is heard to give and take, against tensors of known sizes."""

from __future__ import annotations

import cProfile
import importlib.util
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.process import host_allocation, torch_internals
from maniple.process.host_allocation import watch_host_run
from maniple.process.taken_memory import Taken


def had(sizes: list[int]) -> tuple[int, ...]:
    """What is held after each of some steps: a number makes a tensor of so many bytes, 0 lets go of the newest."""
    held: list[int] = []
    sums = [0]
    for size in sizes:
        if size:
            held.append(size)
        elif held:
            held.pop()
        sums.append(sum(held))
    return tuple(sums)


def make(sizes: list[int], kept: list[torch.Tensor]) -> None:
    for size in sizes:
        if size:
            kept.append(torch.empty(size, dtype=torch.int8))
        elif kept:
            kept.pop()


@given(st.lists(st.integers(0, 5000), max_size=12))
def test_what_is_kept_and_the_most_at_once_are_those_of_the_tensors(sizes: list[int]) -> None:
    kept: list[torch.Tensor] = []
    sums = had(sizes)
    assert watch_host_run(lambda: make(sizes, kept)) == Taken(sums[-1], max(sums))


def test_the_table_of_the_docstring() -> None:
    kept: list[torch.Tensor] = []

    def work() -> None:
        make([6, 0, 4, 1, 0], kept)

    assert watch_host_run(work) == Taken(4, 6)


def test_what_was_there_before_and_is_let_go_of_is_nothing_that_is_kept() -> None:
    def found() -> Taken:
        before = [torch.empty(64, dtype=torch.int8)]

        def work() -> None:
            before.clear()
            before.append(torch.empty(16, dtype=torch.int8))

        return watch_host_run(work)

    # torch tells of the 64 bytes that go only if it heard of them when they came. What tests before this one left to
    # others' threads may go meanwhile, and is heard, too: once.
    assert {found() for _ in range(3)} & {Taken(0, 0), Taken(16, 16)}


def test_what_an_operation_takes_inside_counts() -> None:
    x, w = torch.ones(64, 64), torch.ones(1, 1, 3, 3)
    assert watch_host_run(lambda: x.neg().neg().neg()) == Taken(0, 2 * x.nbytes)
    assert watch_host_run(x.neg_) == Taken(0, 0)
    images = x[None, None].double()  # of this type torch lays the windows out, and takes their product
    assert watch_host_run(lambda: torch.conv2d(images, w.double())).peak >= 9 * 62 * 62 * 8


def test_each_thread_hears_its_own() -> None:
    barrier = threading.Barrier(3)
    found: dict[int, Taken] = {}

    def main(size: int) -> None:
        kept: list[torch.Tensor] = []

        def work() -> None:
            for _ in range(20):
                barrier.wait(30)
                make([size, 0, size], kept)

        found[size] = watch_host_run(work)

    threads = [threading.Thread(target=main, args=(size,)) for size in (100, 1000, 10000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {size: Taken(20 * size, 20 * size) for size in (100, 1000, 10000)}


def test_a_failure_is_raised_and_the_next_is_measured() -> None:
    with pytest.raises(ZeroDivisionError):
        watch_host_run(lambda: 1 / 0)
    kept: list[torch.Tensor] = []
    assert watch_host_run(lambda: make([7], kept)) == Taken(7, 7)


PROFILED = """
import torch
from maniple.process.host_allocation import watch_host_run
from maniple.process.taken_memory import Taken
from torch.autograd import profiler, profiler_legacy

def work(kind):
    with kind() as found:
        torch.ones(100).neg()
    assert "neg" in str(found.key_averages())

for kind in (torch.profiler.profile, profiler.profile, profiler_legacy.profile):
    assert watch_host_run(lambda: work(kind)) is None
    with kind():
        assert watch_host_run(lambda: torch.ones(100)) is None
    assert watch_host_run(lambda: torch.ones(100)) == Taken(0, 400)
"""


def test_work_that_profiles_itself_runs_and_is_not_measured() -> None:
    """In a process of its own: what torch's profiler leaves behind would be every later test's."""
    ran = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr


def test_calls_that_somebody_profiles_stay_profiled() -> None:
    ran: list[int] = []
    calls = cProfile.Profile()
    with calls:
        found = watch_host_run(lambda: ran.append(1))
        inside = sys.getprofile()
    assert (found, ran) == (None, [1])
    assert inside is not None
    with_calls = watch_host_run(lambda: cProfile.Profile().runcall(make, [7], []))
    assert with_calls == Taken(0, 7)
    assert sys.getprofile() is None


def test_a_torch_without_the_profiler_runs_the_work_and_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler_legacy", None)
    spec = importlib.util.spec_from_file_location("deaf", torch_internals.__file__)
    assert spec is not None
    assert spec.loader is not None
    deaf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(deaf)
    monkeypatch.setattr(host_allocation, "torch_internals", deaf)
    kept: list[torch.Tensor] = []
    assert watch_host_run(lambda: make([7], kept)) is None
    assert len(kept) == 1
