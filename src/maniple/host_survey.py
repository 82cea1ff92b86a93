"""A program for `maniple doctor --hosts`: one rank on each host looks at its host and at its way to each other host.

Pairs are measured in rounds, in which no host takes part twice, so that no two measurements share a link of a host:

    4 hosts   round 1   0-3  1-2
              round 2   0-2  3-1
              round 3   0-1  2-3

Rank 0 prints all as one line of JSON.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from maniple.pair_probe import Answerer, dial, measure
from maniple.process import environment
from maniple.process.error import RequestError, RunError
from maniple.process.inventory import take_inventory
from maniple.runtime.cluster.hosts.interface import own_addresses
from maniple.runtime.control import world

if TYPE_CHECKING:
    from maniple.runtime.control.control import Control

__all__: list[str] = []

PACKAGES = ("maniple", "torch", "numba", "pyzmq")
"""What must be the same on all hosts of a run, beside Python."""
BRIEF = 1 << 25
"""Bytes at most for a look at an interface that the run would not use."""


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Give all pairs of so many hosts, in rounds in which none takes part twice (the circle method).

    Args:
        count: how many.
    """
    ring: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def describe_host(address: str) -> dict[str, Any]:
    """Say what a run must know of this host.

    Args:
        address: that a run would use.
    """
    inventory = take_inventory()
    return {
        "host": platform.node() or "localhost",
        "address": address,
        "interfaces": own_addresses(),
        "cores": inventory.cores,
        "memory_bytes": inventory.memory_bytes,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def look_at(own: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure the way to another host at each of its addresses, that of the run first.

    Args:
        own: what this host told.
        other: what the other told.
    """
    addresses = [other["address"], *(address for _, address in other["interfaces"] if address != other["address"])]
    found = []
    for number, address in enumerate(dict.fromkeys(addresses)):
        entry: dict[str, Any] = {"from": own["host"], "to": other["host"], "address": address, "used": number == 0}
        try:
            leaves = own["address"] if number == 0 else None
            with dial(address, other["ports"][address], bytes.fromhex(other["nonce"]), leaves) as connection:
                entry["leaves"] = connection.getsockname()[0]
                entry.update(asdict(measure(connection) if number == 0 else measure(connection, BRIEF)))
        except (OSError, RunError) as error:
            entry["error"] = getattr(error, "strerror", None) or str(error) or type(error).__name__
        found.append(entry)
    return found


def survey(rank: int, control: Control, address: str) -> dict[str, Any]:
    """Look at all hosts together with the ranks on the others; gives the same on all.

    Args:
        rank: this one's.
        control: exchanges what ranks find.
        address: of this host, as a run would use it.
    """
    told = describe_host(address)
    addresses = list(dict.fromkeys([address, *(own for _, own in told["interfaces"])]))
    with Answerer(addresses) as answerer:
        told.update(ports=answerer.ports, nonce=answerer.nonce.hex())
        hosts = [json.loads(part) for part in control.gather(json.dumps(told).encode())]
        ways: list[dict[str, Any]] = []
        for pairs in rounds(len(hosts)):
            mine = [entry for one, other in pairs if one == rank for entry in look_at(told, hosts[other])]
            mine = [{**entry, "pair": [one, other]} for one, other in pairs if one == rank for entry in mine]
            for part in control.gather(json.dumps(mine).encode()):
                ways += json.loads(part)
    for host in hosts:
        del host["nonce"], host["ports"]
    return {"hosts": hosts, "ways": ways}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def main() -> None:
    """Look, and print what was found on rank 0.

    Raises:
        RequestError: this is not a rank of a run over hosts.
    """
    launch = environment.read()
    if launch is None:
        raise RequestError("expected a run over hosts, got none; start it with maniple doctor --hosts")
    here = world.current()
    found = survey(here.rank, here.control, launch.interface)
    if here.rank == 0:
        print(json.dumps(found), flush=True)  # noqa: T201  (the result of the program)


if __name__ == "__main__":
    main()
