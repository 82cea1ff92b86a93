"""Tile tables say of all tiles of a split what each tile says of itself."""

from __future__ import annotations

from itertools import product

import pytest
from rects import rects_of

from maniple.models import model
from maniple.operators.lowering.launch_form import tile_flops
from maniple.operators.rules.tile import TensorRole
from maniple.operators.rules.tile_table import TileTable
from maniple.regions.rectangle import Rect

MODELS: tuple[tuple[str, dict[str, int]], ...] = (
    ("digits_cnn", {}),
    ("gpt", {"words": 50, "steps": 8, "width": 16, "heads": 2, "layers": 1}),
    ("nmt", {"words": 40, "width": 8, "layers": 1, "steps": 4, "chunk": 2}),
)


def used(table: TileTable, role: TensorRole, place: int) -> dict[int, Rect]:
    bounds, numbers = table.used(role, place)
    return dict(zip(numbers.tolist(), rects_of(bounds), strict=True))


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
            table = bound.table(degrees)
            tiles = bound.tiles(dict(zip([factor.name for factor in bound.factors], degrees, strict=True)))
            assert [tuple(row) for row in table.index.tolist()] == [tile.index for tile in tiles]
            assert table.busy.tolist() == [number for number, tile in enumerate(tiles) if not tile.is_empty]
            forward, backward = tile_flops(node.operator, table)
            costs = [node.operator.flops(tile) for tile in tiles]
            assert forward.tolist() == [cost.forward for cost in costs]
            assert backward.tolist() == [cost.backward for cost in costs]
            for place, shape in enumerate(bound.operand_shapes):
                for gradient in (False, True):
                    if shape is None:
                        continue
                    assert used(table, "operand_gradient" if gradient else "operand", place) == {
                        number: found
                        for number, tile in enumerate(tiles)
                        if (found := (tile.gradient_rects if gradient else tile.operand_rects)[place]) is not None
                        and not (found.is_empty or tile.is_empty)
                    }
            for place in range(len(bound.result_shapes)):
                assert used(table, "result", place) == {
                    number: tile.result_rects[place] for number, tile in enumerate(tiles) if not tile.is_empty
                }
            for place in range(len(bound.saved_shapes)):
                assert used(table, "saved", place) == {
                    number: tile.saved_rects[place] for number, tile in enumerate(tiles) if not tile.is_empty
                }
