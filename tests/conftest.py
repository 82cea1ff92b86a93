"""What every test folder shares: how hypothesis draws, where published measurements lie, and what every simulation is
held against.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch._dynamo  # noqa: F401  (where it is loaded imports are made here: each process apart would load it anew)
from hypothesis import HealthCheck, settings

from maniple.operators.graph.graph import Graph
from maniple.operators.training.descent import SGD
from maniple.runtime.machine.machine import Machine
from maniple.strategies.bound import lower_bound_s
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.simulation.simulation import Simulation

sys.path.insert(0, str(Path(__file__).resolve().parent / "oracles"))

# Hundreds of processes of tests import the package. Each would compile its 400 modules again, a tenth of what it takes
# to start, where the environment says that none may keep what it compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples on every run (law 8), and no deadline: how fast a test machine is proves nothing.
settings.register_profile(
    "maniple",
    max_examples=50,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# `make test-deep`: four times as many of them, and four times as many plans, worlds and seeds of the laws.
settings.register_profile("deep", settings.get_profile("maniple"), max_examples=200)
# `HYPOTHESIS_PROFILE=search pytest ...` looks for new counterexamples instead.
settings.register_profile("search", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "maniple"))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What must not run side by side on two workers is one worker's.

    Tests of ranks whose deadlines are seconds: no two of them share the cores. Tests of whole jobs without such
    deadlines: more of them at once have no cores, either. Tests that simulate: the first of a new checkout compiles the
    simulator, which takes a minute and must not happen twice.
    """
    for item in items:
        for group in ("ranks", "jobs", "simulator"):
            if item.get_closest_marker(group) is not None:
                item.add_marker(pytest.mark.xdist_group(group))
                break
        if item.get_closest_marker("simulator") is not None:
            item.add_marker(pytest.mark.timeout(900))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to run where pytest-xdist is asked to keep groups on one worker, and does not.

    It does so by the identifiers of tests, which not every pytest lets it change; nothing says so when it fails.
    """
    if getattr(session.config.option, "loadgroup", False):
        loose = [
            each.nodeid for each in session.items if each.get_closest_marker("xdist_group") and "@" not in each.nodeid
        ]
        if loose:
            raise pytest.UsageError(
                f"pytest {pytest.__version__} and pytest-xdist keep no groups: {loose[0]} would run on any worker; "
                "install the versions of constraints-dev.txt"
            )


def pytest_runtest_setup() -> None:
    """Keep the collector from what lives when a test begins: tests, packages and imported graphs, a million objects.

    Every trainer collects before it watches its memory, and would look at all of them each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of published measurements, named by MANIPLE_REFERENCE_DATA; without it the test is skipped."""
    named = os.environ.get("MANIPLE_REFERENCE_DATA")
    if named is None:
        pytest.skip("MANIPLE_REFERENCE_DATA names no folder of published measurements")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"MANIPLE_REFERENCE_DATA names {folder}, which is no folder")
    return folder


Asked = tuple[int, Machine, tuple[tuple[str, str], ...], SGD]

BOUNDS: WeakKeyDictionary[Graph, dict[Asked, float]] = WeakKeyDictionary()
"""The bounds of the graphs that tests have simulated, in nanoseconds."""


def bound_ns(simulation: Simulation) -> float:
    """The lower bound of what a simulation simulates, worked out once for a graph and a machine."""
    graph, optimizer = simulation.graph, simulation.optimizer
    asked = (len(graph.nodes), simulation.machine, simulation.plan.semantics, optimizer)
    known = BOUNDS.setdefault(graph, {})
    if asked not in known:
        known[asked] = lower_bound_s(graph, simulation.machine, optimizer, simulation.plan.semantics) * 1e9
    return known[asked]


@pytest.fixture(autouse=True, scope="session")
def no_plan_is_faster_than_the_bound() -> Iterator[None]:
    """Hold every whole plan that any test simulates against the lower bound: ``bound <= step``.

    Every simulation of a plan ends where its rows get their times; one that was given up at a limit has not ended.
    """
    made, proposed = Simulation.__init__, Simulation.propose
    bounds: WeakKeyDictionary[Simulation, float] = WeakKeyDictionary()

    def held(simulation: Simulation) -> None:
        if type(simulation.costs) is Analytic:
            least = bounds.get(simulation)
            if least is None:
                least = bounds[simulation] = bound_ns(simulation)
            assert simulation.makespan_ns >= least - 1e-3, (
                f"{simulation.graph.name} on {simulation.machine.name}: a plan of {simulation.makespan_ns} ns is "
                f"faster than the lower bound, {least} ns"
            )

    def make(simulation: Simulation, *given: object, **named: object) -> None:
        made(simulation, *given, **named)  # type: ignore[arg-type]
        held(simulation)

    def propose(simulation: Simulation, *given: object, **named: object) -> int:
        step_ns = proposed(simulation, *given, **named)  # type: ignore[arg-type]
        limit = named.get("limit_ns", given[2] if len(given) > 2 else None)
        if limit is None or step_ns <= limit:  # type: ignore[operator]
            held(simulation)
        return step_ns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "__init__", make)
        patch.setattr(Simulation, "propose", propose)
        yield


@pytest.fixture(scope="session")
def forking() -> Iterator[type[subprocess.Popen[Any]]]:
    """A `Popen` whose launches are forked from one process of the session, where processes can be."""
    from forking import forked

    if sys.platform != "linux":
        yield subprocess.Popen
        return
    with forked() as popen:
        yield popen


@pytest.fixture
def forked_launches(forking: type[subprocess.Popen[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """`maniple run`, started through `subprocess`, is forked: what it does is real, and it imports nothing."""
    monkeypatch.setattr(subprocess, "Popen", forking)


@pytest.fixture
def forked_files(forked_launches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are Python files that are started by themselves."""
    monkeypatch.setattr(subprocess.Popen, "forks_files", True, raising=False)


@pytest.fixture
def pythons_handler() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever other tests, or a shell in whose background they run, have left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
