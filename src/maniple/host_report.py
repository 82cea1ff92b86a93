"""The report on several hosts: what `host_survey` found, as findings with next steps, and as a machine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniple.doctor import Finding

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

Survey = dict[str, Any]
"""`hosts` and `ways`, as `maniple.host_survey.survey` gives them."""

FASTER = 1.5
"""An interface that carries so many times the bytes of the one that a run would use is the better one."""
CLOCKS_S = 1.0
"""Clocks that are so far apart make logs of hosts hard to read together."""


def findings(survey: Survey) -> tuple[Finding, ...]:
    """Give what was found, host by host, then pair by pair.

    Args:
        survey: what was found.
    """
    hosts = survey["hosts"]
    found = [
        Finding(
            host["host"],
            f"{host['address']} ({_interface(host, host['address'])}), {host['cores']} cores, "
            f"{host['memory_bytes'] / 2**30:.1f} GiB",
        )
        for host in hosts
    ]
    found += _versions(hosts)
    for way in survey["ways"]:
        if way["used"]:
            found += _pair(way, hosts, [other for other in survey["ways"] if other["pair"] == way["pair"]])
    return tuple(found)


def build_machine(survey: Survey) -> Machine:
    """Give the machine of one rank on each host, whose links have the speeds that were measured.

    A link carries what it has while as much goes the other way, for exchanges go both ways at once.

    Args:
        survey: what was found.
    """
    from dataclasses import replace

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.machine_part import Host, Link

    hosts = survey["hosts"]
    machine = Machine.cpu(1, ranks=len(hosts), cores=min(host["cores"] for host in hosts), name="surveyed")
    links = [
        link
        for way in survey["ways"]
        if way["used"] and "there" in way
        for one, other in [way["pair"]]
        for link in (
            Link(one, other, way["latency_s"], min(way["there"], way["both"])),
            Link(other, one, way["latency_s"], min(way["back"], way["both"])),
        )
    ]
    names = [host["host"] for host in hosts]
    own = [
        f"{name}@{host['address']}" if names.count(name) > 1 else name for name, host in zip(names, hosts, strict=True)
    ]
    memories = tuple(
        replace(memory, capacity_bytes=host["memory_bytes"] or memory.capacity_bytes)
        for memory, host in zip(machine.memories, hosts, strict=True)
    )
    named = tuple(Host(number, name) for number, name in enumerate(own))
    ordered = tuple(sorted(links, key=lambda link: (str(link.source), str(link.target))))
    return replace(machine, hosts=named, memories=memories, links=ordered)


def _versions(hosts: list[dict[str, Any]]) -> list[Finding]:
    found = []
    first = hosts[0]
    for package, version in first["versions"].items():
        other = [host for host in hosts if host["versions"].get(package) != version]
        if package == "python":
            other = [host for host in other if _minor(host["versions"].get(package, "")) != _minor(version)]
        told = ", ".join(f"{host['versions'].get(package, 'none')} on {host['host']}" for host in other)
        following = f"install one {package} on all hosts: a run refuses those that differ"
        value = f"{version} on {first['host']}, {told}" if other else str(version)
        found.append(Finding(package, value, ok=not other, next=following if other else ""))
    return found


def _pair(way: dict[str, Any], hosts: list[dict[str, Any]], ways: list[dict[str, Any]]) -> list[Finding]:
    """Give what was found of a pair of hosts, over the interfaces that a run would use and over others."""
    one, other = (hosts[number] for number in way["pair"])
    name = f"{way['from']} - {way['to']}"
    others = sorted((each for each in ways if not each["used"] and "there" in each), key=_slower, reverse=True)
    if "error" in way:
        step = f"see that {way['from']} reaches {way['address']}: routes, firewall, --interface"
        if others:
            step = f"{_name_way(others[0], one, other)} is reached: {_advise(others[0], one, other)}"
        used = _interface(other, way["address"])
        return [
            Finding(
                name, f"{way['address']} ({used}) of {way['to']} is not reached: {way['error']}", ok=False, next=step
            )
        ]
    value = (
        f"{way['latency_s'] * 1e6:.0f} us, {_rate(way['there'])} there, {_rate(way['back'])} back, "
        f"{_rate(way['both'])} each way at once, by {_name_way(way, one, other)}"
    )
    found = [Finding(name, value)]
    if abs(way["ahead_s"]) >= CLOCKS_S:
        late, early = sorted((way["from"], way["to"]), key=lambda host: (host == way["to"]) == (way["ahead_s"] > 0))
        said = f"that of {early} is {abs(way['ahead_s']):.1f} s ahead of that of {late}"
        following = "set them by NTP; runs go on, but logs of hosts are hard to read together"
        found.append(Finding(f"clocks {name}", said, next=following))
    if others and _slower(others[0]) > FASTER * _slower(way):
        best = others[0]
        used, better = _name_way(way, one, other), _name_way(best, one, other)
        said = f"{used} would be used, and {better} carries {_rate(_slower(best))}"
        found.append(Finding(f"interface {name}", said, ok=False, next=_advise(best, one, other)))
    return found


def _advise(way: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> str:
    mine, theirs = _interface(one, way["leaves"]), _interface(other, way["address"])
    return (
        f"give --interface {mine}"
        if mine == theirs
        else f"give --interface {mine} on {way['from']}, {theirs} on {way['to']}"
    )


def _name_way(way: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> str:
    mine, theirs = _interface(one, way["leaves"]), _interface(other, way["address"])
    return mine if mine == theirs else f"{mine} to {theirs}"


def _interface(host: dict[str, Any], address: str) -> str:
    """Give the interface of an address of a host; the address where nothing says."""
    return str({own: name for name, own in host["interfaces"]}.get(address, address))


def _slower(way: dict[str, Any]) -> float:
    return float(min(way["there"], way["back"]))


def _rate(value: float) -> str:
    return f"{value / 1e9:.2f} GB/s" if value >= 1e9 else f"{value / 1e6:.1f} MB/s"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
