"""A launcher of one's own: the nodes of a run are hosts that ssh reaches.

python examples/custom_launcher.py
maniple run --nodes 2 --launcher shell:alpha,beta train.py    # once a package announces it, in its pyproject.toml:

    [project.entry-points."maniple.launchers"]
    shell = "custom_launcher:SshLauncher"
"""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

from maniple import RequestError
from maniple.plugins import LAUNCHERS, Launcher, LocalProcess, RankCommand, RankProcess, Streams


class SshLauncher(Launcher):
    """Node n is the n-th host of its argument; users, keys and ports are in ~/.ssh/config."""

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        self.hosts = argument.split(",")
        if not all(self.hosts):
            raise RequestError(f"launcher shell: expected hosts, got {argument!r}; write --launcher shell:alpha,beta")

    def coordinator_address(self) -> str:
        """Give the address that this host has on the way to the last one."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((self.hosts[-1], 22))  # sends nothing
            return str(way.getsockname()[0])

    def address(self, node: int) -> str:
        """Give the address of a host."""
        return socket.gethostbyname(self.hosts[node % len(self.hosts)])

    def start(self, command: RankCommand, streams: Streams) -> RankProcess:
        """Tell a shell there the variables through ssh's input: a command line is seen by every user of a host."""
        script = [f"unset {name}" for name in sorted(command.without)]
        script += [f"export {name}={shlex.quote(value)}" for name, value in command.variables.items()]
        script += [f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command.argv)}", ""]
        argv = ["ssh", "-o", "BatchMode=yes", self.hosts[command.node % len(self.hosts)], "sh -s"]
        return LocalProcess(argv, streams, told="\n".join(script).encode())


if __name__ == "__main__":
    from three_steps import compare

    LAUNCHERS.register("shell", SshLauncher)
    compare(__file__, launcher="shell:localhost")
