"""The face: few public names, each of which loads, and nothing heavy before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import maniple as mp

HEAVY = ["torch", "numba", "zmq", "msgpack", "numpy", "networkx", "rich", "click"]


@pytest.mark.parametrize("name", mp.__all__)
def test_every_name_loads_and_is_documented(name: str) -> None:
    found = getattr(mp, name)
    assert found is getattr(mp, name)
    assert name in {"Read", "ReadWrite", "WriteDiscard", "Color"} or name.startswith("Reduce") or found.__doc__


def test_there_are_few_names() -> None:
    assert len(mp.__all__) < 61
    assert len(set(mp.__all__)) == len(mp.__all__)
    assert set(dir(mp)) == {*mp.__all__, "__version__"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'maniple' has no attribute 'Trainr'"):
        _ = mp.Trainr  # type: ignore[attr-defined]


def loaded(program: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after a program."""
    shown = f"{program}; import sys; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, timeout=120)
    return set(ran.stdout.split())


def test_importing_loads_nothing_heavy() -> None:
    assert loaded("import maniple; dir(maniple); maniple.__version__; maniple.__all__") == set()


def test_planning_needs_no_torch() -> None:
    planned = (
        "import maniple as mp; g = mp.Graph('g'); x = g.input('x', (8, 2)); y = g.input('y', (8,), dtype='int64'); "
        "g.loss(g.cross_entropy(g.linear(x, 3), y)); mp.search(g, mp.Machine.cpu(2)).to_json()"
    )
    assert loaded(planned) & {"torch", "numba", "zmq"} == set()


def test_the_launcher_needs_no_torch() -> None:
    """It would keep a run waiting for as long as a rank takes to begin, and its memory besides."""
    runs = "maniple.runtime.cluster.run, maniple.runtime.cluster.local, maniple.runtime.cluster.supervisor"
    rooms = f"{runs}, maniple.runtime.execution.mailbox"
    started = f"import maniple.cli, {rooms}"
    assert loaded(started) & {"torch", "numba"} == set()


def test_a_type_checker_sees_the_names_that_are_loaded() -> None:
    text = Path(mp.__file__ or "").read_text(encoding="utf-8")
    declared = {line.rpartition(" as ")[2].strip() for line in text.splitlines() if line.startswith("    from maniple")}
    assert declared == set(mp.__all__)


def test_no_public_name_is_that_of_another_module() -> None:
    # Whoever imports a module makes it an attribute of the package, in place of what has the same name there.
    folder = Path(mp.__file__ or "").parent
    names = [name for name in mp.__all__ if not isinstance(getattr(mp, name), ModuleType)]
    assert [name for name in names if (folder / name).exists() or (folder / f"{name}.py").exists()] == []


@pytest.mark.parametrize("name", mp.plugins.__all__)
def test_every_name_of_plugins_loads_and_is_documented(name: str) -> None:
    found = getattr(mp.plugins, name)
    assert found is getattr(mp.plugins, name)
    assert found.__doc__
    if name.isupper():
        return  # a constant: what it stands for is documented
    assert found.__name__.removeprefix("Abstract") == name


def test_plugins_repeats_no_name_of_the_face_and_loads_nothing_heavy() -> None:
    assert set(mp.plugins.__all__) & set(mp.__all__) == set()
    assert set(dir(mp.plugins)) == set(mp.plugins.__all__)
    assert loaded("import maniple as mp; mp.plugins.Strategy; mp.plugins.LaunchView") & {"torch", "numba"} == set()
    with pytest.raises(AttributeError, match=r"module 'maniple\.plugins' has no attribute 'Stratagem'"):
        _ = mp.plugins.Stratagem  # type: ignore[attr-defined]


def test_a_type_checker_sees_the_names_of_plugins() -> None:
    text = Path(mp.plugins.__file__ or "").read_text(encoding="utf-8")
    declared = {line.rpartition(" as ")[2].strip() for line in text.splitlines() if line.startswith("    from maniple")}
    given = {line.split(" = ")[0].strip() for line in text.splitlines() if " = Abstract" in line}
    assert {name for name in declared if not name.startswith("from ")} | given == set(mp.plugins.__all__)


@pytest.mark.parametrize("name", mp.testing.__all__)
def test_every_name_of_testing_loads_and_is_documented(name: str) -> None:
    found = getattr(mp.testing, name)
    assert found is getattr(mp.testing, name)
    assert found.__doc__
    assert found.__name__ == name
    assert f"``{name}``" in (mp.testing.__doc__ or "")


def test_testing_repeats_no_name_of_the_face() -> None:
    assert set(mp.testing.__all__) & set(mp.__all__) == set()
    assert set(dir(mp.testing)) == set(mp.testing.__all__)
    assert loaded("import maniple as mp; mp.testing.local_worlds(2)") & {"torch", "numba"} == set()
    with pytest.raises(AttributeError, match=r"module 'maniple\.testing' has no attribute 'Stopper'"):
        _ = mp.testing.Stopper  # type: ignore[attr-defined]


def test_a_type_checker_sees_the_names_of_testing() -> None:
    text = Path(mp.testing.__file__ or "").read_text(encoding="utf-8")
    declared = {line.rpartition(" as ")[2].strip() for line in text.splitlines() if line.startswith("    from maniple")}
    assert declared == set(mp.testing.__all__)
