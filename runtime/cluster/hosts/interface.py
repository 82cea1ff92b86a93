"""Interfaces: under which address of this host the other hosts of a run reach it."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import sys

from maniple.process.error import RequestError, RunError

__all__: list[str] = []

# Gives the IPv4 address of an interface (netdevice(7)).
_SIOCGIFADDR = 0x8915


def resolve(host: str) -> str:
    """Give the IPv4 address of a host.

    Raises:
        RunError: nobody knows it.
    """
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RunError(
            f"host {host!r} has no known address ({error}); correct its name, add it to /etc/hosts, or write its "
            "address"
        ) from error
    return str(found[0][4][0])


def split_endpoint(text: str, option: str = "--head") -> tuple[str, int]:
    """Give host and port of `HOST:PORT`.

    Raises:
        RequestError: it is not that.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise RequestError(f"{option}: expected HOST:PORT, got {text!r}; write such as {option} 10.0.0.1:29400")
    return host, int(port)


def address_towards(remote: str, interface: str | None = None) -> str:
    """Give the address of this host under which a remote one reaches it.

    Args:
        remote: the address of the other.
        interface: the name of the interface to use, or an address of this host; None takes what the route says.

    Raises:
        RequestError: there is no such interface, or it has no address.
        RunError: there is no route to the remote, or it goes by another interface.
    """
    if interface is None:
        return _source(remote, "0.0.0.0")  # noqa: S104 - where a datagram would leave from, and none is sent
    if _is_address(interface):
        if not is_own(interface):
            raise RequestError(f"--interface {interface}: this host has no such address; it has {_describe_own()}")
        return _source(remote, interface)
    own = _address_of(interface)
    taken = own if is_own(remote) else _source(remote, "0.0.0.0")  # noqa: S104 - likewise
    if taken != own:
        raise RunError(
            f"interface {interface} ({own}) has no route to {remote}, which is reached from {taken}; give the "
            f"interface of that address with --interface, or a --head that {interface} reaches"
        )
    return own


def check_reachable(address: str, where: str, step: str) -> None:
    """Refuse an address of this host that no other reaches: /etc/hosts often gives a host's own name as 127.0.1.1.

    Args:
        address: the address.
        where: what it is the address of.
        step: what to do about it.

    Raises:
        RequestError: it is one of the loopback interface.
    """
    if ipaddress.IPv4Address(address).is_loopback:
        raise RequestError(
            f"{where}: {address} is a loopback address, which other hosts do not reach; {step} "
            f"(this host has {_describe_own()})"
        )


def own_addresses() -> list[tuple[str, str]]:
    """Give the interfaces of this host that have an IPv4 address and are not loopback, each with its address."""
    found = [(name, _lookup(name)) for _, name in socket.if_nameindex()]
    return [(name, own) for name, own in found if own and not ipaddress.IPv4Address(own).is_loopback]


def is_own(address: str) -> bool:
    """Say whether an address is one of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _source(remote: str, own: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((own, 0))
            probe.connect((remote, 9))  # sends nothing
        except OSError as error:
            raise RunError(
                f"there is no route to {remote} ({error.strerror or error}); this host has {_describe_own()}: check "
                "its routes, or give another --interface"
            ) from error
        return str(probe.getsockname()[0])


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _address_of(interface: str) -> str:
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise RequestError(f"--interface {interface}: this host has no such interface; it has {_describe_own()}")
    found = _lookup(interface)
    if found is None:
        raise RequestError(
            f"--interface {interface}: it has no IPv4 address; this host has {_describe_own()}: give one, or set it up"
        )
    return found


def _lookup(interface: str) -> str | None:
    if not sys.platform.startswith("linux"):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def _describe_own() -> str:
    return ", ".join(f"{name} ({_lookup(name) or 'no address'})" for _, name in socket.if_nameindex())
