"""Parent death: becomes a command that the kernel ends as soon as the launcher ends, however the launcher ends (Linux).

Run as a file, by `python -I -S parent_death.py PARENT COMMAND [ARGUMENT...]`; it imports nothing of Maniple.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__: list[str] = []

PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """Have the kernel end this process as soon as its parent ends; at once, where that is not its parent any more.

    Args:
        parent: the process id of its parent.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.stderr.write(f"maniple: this rank may outlive its launcher: {os.strerror(ctypes.get_errno())}\n")
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was asked


def main(arguments: list[str]) -> None:
    """Ask for the parent's death to be told as SIGKILL, then become the command.

    Args:
        arguments: the launcher's process id, then the command.
    """
    tie_to(int(arguments[0]))
    os.execvp(arguments[1], arguments[1:])  # noqa: S606 - the command is what the user asked the launcher to run


if __name__ == "__main__":
    main(sys.argv[1:])
