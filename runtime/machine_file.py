"""The file form of a machine: TOML that a person can write, every entry checked.

version = 1
name = "two nodes"
within_host = { latency_s = 5e-05, bandwidth = 2000000000.0 }
between_hosts = { latency_s = 0.0001, bandwidth = 1000000000.0 }
links = [ { source = 0, target = 1, latency_s = 1e-05, bandwidth = 5000000000.0 } ]

[[hosts]]
id = 0
name = "node0"

[[memories]]
id = 0
...
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError
from maniple.runtime.entry import Entry, read_toml, write_atomically
from maniple.runtime.machine_part import Host, Link, Memory, Processor, Rate

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__: list[str] = []

VERSION = 1
"""The newest version of the file that this code reads, and the one that it writes."""

Parts = tuple[str, tuple[Host, ...], tuple[Memory, ...], tuple[Processor, ...], tuple[Link, ...], Rate, Rate]
"""A machine's fields in order."""

_KEYS = ("version", "name", "within_host", "between_hosts", "hosts", "memories", "processors", "links")


def document(parts: Parts) -> dict[str, object]:
    """The machine as plain data: tables, lists, strings and numbers."""
    name, hosts, memories, processors, links, within, between = parts
    return {
        "version": VERSION,
        "name": name,
        "within_host": _table(within),
        "between_hosts": _table(between),
        "links": [_table(link) for link in links],
        "hosts": [_table(host) for host in hosts],
        "memories": [_table(memory) for memory in memories],
        "processors": [_table(processor) for processor in processors],
    }


def write(path: str | os.PathLike[str], parts: Parts) -> None:
    """Write the machine, whole or not at all.

    Raises:
        RequestError: the place cannot be written.
    """
    plain = document(parts)
    lines = [f"{key} = {_toml(plain[key])}" for key in ("version", "name", "within_host", "between_hosts", "links")]
    _, hosts, memories, processors, *_ = parts
    for key, group in (("hosts", hosts), ("memories", memories), ("processors", processors)):
        for part in group:
            lines += ["", f"[[{key}]]", *(f"{name} = {_toml(value)}" for name, value in _table(part).items())]
    write_atomically(path, "\n".join(lines) + "\n")


def read(path: str | os.PathLike[str]) -> Parts:
    """The fields of the machine that a file describes.

    Raises:
        RequestError: the file or an entry of it is wrong.
    """
    root = read_toml(path)
    version = dict(root.items()).get("version", root.child("version", None)).integer(1)
    if version > VERSION:
        raise RequestError(f"{root.file}: version: {version} is newer than {VERSION}; use a newer maniple")
    table = root.table(_KEYS)
    return (
        table["name"].string(),
        tuple(_host(entry) for entry in table["hosts"].elements()),
        tuple(_memory(entry) for entry in table["memories"].elements()),
        tuple(_processor(entry) for entry in table["processors"].elements()),
        tuple(_link(entry) for entry in table["links"].elements()),
        _rate(table["within_host"]),
        _rate(table["between_hosts"]),
    )


def check_parts(
    name: str,
    hosts: Sequence[Host],
    memories: Sequence[Memory],
    processors: Sequence[Processor],
    links: Sequence[Link],
) -> None:
    """Refuse parts that do not fit together.

    Raises:
        RequestError: what does not fit.
    """
    if not processors:
        raise RequestError(f"machine {name}: expected at least one processor, got none")
    for what, ids in (
        ("hosts", [host.id for host in hosts]),
        ("memories", [memory.id for memory in memories]),
        ("ranks of the memories", [memory.rank for memory in memories]),
        ("processors", [processor.id for processor in processors]),
    ):
        if ids != list(range(len(ids))):
            raise RequestError(f"machine {name}: {what}: expected the ids 0, 1, ... in order, got {ids}")
    for memory in memories:
        if not 0 <= memory.host < len(hosts):
            raise RequestError(f"machine {name}: memory {memory.id}: host {memory.host} does not exist")
    owners = [processor.memory for processor in processors]
    if owners != sorted(owners) or set(owners) != set(range(len(memories))):
        raise RequestError(
            f"machine {name}: expected processors in the order of their memories, at least one for each of the "
            f"{len(memories)} memories, got the memories {owners}"
        )
    ends = [(link.source, link.target) for link in links]
    for source, target in ends:
        if source == target or not {source, target} <= set(range(len(memories))):
            raise RequestError(f"machine {name}: a link from memory {source} to {target} joins no two memories of it")
    if len(set(ends)) != len(ends):
        raise RequestError(f"machine {name}: two links join the same two memories in the same direction")


def _table(part: Host | Memory | Processor | Link | Rate) -> dict[str, str | int | float]:
    return {entry.name: getattr(part, entry.name) for entry in fields(part)}


def _toml(value: object) -> str:
    # JSON strings are TOML strings; the writer needs only the types that `document` makes.
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return repr(value)


def _host(entry: Entry) -> Host:
    table = entry.table(("id", "name"))
    return Host(table["id"].integer(0), table["name"].string())


def _memory(entry: Entry) -> Memory:
    table = entry.table(("id", "rank", "host", "capacity_bytes", "bandwidth"))
    return Memory(
        table["id"].integer(0),
        table["rank"].integer(0),
        table["host"].integer(0),
        table["capacity_bytes"].integer(1),
        _positive(table["bandwidth"]),
    )


def _processor(entry: Entry) -> Processor:
    table = entry.table(("id", "kind", "memory", "cores", "flops_per_s", "name"))
    table["kind"].choice(("cpu",))
    return Processor(
        table["id"].integer(0),
        "cpu",
        table["memory"].integer(0),
        table["cores"].integer(1),
        _positive(table["flops_per_s"]),
        table["name"].string(),
    )


def _link(entry: Entry) -> Link:
    table = entry.table(("source", "target", "latency_s", "bandwidth"))
    return Link(
        table["source"].integer(0),
        table["target"].integer(0),
        table["latency_s"].number(0.0),
        _positive(table["bandwidth"]),
    )


def _rate(entry: Entry) -> Rate:
    table = entry.table(("latency_s", "bandwidth"))
    return Rate(table["latency_s"].number(0.0), _positive(table["bandwidth"]))


def _positive(entry: Entry) -> float:
    number = entry.number(0.0)
    if number == 0.0:
        raise entry.problem("a number > 0")
    return number
