"""Open files: how many a run needs, and what is said where there are too few."""

from __future__ import annotations

import errno
import resource

from maniple.process.error import RunError

__all__: list[str] = []

# Counted in /proc of ranks at their first exchange: 27 and 7 for each rank, of which it inherits 3 and maps 2; a stream
# of large tiles to each and one of each; then the launcher's own, and some room for what the program opens.
BASE, EACH = 40, 10


def count(ranks: int) -> int:
    """Count the files that a rank, or the launcher, may have to have open at once.

    Args:
        ranks: of the run, all on this host.
    """
    return BASE + EACH * ranks


def check(ranks: int) -> None:
    """Refuse a run that the limit of open files would end.

    Raises:
        RunError: says the limit and the number needed.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < count(ranks):
        raise RunError(
            f"a run of {ranks} rank{'s' * (ranks > 1)} on this host needs {count(ranks)} open files of each process, "
            f"and may have {limit}; raise the limit with `ulimit -n {count(ranks)}`, or use fewer ranks"
        )


def are_too_many(error: BaseException) -> bool:
    """Say whether an error is that this process, or the host, has too many files open."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
