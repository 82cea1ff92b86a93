"""Draws docs/pictures/partition.svg: a convolution cut by height, as its factor rule cuts it.

    python docs/pictures/draw_partition.py

The rectangles are read off the operator's tiles; nothing is placed by hand.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import maniple as mp

COLORS = ("#4477aa", "#cc6677")
PARTS = 2


def panel(axes: Axes, title: str, shape: tuple[int, int], rects: list[tuple[int, int]]) -> None:
    """Draw one tensor's height and width, and the rows that each part uses."""
    height, width = shape
    axes.set_title(title, fontsize=10)
    axes.add_patch(Rectangle((0, 0), width, height, fill=False, edgecolor="#333333", linewidth=1.2))
    for row in range(1, height):
        axes.plot([0, width], [row, row], color="#dddddd", linewidth=0.6, zorder=0)
    for part, (low, high) in enumerate(rects):
        corner, size = (0.15 + 0.1 * part, low + 0.06), (width - 0.5, high - low - 0.12)
        axes.add_patch(Rectangle(corner, *size, color=COLORS[part], alpha=0.45))
        label = f"task {part}\nrows {low}:{high}"
        axes.text(width + 0.35 + 3.4 * part, (low + high) / 2, label, color=COLORS[part], fontsize=8, va="center")
    axes.set_xlim(-0.5, width + 8)
    axes.set_ylim(height + 0.5, -0.5)
    axes.set_aspect("equal")
    axes.axis("off")


def main() -> None:
    """Draw the picture."""
    mpl.rcParams["svg.hashsalt"] = "maniple"
    graph = mp.Graph("picture")
    graph.conv2d(graph.input("x", (1, 1, 8, 8)), out_channels=1, kernel_size=3, padding=1)
    bound = graph.bound(graph.nodes[0])
    tiles = bound.tiles({"y": PARTS})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2))
    reads = [(tile.operand_rects[0].lo[2], tile.operand_rects[0].hi[2]) for tile in tiles if tile.operand_rects[0]]
    writes = [(tile.result_rect.lo[2], tile.result_rect.hi[2]) for tile in tiles]
    panel(left, "x: the rows that each task reads (halo shared)", (8, 8), reads)
    panel(right, "conv2d(x), kernel 3, padding 1: the rows that it writes", (8, 8), writes)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("partition.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
