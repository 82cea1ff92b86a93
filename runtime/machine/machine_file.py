"""The file form of a machine: TOML that a person can write, every entry checked.

``within_host`` and ``between_hosts`` are the rates of pairs of memories that no listed link joins; without them, links
must lead from every memory to every other.

version = 2
name = "two nodes"
within_host = { latency_s = 5e-05, bandwidth = 2000000000.0 }
between_hosts = { latency_s = 0.0001, bandwidth = 1000000000.0 }
switches = ["pcie"]
links = [ { source = 0, target = "pcie", latency_s = 1e-06, bandwidth = 12000000000.0 }, ... ]

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

from maniple.process.error import RequestError
from maniple.process.file_entry import Entry, read_toml, write_atomically
from maniple.runtime.machine.machine_part import LAUNCH_S, Feed, Host, Link, Memory, Processor, Rate

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from maniple.runtime.machine.machine_part import End

__all__: list[str] = []

VERSION = 2
"""The newest version of the file that this code reads, and the one that it writes."""

Parts = tuple[
    str,
    tuple[Host, ...],
    tuple[Memory, ...],
    tuple[Processor, ...],
    tuple[Link, ...],
    Rate | None,
    Rate | None,
    tuple[str, ...],
]
"""A machine's fields in order."""

_KEYS = ("version", "name", "hosts", "memories", "processors", "links")
_OPTIONAL = ("within_host", "between_hosts", "switches")


def document(parts: Parts) -> dict[str, object]:
    """The machine as plain data: tables, lists, strings and numbers."""
    name, hosts, memories, processors, links, within, between, switches = parts
    rates = {"within_host": within, "between_hosts": between}
    return {
        "version": VERSION,
        "name": name,
        **{key: _table(rate) for key, rate in rates.items() if rate is not None},
        "switches": list(switches),
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
    heads = ("version", "name", "within_host", "between_hosts", "switches", "links")
    lines = [f"{key} = {_toml(plain[key])}" for key in heads if key in plain]
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
    return parse(read_toml(path))


def parse(root: Entry) -> Parts:
    """The fields of the machine that plain data describes, as ``document`` gives it.

    Raises:
        RequestError: an entry is wrong.
    """
    version = dict(root.items()).get("version", root.child("version", None)).integer(1)
    if version > VERSION:
        raise RequestError(f"{root.file}: version: {version} is newer than {VERSION}; use a newer maniple")
    table = root.table(_KEYS, _OPTIONAL)
    return (
        table["name"].string(),
        tuple(_host(entry) for entry in table["hosts"].elements()),
        tuple(_memory(entry) for entry in table["memories"].elements()),
        tuple(_processor(entry) for entry in table["processors"].elements()),
        tuple(_link(entry) for entry in table["links"].elements()),
        _rate(table["within_host"]) if "within_host" in table else None,
        _rate(table["between_hosts"]) if "between_hosts" in table else None,
        tuple(entry.string() for entry in table["switches"].elements()) if "switches" in table else (),
    )


def check_parts(
    name: str,
    hosts: Sequence[Host],
    memories: Sequence[Memory],
    processors: Sequence[Processor],
    links: Sequence[Link],
    switches: Sequence[str],
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
        ("processors", [processor.id for processor in processors]),
    ):
        if ids != list(range(len(ids))):
            raise RequestError(f"machine {name}: {what}: expected the ids 0, 1, ... in order, got {ids}")
    ranks = [memory.rank for memory in memories]
    if ranks != sorted(ranks) or sorted(set(ranks)) != list(range(len(set(ranks)))):
        raise RequestError(
            f"machine {name}: expected memories in the order of their ranks 0, 1, ..., at least one each, got the "
            f"ranks {ranks}"
        )
    for memory in memories:
        if not 0 <= memory.host < len(hosts):
            raise RequestError(f"machine {name}: memory {memory.id}: host {memory.host} does not exist")
    sharing: dict[int, list[str]] = {}
    for processor in processors:
        sharing.setdefault(processor.memory, []).append(processor.kind)
    for owner in memories:
        kinds = sharing.get(owner.id, [])
        if len(set(kinds)) > 1 or kinds.count("gpu") > 1:
            raise RequestError(
                f"machine {name}: memory {owner.id}: expected CPUs that share it, or one GPU that has it to itself"
            )
    owners = [processor.memory for processor in processors]
    if owners != sorted(owners) or set(owners) != set(range(len(memories))):
        raise RequestError(
            f"machine {name}: expected processors in the order of their memories, at least one for each of the "
            f"{len(memories)} memories, got the memories {owners}"
        )
    _check_links(name, len(memories), links, switches)


def _check_links(name: str, memories: int, links: Sequence[Link], switches: Sequence[str]) -> None:
    if len(set(switches)) != len(switches):
        raise RequestError(f"machine {name}: switches: expected different names, got {list(switches)}")
    known = {*range(memories), *switches}
    ends = [(link.source, link.target) for link in links]
    for number, (source, target) in enumerate(ends):
        if source == target or not {source, target} <= known:
            raise RequestError(
                f"machine {name}: links[{number}]: a link from {source!r} to {target!r} joins no two memories or "
                f"switches of it; memories are 0..{memories - 1}, switches {list(switches) or 'none'}"
            )
    if len(set(ends)) != len(ends):
        raise RequestError(f"machine {name}: two links join the same two memories in the same direction")


def _table(part: Host | Memory | Processor | Link | Rate | Feed) -> dict[str, object]:
    """A part as plain data, without what nobody has said of it."""
    told = {entry.name: getattr(part, entry.name) for entry in fields(part)}
    if isinstance(part, Processor):
        told |= {"peaks": dict(part.peaks), "feed": None if part.feed is None else _table(part.feed)}
    return {name: value for name, value in told.items() if value is not None and value != {}}


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
    optional = ("launch_s", "peaks", "feed", "device")
    table = entry.table(("id", "kind", "memory", "cores", "flops_per_s", "name"), optional)
    return Processor(
        table["id"].integer(0),
        "gpu" if table["kind"].choice(("cpu", "gpu")) == "gpu" else "cpu",
        table["memory"].integer(0),
        table["cores"].integer(1),
        _positive(table["flops_per_s"]),
        table["name"].string(),
        table["launch_s"].number(0.0) if "launch_s" in table else LAUNCH_S,
        tuple((dtype, _positive(rate)) for dtype, rate in table["peaks"].items()) if "peaks" in table else (),
        _feed(table["feed"]) if "feed" in table else None,
        table["device"].integer(0) if "device" in table else None,
    )


def _feed(entry: Entry) -> Feed:
    table = entry.table(("eager_s", "run_s", "staging", "upload", "download"))
    rates = (_positive(table[name]) for name in ("staging", "upload", "download"))
    return Feed(table["eager_s"].number(0.0), table["run_s"].number(0.0), *rates)


def _link(entry: Entry) -> Link:
    table = entry.table(("source", "target", "latency_s", "bandwidth"))
    return Link(
        _end(table["source"]),
        _end(table["target"]),
        table["latency_s"].number(0.0),
        _positive(table["bandwidth"]),
    )


def _end(entry: Entry) -> End:
    return entry.value if isinstance(entry.value, str) else entry.integer(0)


def _rate(entry: Entry) -> Rate:
    table = entry.table(("latency_s", "bandwidth"))
    return Rate(table["latency_s"].number(0.0), _positive(table["bandwidth"]))


def _positive(entry: Entry) -> float:
    number = entry.number(0.0)
    if number == 0.0:
        raise entry.problem("a number > 0")
    return number
