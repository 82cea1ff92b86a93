"""The page on reports and fits: its commands print what it shows, and its tables are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from maniple import cli
from maniple.report import RankMemory, Report
from maniple.runtime.observe.decomposition import Terms
from maniple.strategies.simulation import kind
from maniple.strategies.simulation.kind import MemoryKind

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "how-to" / "report.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"```console\n\$ (maniple [^\n]*)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.simulator
def test_fit_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    command = next(command for command in SHOWN if command.startswith("maniple fit"))
    with pytest.raises(SystemExit):
        cli.main(shlex.split(command)[1:])
    assert capsys.readouterr().out == SHOWN[command]


def test_a_report_has_the_form_that_the_page_shows() -> None:
    """The page's own numbers, through the code that prints them."""
    shown = SHOWN["maniple run --nodes 2 --report train.py"]
    side = Terms(0.374e-3, 0.0, 0.337e-3, 0.0, 0.0), Terms(0.756e-3, 0.0, 0.587e-3, 3.317e-3, 3.722e-3)
    memory = tuple(RankMemory(size, None) for size in (603352, 603288))
    report = Report(
        "small", "data_parallel", "analytic", 40, 0, 0.711e-3, 7.281e-3, 0, 20, *side, 389048, 389048, memory, 0.347e-3
    )
    assert re.sub(r"924\.\d%", "924.1%", str(report)) == shown.rstrip()


def test_the_page_says_of_every_kind_what_its_module_says() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", PAGE, re.MULTILINE))
    assert kind.__doc__ is not None
    for name in MemoryKind:
        told = re.search(rf"^    {name} +(.*(?:\n {{17}}.*)*)", kind.__doc__, re.MULTILINE)
        assert told is not None
        first = " ".join(told[1].split()).split(":")[0].split(",")[0]
        assert rows[name].startswith(first)
