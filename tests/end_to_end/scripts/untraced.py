"""A stencil whose launches are never traced, for as long as it is let; prints the ranks' processes once it is going."""

from __future__ import annotations

import os

import torch

import maniple as mp

SIZE, GOING = 4096, 50


@mp.task
def relax(old: mp.Read, new: mp.WriteDiscard) -> None:
    """Mean of three neighbours, as far as they are in the argument."""
    padded = torch.nn.functional.pad(old[None], (1, 1), mode="replicate")[0]
    mean = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    first = mp.index_space(new).bounds.lo[0] - mp.index_space(old).bounds.lo[0]
    new.copy_(mean[first : first + len(new)])


def main() -> None:
    """Relax for ever."""
    world = mp.world()
    pids = [int.from_bytes(part, "big") for part in world.control.gather(os.getpid().to_bytes(4, "big"))]
    regions = [mp.region((SIZE,), name=name) for name in "ab"]
    regions[0].write(torch.arange(SIZE, dtype=torch.float32))
    blocks = mp.blocks((2,))
    halo = mp.halo(blocks, (1,))
    step = 0
    while True:
        old, new = regions[step % 2], regions[1 - step % 2]
        mp.index_launch(relax, blocks.colors, old[halo], new[blocks])
        step += 1
        if step == GOING:
            print("pids", *pids, flush=True)  # noqa: T201 - the test reads it
        if step % GOING == 0:
            mp.fence()


if __name__ == "__main__":
    main()
