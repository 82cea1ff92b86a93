"""The pages of the documentation: code blocks run as they stand, links lead somewhere, and the first page names all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from maniple.cli import cli

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
KINDS = ("tutorial", "how-to", "explanation", "reference")
# Named from outside by these paths, so they stay above the four kinds.
ABOVE = {"index.md", "design.md", "performance.md", "glossary.md", "extending.md"}
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
WITH_CODE = [page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")]
# What changed when is told with the paths of its time.
TELLS_OF_THE_PAST = "CHANGELOG.md"


def named(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def test_pages_with_code_are_found() -> None:
    assert {
        "tutorial/fifteen-minutes.md",
        "how-to/mapper.md",
        "reference/regions.md",
        "reference/tasks.md",
        "explanation/validity.md",
        "explanation/traces.md",
    } <= {named(page) for page in WITH_CODE}


def test_the_code_blocks_of_pages_do_what_the_pages_say() -> None:
    """One page after the other in one process; what differs is shown with its page and line."""
    ended = subprocess.run(
        [sys.executable, "-m", "doctest", *map(str, WITH_CODE)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr


def test_every_page_is_of_one_kind() -> None:
    assert {page.parent.name for page in PAGES if page.parent != DOCS} == set(KINDS)
    assert {page.name for page in PAGES if page.parent == DOCS} <= ABOVE


def test_the_first_page_has_a_sentence_and_a_place_for_each_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    sentences = re.findall(r"^- \[\]\(([^)]*)\)[: ].*\.$", index, re.MULTILINE)
    trees = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    placed = [f"{line}.md" for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    wanted = sorted(named(page) for page in PAGES if page.name != "index.md")
    assert len(trees) == len(KINDS)
    assert sorted(sentences) == wanted
    assert sorted(placed) == wanted


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    lost = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert lost == []


def options(command: click.Command) -> set[str]:
    """What a command takes, as it is written: both names of what has two."""
    taken = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    return {name for option in taken for name in (*option.opts, *option.secondary_opts)}


def test_the_page_of_commands_has_every_option_and_no_other() -> None:
    text = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    sections = {part.splitlines()[0]: part for part in text.split("\n## maniple ")[1:]}
    rows = {name: re.findall(r"^\| (`-[^|]*)\|", part, re.MULTILINE) for name, part in sections.items()}
    told = {name: set(re.findall(r"`(--?[a-z][a-z-]*)", " ".join(cells))) for name, cells in rows.items()}
    assert told == {name: options(command) for name, command in cli.commands.items()}


SHOWN = re.compile(rf"(?<![\w./-])maniple ({'|'.join(cli.commands)})\b([^`|;()#\n]*)")


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "SECURITY.md", *PAGES], ids=lambda page: page.name)
def test_commands_that_pages_show_have_their_options(page: Path) -> None:
    lost = [
        f"maniple {name} {option}"
        for name, rest in SHOWN.findall(page.read_text(encoding="utf-8"))
        # What follows a script is the script's.
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest.split(".py")[0] if name == "run" else rest)
        if option not in {"--help", *options(cli.commands[name])}
    ]
    assert lost == []


def test_pages_that_messages_and_comments_name_are_there() -> None:
    layers = ("mappers", "operators", "process", "regions", "runtime", "strategies")
    folders = ("benchmarks", "docs", "examples", "src", "tests", *layers)
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".md", ".py"}]
    files += [path for path in ROOT.glob("*.md") if path.name != TELLS_OF_THE_PAST]
    assert len(files) > len(PAGES)
    lost = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in files
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
        if not (ROOT / page).exists()
    }
    assert lost == set()


def test_the_plug_ins_of_the_page_on_them_are_accepted(tmp_path: Path) -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    use = "machine = mp.Machine.cpu(2)\nmp.search(mp.model('digits_cnn'), machine, strategy='by_halves')\n"
    program = tmp_path / "page.py"
    program.write_text("\n".join([*blocks, use]), encoding="utf-8")
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    checked = [sys.executable, "-m", "maniple.cli", "check-rule", f"{program}:cube", "--samples", "2"]
    ended = subprocess.run(checked, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
