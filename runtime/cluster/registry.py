"""The launchers by name, for ``--launcher``: built-ins and those of other packages come through one door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.process.registry import Registry, class_check
from maniple.runtime.cluster.host_launcher import HostLauncher
from maniple.runtime.cluster.launcher import Launcher
from maniple.runtime.devices.registry import check_device

if TYPE_CHECKING:
    from maniple.runtime.cluster.launcher import LaunchRequest

__all__: list[str] = []

LAUNCHERS: Registry[type[Launcher]] = Registry(
    "launcher",
    class_check("launcher", Launcher, "see docs/extending.md, A launcher"),  # type: ignore[type-abstract]
)
"""What starts the processes of a run."""


def launches_hosts(launcher: str) -> bool:
    """Say whether a launcher starts an agent on each host, and not ranks.

    Args:
        launcher: as a request names it.

    Raises:
        RequestError: there is none of the name.
    """
    return issubclass(LAUNCHERS.lookup(launcher.partition(":")[0]), HostLauncher)


def count_hosts(launcher: str) -> int:
    """Give how many hosts a launcher of hosts has.

    Args:
        launcher: as a request names it.

    Raises:
        RequestError: it has none, or is no launcher of hosts.
    """
    name, _, argument = launcher.partition(":")
    made = LAUNCHERS.lookup(name)(argument)
    if not isinstance(made, HostLauncher):
        raise RequestError(f"launcher {name!r} starts ranks, not hosts; give --nnodes")
    return made.count()


def make_launcher(request: LaunchRequest) -> Launcher:
    """Make the launcher that a request names, such as `local`, or with an argument `ssh:alpha,beta`.

    Raises:
        RequestError: there is none of the name (names the nearest), it refuses its argument, or the request asks for
            what it cannot give.
    """
    name, _, argument = request.launcher.partition(":")
    made = LAUNCHERS.lookup(name)(argument)
    if request.bind and not (made.same_host or isinstance(made, HostLauncher)):
        raise RequestError(
            f"--bind: the cores are those of this host, where launcher {name!r} may start nothing; leave --bind out"
        )
    if request.report and not (made.same_host or isinstance(made, HostLauncher)):
        raise RequestError(
            f"--report: ranks write it to a file of this host, where launcher {name!r} may start nothing; leave it "
            "out, and call trainer.report() in the program"
        )
    if made.same_host:
        check_device(request.device)
    return made
