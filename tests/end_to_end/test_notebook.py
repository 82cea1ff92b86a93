"""The notebook: runs from its first cell to its last, again in the same kernel, and has the losses of the script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("sklearn")

pytestmark = [
    pytest.mark.timeout(200),
    # What Jupyter's own packages warn of is not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::ResourceWarning"),
]

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOK = ROOT / "examples" / "digits.ipynb"

# How far losses are compared. Later a change of one weight by a millionth, in plain torch, changes losses by per cents:
# training with this step size magnifies the rounding of float32.
EPOCHS = 2


def printed(cells: list[dict[str, object]]) -> str:
    """What the cells wrote to standard output."""
    outputs = [output for cell in cells for output in cell.get("outputs", ())]  # type: ignore[attr-defined]
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


def test_the_notebook_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.usefixtures("forked_files")  # the script; the kernel is a process of its own
def test_the_notebook_learns_as_the_script_does(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    once = len(notebook.cells)
    # Running all cells again, in the kernel as they left it, is what a user does next.
    notebook.cells += [cell.copy() for cell in notebook.cells]
    notebook.cells.append(nbformat.v4.new_code_cell("print('losses', *map(repr, losses))"))
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3", resources=resources).execute()
    first, second = printed(notebook.cells[:once]), printed(notebook.cells[once:-1])
    assert first == second
    accuracy = float(re.search(r"test accuracy (\d+\.\d) %", first)[1])  # type: ignore[index]
    assert accuracy > 80
    losses = [float(word) for word in printed(notebook.cells[-1:]).split()[1:]]
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", str(EPOCHS), "--losses", "losses.txt"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=100,
        check=True,
    )
    wanted = [float(line) for line in (tmp_path / "losses.txt").read_text().splitlines()]
    assert len(wanted) == EPOCHS * 23 < len(losses)
    assert [pair for pair in zip(losses, wanted, strict=False) if not abs(pair[0] - pair[1]) <= 1e-4 * pair[1]] == []
