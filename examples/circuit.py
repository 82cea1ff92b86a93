"""A circuit as a graph: wires and nodes in pieces, with the nodes that pieces share found by image and preimage.

After the circuit simulation of Bauer et al., "Legion: Expressing Locality and Independence with Logical Regions"
(SC 2012), section 2. Each piece owns nodes and the wires that leave them. A step computes the currents of the wires
from the voltages at both ends, adds the charges that they carry to nodes of any piece, and updates the voltages.

    python examples/circuit.py [--pieces P] [--nodes N] [--wires W] [--steps S]
    maniple run --nodes 2 examples/circuit.py
"""

from __future__ import annotations

import argparse

import torch

import maniple as mp


@mp.task
def currents(wires: mp.ReadWrite, ends: mp.Read, own: mp.Read, ghosts: mp.Read) -> None:
    """Sets the current of every wire of the piece; the nodes at its ends are the piece's own or ghosts."""
    resistance, current = wires
    mine = mp.index_space(current).positions()
    into, out = (value(end[mine], own, ghosts) for end in ends)
    current[mine] = (into - out) / resistance[mine]


@mp.task
def charges(current: mp.Read, ends: mp.Read, charge: mp.ReduceSum) -> None:
    """Adds what every wire of the piece carries to the charges of its two ends."""
    mine = mp.index_space(current).positions()
    first = mp.index_space(charge).bounds.lo[0]
    into, out = (end[mine] - first for end in ends)
    charge.index_add_(0, into, -current[mine])
    charge.index_add_(0, out, current[mine])


@mp.task
def voltages(nodes: mp.ReadWrite) -> None:
    """Moves every node's voltage by the charge that it got, and takes the charge away."""
    voltage, charge, capacitance = nodes
    voltage += charge / capacitance
    charge.zero_()


def value(nodes: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
    """The values of nodes, by their numbers, each of which is in one of the parts."""
    found = torch.zeros(nodes.shape)
    for part in parts:
        place = nodes - mp.index_space(part).bounds.lo[0]
        inside = torch.zeros(part.shape, dtype=torch.bool)
        inside[mp.index_space(part).positions()] = True
        near = (place >= 0) & (place < len(part))
        near[near.clone()] = inside[place[near]]
        found[near] = part[place[near]]
    return found


def main() -> None:
    """Simulates a random circuit whose wires mostly stay within a piece, and checks it against one on plain tensors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("pieces", 4), ("nodes", 400), ("wires", 1600), ("steps", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    draw = torch.Generator().manual_seed(0)
    start = torch.randint(given.nodes, (given.wires,), generator=draw)
    near = (start + torch.randint(1, 20, (given.wires,), generator=draw)) % given.nodes
    far = torch.randint(given.nodes, (given.wires,), generator=draw)
    end = torch.where(torch.rand(given.wires, generator=draw) < 0.95, near, far)

    nodes = mp.region(
        (given.nodes,), name="nodes", fields=dict.fromkeys(("voltage", "charge", "capacitance"), "float32")
    )
    wires = mp.region(
        (given.wires,),
        name="wires",
        fields={"from": "int64", "to": "int64", "resistance": "float32", "current": "float32"},
    )
    voltage = torch.rand(given.nodes, generator=draw)
    resistance = 1 + torch.rand(given.wires, generator=draw)
    nodes["voltage"].write(voltage)
    nodes["charge"].fill(0.0)
    nodes["capacitance"].fill(5.0)
    wires["from"].write(start)
    wires["to"].write(end)
    wires["resistance"].write(resistance)
    wires["current"].fill(0.0)

    pieces = nodes.partition(mp.blocks((given.pieces,)))
    owned = nodes[pieces].preimage(wires["from"])
    reached = wires["to"][owned].image(nodes)
    ghosts = reached - pieces
    touched = reached | pieces
    for _ in range(given.steps):
        mp.index_launch(
            currents,
            pieces.colors,
            wires["resistance", "current"][owned],
            wires["from", "to"][owned],
            nodes["voltage"][pieces],
            nodes["voltage"][ghosts],
        )
        mp.index_launch(
            charges, pieces.colors, wires["current"][owned], wires["from", "to"][owned], nodes["charge"][touched]
        )
        mp.index_launch(voltages, pieces.colors, nodes["voltage", "charge", "capacitance"][pieces])

    for _ in range(given.steps):
        carried = (voltage[start] - voltage[end]) / resistance
        gained = torch.zeros(given.nodes).index_add_(0, start, -carried).index_add_(0, end, carried)
        voltage = voltage + gained / 5.0
    found = nodes["voltage"].read()
    error = float((found - voltage).abs().max())
    if mp.world().rank == 0:
        print(f"wires disjoint {owned.disjoint}, complete {owned.complete}")
        print(f"nodes disjoint {pieces.disjoint}; {[space.volume for space in ghosts.subspaces]} ghosts of the pieces")
        print(f"largest difference from plain tensors: {error:.1e} ({'good' if error < 1e-5 else 'BAD'})")


if __name__ == "__main__":
    main()
