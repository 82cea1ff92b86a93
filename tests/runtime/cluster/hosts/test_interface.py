"""Interfaces of this host: which address others reach it by, and what is said where there is none."""

from __future__ import annotations

import sys

import pytest

from maniple.process.error import RequestError, RunError
from maniple.runtime.cluster.hosts.interface import address_towards, is_own, resolve, split_endpoint

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for interfaces")


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:0", "host:65536", "host:+1", ""])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--head: expected HOST:PORT"):
        split_endpoint(text)


def test_an_endpoint_is_a_host_and_a_port() -> None:
    assert split_endpoint("alpha:29400") == ("alpha", 29400)


def test_a_host_that_nobody_knows_is_named() -> None:
    with pytest.raises(RunError, match=r"host 'no-such-host.invalid' has no known address .* /etc/hosts"):
        resolve("no-such-host.invalid")


def test_an_address_is_its_own_host() -> None:
    assert resolve("10.1.2.3") == "10.1.2.3"
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")  # for documentation alone (RFC 5737)


def test_the_route_says_the_address() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


@linux
def test_an_interface_without_a_route_there_is_named() -> None:
    assert address_towards("127.0.0.1", "lo") == "127.0.0.1"
    with pytest.raises(RunError, match=r"interface lo \(127.0.0.1\) has no route to 192.0.2.1|there is no route"):
        address_towards("192.0.2.1", "lo")


def test_an_interface_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(RequestError, match=r"--interface nosuch0: this host has no such interface; it has .*lo"):
        address_towards("127.0.0.1", "nosuch0")
    with pytest.raises(RequestError, match=r"--interface 192.0.2.1: this host has no such address"):
        address_towards("127.0.0.1", "192.0.2.1")
