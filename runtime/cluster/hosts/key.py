"""Keys: the secret of a run, from which all proofs on its wires follow, and how it reaches the hosts.

It is minted for each run and never stands on a command line, which every user of a host can read:

=================  =====================================================================================
source             what it is
=================  =====================================================================================
`-`                the first line of standard input
`fd:N`             the first line of descriptor N, which is closed then
a path             a file that nobody but its owner may read (mode 0600); written where the run begins
=================  =====================================================================================
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from maniple.process import environment
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__: list[str] = []

_FORM = re.compile(r"[0-9a-f]{32}")
_LONGEST = 256


def mint() -> str:
    """Make a key of 128 random bits, as 32 hexadecimal digits."""
    return secrets.token_hex(16)


def default_file(head: str) -> Path:
    """Name the file of the key of a run that meets at an address, for hosts whose users share a home.

    Args:
        head: where the run meets, `HOST:PORT`.

    Raises:
        RequestError: the folder for what is kept is no absolute path.
    """
    return environment.cache_folder() / "keys" / f"{re.sub(r'[^A-Za-z0-9.-]', '-', head)}.key"


@contextmanager
def lying_in(path: Path, key: str, *, replace: bool) -> Iterator[None]:
    """Have a key lie in a file that only its owner can read, as long as this context is open.

    Args:
        path: the file. In the end it is removed if it still holds this key, and else left to whoever wrote it since.
        key: what it holds.
        replace: whether what is there is of a run that is over, as a file named for a port that this run has taken.

    Raises:
        RequestError: the file is there and not to be replaced, or cannot be written.
    """
    _write(path, key, replace=replace)
    try:
        yield
    finally:
        with suppress(OSError, RequestError):
            if read(str(path)) == key:
                path.unlink()


def _write(path: Path, key: str, *, replace: bool) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(key + "\n")
            if replace:
                fresh.replace(path)
            else:
                os.link(fresh, path)  # whole, and never in place of another
        finally:
            fresh.unlink(missing_ok=True)
    except FileExistsError as error:
        raise RequestError(
            f"--key {path}: expected a name for the file of this run's key, got a file that is there; name another, or "
            "remove it if it is the key of a run that is over"
        ) from error
    except OSError as error:
        raise RequestError(f"--key {path}: {error.strerror or error}; name a file that can be written") from error


def read(source: str) -> str | None:
    """Read a key; None where its file is not there (yet).

    Args:
        source: `-`, `fd:N`, or a path.

    Raises:
        RequestError: it holds no key, or others can read it.
    """
    if source == "-":
        return _checked(_first_line(0), source)
    if source.startswith("fd:"):
        number = source.removeprefix("fd:")
        try:
            descriptor = int(number)
            found = _first_line(descriptor)
            os.close(descriptor)
        except (ValueError, OSError) as error:
            raise RequestError(f"--key {source}: expected an open descriptor ({error}); write --key fd:3") from error
        return _checked(found, source)
    try:
        descriptor = os.open(Path(source).expanduser(), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"--key {source}: {error.strerror or error}; name a file of mode 0600") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_mode & 0o077 or status.st_uid not in {os.getuid(), 0}:
            raise RequestError(
                f"--key {source}: expected a file that only its owner can read, got mode "
                f"{status.st_mode & 0o777:04o} of user {status.st_uid}; chmod 600 it, and use a fresh key"
            )
        return _checked(file.read(_LONGEST), source)


def _first_line(descriptor: int) -> bytes:
    """Read a line byte for byte, so that what follows is left to whoever reads next."""
    found = bytearray()
    while len(found) < _LONGEST and (byte := os.read(descriptor, 1)) not in {b"", b"\n"}:
        found += byte
    return bytes(found)


def _checked(found: bytes, source: str) -> str:
    text = found.strip().decode("ascii", "replace")
    if not _FORM.fullmatch(text):
        raise RequestError(f"--key {source}: expected 32 hexadecimal digits, got {len(text)} characters that are not")
    return text
