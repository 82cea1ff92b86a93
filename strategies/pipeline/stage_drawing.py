"""Drawings of a cut: DOT for Graphviz, and SVG that needs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import Stage

__all__: list[str] = []

_COLOURS = (
    "#8dd3c7",
    "#ffffb3",
    "#bebada",
    "#fb8072",
    "#80b1d3",
    "#fdb462",
    "#b3de69",
    "#fccde5",
    "#d9d9d9",
    "#bc80bd",
)
_COLUMN, _ROW, _RADIUS, _MARGIN = 36, 26, 8, 40


def dot(graph: CostGraph, stages: Sequence[Stage]) -> str:
    """The cut in Graphviz's language: a cluster for every stage."""
    lines = [f"digraph {_quote(graph.name)} {{", "  rankdir=LR; node [shape=box, style=filled];"]
    for number, stage in enumerate(stages):
        lines.append(f"  subgraph cluster_{number} {{ label={_quote(_title(number, stage))};")
        for place in stage.nodes:
            node = graph.nodes[place]
            label = _quote(f"{node.id}\n{node.label[:30]}")
            lines.append(f'    n{place} [label={label}, fillcolor="{_COLOURS[number % len(_COLOURS)]}"];')
        lines.append("  }")
    lines += [f"  n{source} -> n{target};" for source, target in graph.edges]
    return "\n".join([*lines, "}"]) + "\n"


def svg(graph: CostGraph, stages: Sequence[Stage]) -> str:
    """The cut as a picture: nodes by their depth from left to right, coloured by stage."""
    depth = [0] * len(graph.nodes)
    for source, target in graph.edges:
        depth[target] = max(depth[target], depth[source] + 1)
    home = {place: number for number, stage in enumerate(stages) for place in stage.nodes}
    rows: dict[int, int] = {}
    spot: dict[int, tuple[int, int]] = {}
    top = _MARGIN + 18 * len(stages)
    for place, column in enumerate(depth):
        spot[place] = (_MARGIN + column * _COLUMN, top + rows.get(column, 0) * _ROW)
        rows[column] = rows.get(column, 0) + 1
    width, height = 2 * _MARGIN + max(depth) * _COLUMN, top + max(rows.values()) * _ROW + _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 480)}" height="{height}"'
    parts = [f'{head} font-family="sans-serif" font-size="12">', f"<title>{escape(graph.name)}</title>"]
    for number, stage in enumerate(stages):
        y, colour = 20 + 18 * number, _COLOURS[number % len(_COLOURS)]
        parts.append(f'<circle cx="16" cy="{y - 4}" r="6" fill="{colour}" stroke="black"/>')
        parts.append(f'<text x="28" y="{y}">{escape(_title(number, stage))}</text>')
    for source, target in graph.edges:
        (x1, y1), (x2, y2) = spot[source], spot[target]
        crossing = home[source] != home[target]
        stroke = 'stroke="#d62728" stroke-width="2"' if crossing else 'stroke="#999999"'
        parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {stroke}/>')
    for place, (x, y) in spot.items():
        node, colour = graph.nodes[place], _COLOURS[home[place] % len(_COLOURS)]
        title = escape(f"{node.id}: {node.label}, stage {home[place]}")
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="{colour}" stroke="black"><title>{title}</title></circle>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def bars(stages: Sequence[Stage], width: int = 40) -> str:
    """The stages' loads as bars of text, the longest of ``width`` characters.

    stage 0 x1 |####################| 0.200000 s
    stage 1 x2 |##########          | 0.100000 s
    """
    longest = max(stage.load_s for stage in stages)
    lines = []
    for number, stage in enumerate(stages):
        filled = round(width * stage.load_s / longest) if longest > 0 else 0
        lines.append(f"stage {number} x{stage.replicas} |{'#' * filled:{width}s}| {stage.load_s:.6f} s")
    return "\n".join(lines)


def _title(number: int, stage: Stage) -> str:
    copies = f", {stage.replicas} replicas" if stage.replicas > 1 else ""
    return f"stage {number}: {len(stage.nodes)} nodes{copies}, {stage.load_s:.6f} s"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
