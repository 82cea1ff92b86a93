"""Lists of hosts: what they say, and what is refused with the line and the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniple.process.error import RequestError
from maniple.runtime.cluster.hosts.host_list import ListedHost, check_slots, read_hostfile, split_hosts


def test_a_list_is_hosts_in_order() -> None:
    assert split_hosts("beta,me@alpha,10.0.0.1") == [ListedHost("beta"), ListedHost("me@alpha"), ListedHost("10.0.0.1")]


def test_a_file_has_a_host_a_line_with_its_slots(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\nalpha slots=2\nbeta   slots=4  # the new one\ngamma\n")
    assert read_hostfile(path) == [ListedHost("alpha", 2), ListedHost("beta", 4), ListedHost("gamma")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("alpha\n\nbeta\n", "line 2: expected a host, got an empty line"),
        ("alpha\nbeta:22\n", "line 2: expected a host, got 'beta:22' with a port"),
        ("alpha\nbeta slot=2\n", "line 2: expected HOST or HOST slots=N, got 'beta slot=2'"),
        ("alpha slots=0\n", "line 1: expected at least 1 slot, got 0"),
        ("alpha\nalpha slots=2\n", "host alpha stands there twice"),
        ("-oProxyCommand=sh\n", "line 1: expected a host, got '-oProxyCommand=sh'"),
        ("# none\n", "expected hosts, got none"),
        ("", "expected hosts, got none"),
    ],
)
def test_a_line_that_is_no_host_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(RequestError) as caught:
        read_hostfile(path)
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "alpha,", "alpha:22,beta", "alpha;rm", "-alpha", "-Fme@alpha", "a b", "$(id)"])
def test_an_entry_that_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"--hosts .*: expected a host"):
        split_hosts(text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--hostfile .*none: No such file or directory; name a text file"):
        read_hostfile(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="it is no text; name a text file"):
        read_hostfile(tmp_path / "bytes")


def test_fewer_hosts_or_slots_than_asked_for_are_refused() -> None:
    listed = [ListedHost("alpha", 2), ListedHost("beta", 1)]
    assert check_slots(listed, 1, 2, "--hosts") == listed[:1]
    with pytest.raises(RequestError, match="expected 3 hosts for --nnodes 3, got 2: alpha, beta"):
        check_slots(listed, 3, 1, "--hosts")
    with pytest.raises(RequestError, match="host beta has 1 slots, and --nproc-per-node asks for 2 ranks"):
        check_slots(listed, 2, 2, "--hosts")
