"""The tables of the antichain benchmark: what is missed is said to be missed."""

from __future__ import annotations

from antichain_tables import Row, figures, markdown, pipelines


def zoo(search_s: float) -> Row:
    return {"model": "vgg16", "devices": 4, "search_s": search_s, "allowed_s": 0.005}


def pipeline(levels: str, bandwidth: float | None, replicate: bool, bottleneck_s: float, gap: float = 0.0) -> Row:
    return {
        "profile": "vgg16",
        "levels": levels,
        "bandwidth": bandwidth,
        "replicate": replicate,
        "bottleneck_s": bottleneck_s,
        "exact": not gap,
        "gap": gap,
        "search_s": 0.0004,
    }


def test_a_figure_that_one_row_misses_is_missed() -> None:
    means: list[Row] = [{"devices": 4, "replicated": 3.36}, {"devices": 8, "replicated": 6.16}]
    found = {row["figure"]: row for row in figures({"zoo": [zoo(0.001), zoo(0.006)], "means over the zoo": means})}
    assert [row["reached"] for row in found.values()] == ["**no**", "yes", "**no**"]
    assert found["searches of the zoo in max(5 ms, published / 10)"]["measured"] == "1"


def test_published_bottlenecks_are_held_against_ours() -> None:
    rows = [
        pipeline("4", 1e9, False, 0.411042),
        pipeline("8", 1e9, False, 0.42),
        pipeline("8", 1e9, True, 0.1),
        pipeline("4x2", 1e10, True, 0.158, 0.27),
    ]
    tables = {"zoo": [zoo(0.001)], "means over the zoo": [], "pipelines": rows, "placements": []}
    found = {str(row["figure"]): row["reached"] for row in figures(tables)}
    assert found["straight pipelines equal to the exact ones to 1e-6 s"] == "**no**"
    assert found["replicated pipelines never above the published"] == "yes"
    assert found["two levels never above the published"] == "**no**"
    table = markdown(pipelines(rows))
    assert table.splitlines()[0].startswith("| profile | 4 comm | 8 comm | 4 repl. comm | 8 repl. comm | 4 | 8 |")
    assert table.splitlines()[2] == "| vgg16 | 0.411042 | 0.420000 |  | 0.100000 |  |  | 0.158000 (27 %) |  | 0.4 ms |"
