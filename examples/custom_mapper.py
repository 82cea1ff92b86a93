"""A mapper of one's own: it decides where tasks run, and cannot change what they compute.

python examples/custom_mapper.py
maniple run --nodes 2 --processors 2 examples/custom_mapper.py
"""

from __future__ import annotations

import torch

import maniple as mp


class OddFirst(mp.Mapper):
    """Sends odd points to the first processor and spreads the even ones over the others, the last one first."""

    def shard(self, launch: mp.LaunchView) -> list[int]:
        """Choose the rank of every point: the one that owns the processor we want."""
        return [launch.machine.rank_of(self._wish(launch, index)) for index in range(len(launch.colors))]

    def select_processor(self, task: mp.TaskView) -> int:
        """Choose the processor of one point."""
        return self._wish(task.launch, task.index)

    @staticmethod
    def _wish(launch: mp.LaunchView, index: int) -> int:
        owners = [processor.id for processor in launch.machine.processors]
        if index % 2 or len(owners) == 1:
            return owners[0]
        return owners[-1 - (index // 2) % (len(owners) - 1)]


@mp.task
def axpy(a: float, x: mp.Read, y: mp.ReadWrite) -> None:
    """Add a times x to y; the body sees tensors that view its own rows."""
    y += a * x


@mp.task
def total(x: mp.Read, sums: mp.ReduceSum) -> None:
    """Add up the rows of x; contributions of all points are folded in a fixed order."""
    sums += x.sum()


@mp.task
def where(color: mp.Color) -> str:
    """Say which point this is."""
    return f"point {color}"


def main() -> None:
    """Run the same launches under the default mapper and under ours, and show that only the places differ."""
    mp.register_mapper("odd_first", OddFirst)
    rows = mp.blocks((6, 1))
    values = torch.arange(1024 * 4, dtype=torch.float32).reshape(1024, 4)
    results = []
    for mapper in (None, OddFirst()):
        x, y = mp.region((1024, 4), name="x"), mp.region((1024, 4), name="y")
        sums = mp.region((), name="sums")
        x.write(values)
        y.fill(1.0)
        mp.index_launch(axpy, rows.colors, 2.0, x[rows], y[rows], mapper=mapper)
        mp.index_launch(total, rows.colors, y[rows], sums, mapper=mapper)
        print(f"mapper {type(mapper).__name__ if mapper else 'default'}:")
        for color, place in mp.index_launch(where, rows.colors, mapper=mapper).placed().items():
            print(f"  point {color[0]} ran on {place}")
        results.append((y.read(), sums.read()))
    (first_y, first_sum), (second_y, second_sum) = results
    same = torch.equal(first_y, second_y) and torch.equal(first_sum, second_sum)
    print(f"sum {first_sum.item():.0f}, the same under both mappers: {same}")


if __name__ == "__main__":
    main()
