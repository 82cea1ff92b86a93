"""Every module has tests that can be found: a file of its name, a test that names it, or a row in `tests/README.md`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
LAYERS = ("mappers", "operators", "process", "regions", "runtime", "strategies")
FACE = ROOT / "src" / "maniple"


def modules() -> dict[str, Path]:
    """Every module by the name that `tests/README.md` has for it; packages are named by what they hold."""
    found = {}
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = path
    for path in (*FACE.glob("*.py"), *FACE.glob("zoo/*.py")):
        found[".".join(path.relative_to(FACE.parent).with_suffix("").parts)] = path
    return {name: path for name, path in sorted(found.items()) if path.name != "__init__.py"}


def imports(source: str) -> set[str]:
    """The dotted names that a source imports; ``from a import b`` gives ``a`` and ``a.b``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def imported() -> frozenset[str]:
    """What the tests import, in programs that they write and start, too."""
    sources = [path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")]
    written = {name for source in sources for name in re.findall(r"\bmaniple(?:\.\w+)+", source)}
    return frozenset(written.union(*map(imports, sources)))


def rows() -> list[tuple[list[str], str]]:
    """The table of `tests/README.md`: modules, and the file of tests that holds them."""
    text = (TESTS / "README.md").read_text(encoding="utf-8").partition("## Modules that are tested through others")[2]
    cells = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", names), test.strip().strip("`")) for names, test in cells]


def mirror(name: str, path: Path) -> Path:
    """The file of a module's name in the folder of its name."""
    if name.startswith("maniple."):
        inner = path.relative_to(FACE).parent
        return TESTS / inner / f"test_{path.stem}.py"
    return TESTS / path.relative_to(ROOT).parent / f"test_{path.stem}.py"


def is_named(name: str, path: Path) -> bool:
    """Whether a module has a file of tests, or is imported by one."""
    full = name if name.startswith("maniple.") else f"maniple.{name}"
    return full in imported() or mirror(name, path).is_file()


def test_there_is_something_to_find() -> None:
    found = modules()
    assert {name.split(".", maxsplit=1)[0] for name in found} == {*LAYERS, "maniple"}
    assert is_named("regions.validity", found["regions.validity"])
    assert len(rows()) > 10


def test_each_module_has_tests_that_can_be_found() -> None:
    held = {name for names, _ in rows() for name in names}
    lost = [name for name, path in modules().items() if not is_named(name, path) and name not in held]
    assert lost == [], "write a test of its name, or a row in tests/README.md that says which test holds it"


def test_the_table_names_modules_that_are_there_each_once() -> None:
    named = [name for names, _ in rows() for name in names]
    assert sorted(set(named) - set(modules())) == []
    assert sorted(named) == sorted(set(named))


@pytest.mark.parametrize("test", sorted({test for _, test in rows()}))
def test_the_table_names_tests_that_are_there(test: str) -> None:
    assert re.search(r"^(async )?def test_|^    def test_", (ROOT / test).read_text(encoding="utf-8"), re.MULTILINE)


def test_an_import_is_seen() -> None:
    assert imports("import a.b\nfrom c.d import e\ndef f():\n    from g import h\n") == {
        "a.b",
        "c.d",
        "c.d.e",
        "g",
        "g.h",
    }


def retired() -> list[str]:
    """The words of earlier versions that `docs/glossary.md` lists."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").partition("| not | but |")[2]
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def spoken(word: str, text: str) -> list[str]:
    """Where a word stands by itself or between underscores; ``the head of`` a list is another thing."""
    return re.findall(rf"(?<![a-z]){word}(?![a-z]| of )", text, re.IGNORECASE)


@pytest.mark.parametrize("word", retired())
def test_a_word_that_went_is_not_used_any_more(word: str) -> None:
    pages = [
        path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md" and "_build" not in path.parts
    ]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = [
        str(path.relative_to(ROOT))
        for path in (*modules().values(), *pages)
        if spoken(word, path.read_text(encoding="utf-8"))
    ]
    assert found == [], f"docs/glossary.md has the word that is used instead of {word!r}"


def test_a_word_is_seen() -> None:
    assert len(retired()) > 4
    assert spoken("crew", "a crew; _crew_member; Crew") == ["crew", "crew", "Crew"]
    assert spoken("the head", "the head of a list, the headway, and the head.") == ["the head"]
