"""The page of GPUs: what `gpu_checks.py` found on one, as tables.

python benchmarks/gpu_table.py benchmarks/gpu_results/FILE.jsonl            prints them
python benchmarks/gpu_table.py --write benchmarks/gpu_results/FILE.jsonl    puts them into docs/performance.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/gpu_table.py: begin -->", "<!-- benchmarks/gpu_table.py: end -->"
Line = dict[str, Any]
MIB = 1 << 20


def told(path: Path) -> dict[str, list[Line]]:
    """The lines of a file, by check."""
    found: dict[str, list[Line]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        found.setdefault(line["check"], []).append(line)
    return found


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown; the first column is text."""
    marks = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, marks, *rows])


def ms(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{1e3 * seconds:.3g}"


def failed(line: Line) -> str:
    """What a table says of a case that failed."""
    return f"failed: {line['error'][:80]}"


def steps(lines: list[Line]) -> str:
    """The races."""
    heads = ["net, batch, precision", "torch eager, ms", "its graph, ms", "ours, ms", "eager / ours", "graph / ours"]
    heads += ["a run: eager / ours", "graph / ours", "losses apart"]
    rows = []
    for line in lines:
        if "net" not in line:
            continue
        name = f"{line['net']}, {line['batch']}, {line['precision']}"
        if "error" in line:
            rows.append([name, failed(line), *[""] * (len(heads) - 2)])
            continue
        times = [ms(line[key]) for key in ("torch_s", "torch_graph_s", "ours_s")]
        keys = [f"{kind}over_{by}" for kind in ("", "run_") for by in ("torch", "torch_graph")]
        ratios = [f"{line[key]:.2f}" if key in line else "" for key in keys]
        rows.append([name, *times, *ratios, f"{line['losses_apart']:.0e}"])
    return table(heads, rows)


def chain(lines: list[Line]) -> str:
    """Empty tasks."""
    rows = []
    for line in lines:
        how = line.get("by") or f"ours, {'captured' if line['captured'] else 'as they come'}, " + (
            "launched anew" if line["launched"] else "replayed whole"
        )
        rows.append([how, failed(line) if "error" in line else f"{line['task_us']:.2f}"])
    return table([f"{lines[0]['tasks']:,} empty tasks in a chain", "us a task"], rows)


def kernels(lines: list[Line]) -> str:
    """Kernels beside copies, at the largest size."""
    rows: dict[int, list[list[str]]] = {}
    for line in lines:
        for name, each in line.get("kernels", {line.get("kernel", ""): line}).items():
            told = [name, f"{each['GB_per_s']:.0f}", f"{each['over_copy']:.2f}", f"{each['error']:.0e}"]
            rows.setdefault(line["elements"], []).append(told)
    size = max(rows)
    return table([f"kernel, {size >> 20} Mi elements", "GB/s", "of a copy's", "error"], rows[size])


def memory(lines: list[Line]) -> str:
    """Peaks beside torch's."""
    rows = []
    for line in lines:
        name = f"{line['net']}, {line['batch']}"
        if "error" in line:
            rows.append([name, failed(line), *[""] * 4])
            continue
        sizes = [f"{line[key] / MIB:.0f}" for key in ("predicted", "devices", "torch", "reserved", "torch_reserved")]
        rows.append([name, *sizes, f"{line['over_torch']:.2f}", f"{line['devices_over_predicted']:.2f}"])
    heads = ["net, batch", "predicted, MiB", "taken", "torch's", "reserved", "torch's", "taken / torch's"]
    return table([*heads, "taken / predicted"], rows)


def prediction(lines: list[Line]) -> str:
    """Steps as predicted."""
    rows = []
    for line in lines:
        name = ", ".join(str(line[key]) for key in ("net", "batch", "strategy", "ranks", "precision") if key in line)
        if "error" in line:
            rows.append([name, failed(line), "", ""])
        elif "ratio" in line:
            rows.append([name, ms(line["predicted_s"]), ms(line["measured_s"]), f"{line['ratio']:.2f}"])
    return table(["net and plan", "predicted, ms", "measured", "ratio"], rows)


SECTIONS: dict[str, tuple[str, Callable[[list[Line]], str]]] = {
    "steps": ("Steps beside torch's, in turns; medians", steps),
    "chain": ("What a task costs", chain),
    "kernels": ("Kernels", kernels),
    "memory": ("The most that a step takes", memory),
    "prediction": ("A step as predicted", prediction),
}


def page(found: dict[str, list[Line]]) -> Iterator[str]:
    """The tables with what is over them."""
    (about,) = found["doctor"]
    driver = (about.get("driver") or "").partition("x86_64")[2].split()
    yield (
        f"{about['gpu']}, driver {driver[0] if driver else 'unknown'}, CUDA {about['cuda']}, torch {about['torch']}, "
        f"Python {about['python']}, {about['date']}; TF32 off but where said."
    )
    every = [line for lines in found.values() for line in lines]
    wrong = sum(line.get("right") is False or isinstance(line.get("error"), str) for line in every)
    yield f"{len(every)} lines, of which {wrong} tell of something wrong."
    for check, (title, make) in SECTIONS.items():
        if any("skipped" not in line for line in found.get(check, [])):
            yield f"{title}:\n\n{make([line for line in found[check] if 'skipped' not in line])}"


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", action="store_true", help="put them into docs/performance.md")
    given = parser.parse_args()
    text = "\n\n".join(page(told(given.results)))
    if not given.write:
        print(text)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
