"""A mapper of one's own: it decides where tasks run, and cannot change what they compute.

python examples/custom_mapper.py
maniple run --nodes 2 --processors 2 examples/custom_mapper.py
"""

from __future__ import annotations

import torch

import maniple as mp
from maniple.plugins import LaunchView, TaskView


class OddFirst(mp.Mapper):
    """Sends odd points to the first processor and spreads the even ones over the others, the last one first."""

    def shard(self, launch: LaunchView) -> list[int]:
        """Choose the rank of every point: the one that owns the processor we want."""
        return [launch.machine.rank_of(self._wish(launch, index)) for index in range(len(launch.colors))]

    def select_processor(self, task: TaskView) -> int:
        """Choose the processor of one point."""
        return self._wish(task.launch, task.index)

    @staticmethod
    def _wish(launch: LaunchView, index: int) -> int:
        owners = [processor.id for processor in launch.machine.processors]
        return owners[0] if index % 2 or len(owners) == 1 else owners[-1 - (index // 2) % (len(owners) - 1)]


mp.register_mapper("odd_first", OddFirst)  # for `maniple run --mapper odd_first`, too


@mp.task
def double(x: mp.ReadWrite, sums: mp.ReduceSum) -> None:
    """Double the rows, and add them up; contributions of all points are folded in a fixed order."""
    x *= 2
    sums += x.sum()


@mp.task
def where(color: mp.Color) -> str:
    """Say which point this is."""
    return f"point {color}"


if __name__ == "__main__":
    rows, results = mp.blocks((6, 1)), []
    for mapper in (None, OddFirst()):
        x, sums = mp.region((1024, 4), name="x"), mp.region((), name="sums")
        x.write(torch.arange(1024 * 4, dtype=torch.float32).reshape(1024, 4))
        mp.index_launch(double, rows.colors, x[rows], sums, mapper=mapper)
        print(f"mapper {type(mapper).__name__ if mapper else 'default'}:")
        for color, place in mp.index_launch(where, rows.colors, mapper=mapper).placed().items():
            print(f"  point {color[0]} ran on {place}")
        results.append(sums.read())
    print(f"sum {results[0].item():.0f}, the same under both mappers: {torch.equal(*results)}")
