"""Tile tables say of all tiles of a split what each tile says of itself."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from maniple.models import model
from maniple.operators.operator.tile_table import TileTable
from maniple.regions.rectangle import Rect

MODELS: tuple[tuple[str, dict[str, int]], ...] = (
    ("digits_cnn", {}),
    ("gpt", {"words": 50, "steps": 8, "width": 16, "heads": 2, "layers": 1}),
    ("nmt", {"words": 40, "width": 8, "layers": 1, "steps": 4, "chunk": 2}),
)


def rect(bounds: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Rect:
    return Rect(tuple(bounds[:, 0].tolist()), tuple(bounds[:, 1].tolist()))


@pytest.mark.parametrize(("name", "sizes"), MODELS, ids=[name for name, _ in MODELS])
def test_tables_agree_with_tiles(name: str, sizes: dict[str, int]) -> None:
    """Uneven degrees, and one above its extent, so that the last tiles are empty."""
    graph = model(name, batch=6, **sizes)
    known = set()
    for node in graph.nodes:
        bound = graph.bound(node)
        if (node.operator, bound.operand_shapes) in known:
            continue
        known.add((node.operator, bound.operand_shapes))
        splittable = [place for place, factor in enumerate(bound.factors) if factor.splittable]
        for chosen, degree in product(splittable[:4], (1, 4, 7)):
            degrees = tuple(
                degree if place == chosen else 2 if place in splittable[:1] else 1
                for place in range(len(bound.factors))
            )
            table = TileTable.of(bound, degrees)
            tiles = bound.tiles(dict(zip([factor.name for factor in bound.factors], degrees, strict=True)))
            assert [tuple(row) for row in table.index.tolist()] == [tile.index for tile in tiles]
            assert table.busy.tolist() == [number for number, tile in enumerate(tiles) if not tile.is_empty]
            forward, backward = table.flops(node.operator)
            costs = [node.operator.flops(tile) for tile in tiles]
            assert forward.tolist() == [cost.forward for cost in costs]
            assert backward.tolist() == [cost.backward for cost in costs]
            for place, shape in enumerate(bound.operand_shapes):
                for gradient in (False, True):
                    if shape is None:
                        continue
                    bounds, there = table.operand(place, gradient=gradient)
                    for number, tile in enumerate(tiles):
                        expected = (tile.gradient_rects if gradient else tile.operand_rects)[place]
                        assert (expected is not None) == (number in there)
                        assert expected is None or rect(bounds[number]) == expected
            for place in range(len(bound.result_shapes)):
                assert [rect(b) for b in table.result(place)[0]] == [tile.result_rects[place] for tile in tiles]
            for place in range(len(bound.saved_shapes)):
                assert [rect(b) for b in table.saved_bounds(place)[0]] == [tile.saved_rects[place] for tile in tiles]
