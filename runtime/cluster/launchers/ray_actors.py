"""Actors of Ray that have agents as their children: a program that starts one on each host, and passes its words on.

    this host                      each host of the placement group
    coordinator ── this program ── actor, with the bundle of its host's cores and GPUs ── agent ── ranks

    python -m maniple.runtime.cluster.launchers.ray_actors hosts --address HOST:PORT
    python -m maniple.runtime.cluster.launchers.ray_actors start --hosts A,B ... -- AGENT'S WORDS   (key: stdin)

An actor has its bundle for as long as its agent lives; if Ray ends the actor, the kernel ends the agent, and it its
ranks. Ray brings the actor's class to its workers by a pickle of its own, and nothing else of Maniple's goes that way.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import selectors
import subprocess
import sys
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__: list[str] = []

OUT, ERR, END = 1, 2, 0
_CHUNK = 1 << 16
_FAILED = 1


@final
class HostActor:
    """The part of a run that is on one host, as Ray knows it. It needs no module but the interpreter's own."""

    def serve(self, argv: Sequence[str], folder: str, tie: str, key: str) -> Iterator[tuple[int, bytes]]:
        """Run the agent; gives what it prints as (descriptor, bytes), and in the end (0, its exit status).

        Args:
            argv: its command.
            folder: the folder that it starts in.
            tie: the program that ties it to this process (`parent_death`).
            key: what it reads from its standard input.
        """
        tied = [sys.executable, "-I", "-S", tie, str(os.getpid()), *argv]
        pipe = subprocess.PIPE
        agent = subprocess.Popen(  # noqa: S603 - the command is what the user asked the launcher to run
            tied, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        with agent, selectors.DefaultSelector() as ready:
            if agent.stdin is None:
                raise TypeError("expected a pipe to the agent, got none")
            agent.stdin.write(key.encode())
            agent.stdin.close()
            for number, stream in ((1, agent.stdout), (2, agent.stderr)):
                if stream is not None:
                    ready.register(stream, selectors.EVENT_READ, number)
            while ready.get_map():
                for entry, _ in ready.select():
                    found = os.read(entry.fd, 1 << 16)
                    if found:
                        yield entry.data, found
                    else:
                        ready.unregister(entry.fileobj)
            yield 0, b"%d" % agent.wait()


class RayProblem(Exception):  # noqa: N818 - it is told to the user, who may have to do something
    """What a user of Ray has to see to."""


def connect(address: str) -> Any:
    """Give Ray, connected to a cluster.

    Args:
        address: where its head is, or `auto` for the cluster that this host is a node of.

    Raises:
        RayProblem: Ray is not installed, or there is no such cluster.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise RayProblem(
            f"expected Ray beside Maniple, got none ({error}); pip install ray for {sys.executable}"
        ) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RayProblem(f"no cluster answers at {address} ({why}); begin one with ray start --head") from None
    return ray


def list_hosts(ray: Any) -> list[dict[str, object]]:
    """Give the nodes that are alive, as `RayHost` has them, by address."""
    found = [
        {
            "address": str(node["NodeManagerAddress"]),
            "cpus": int(node["Resources"].get("CPU", 0)),
            "gpus": int(node["Resources"].get("GPU", 0)),
        }
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(
        found, key=lambda host: [int(part) if part.isdigit() else 0 for part in str(host["address"]).split(".")]
    )


def start(ray: Any, asked: argparse.Namespace, key: str) -> int:
    """Start the agents, pass on what they print until all have ended, and give the worst of their exit statuses.

    Args:
        ray: connected to the cluster.
        asked: the program's arguments.
        key: what each agent reads from its standard input.

    Raises:
        RayProblem: Ray does not give the hosts.
    """
    util = importlib.import_module("ray.util")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    hosts, cpus = asked.hosts.split(","), [int(each) for each in asked.cpus.split(",")]
    bundles = [
        {"CPU": cores, f"node:{host}": 0.001, **({"GPU": asked.gpus} if asked.gpus else {})}
        for host, cores in zip(hosts, cpus, strict=True)
    ]
    group = util.placement_group(bundles, strategy="STRICT_SPREAD")
    try:
        if not group.wait(timeout_seconds=asked.wait):
            raise RayProblem(
                f"Ray gave no placement group of {bundles} within {asked.wait:g} s: others hold what it needs, or a "
                "node is gone; see ray status"
            )
        made, streams, actors = ray.remote(HostActor), {}, []
        for node, cores in enumerate(cpus):
            placed = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
            actor = made.options(num_cpus=cores, num_gpus=asked.gpus, scheduling_strategy=placed).remote()
            actors.append(actor)  # an actor that nothing names any more is ended
            words = [*asked.words[: asked.node_at], "--node-rank", str(node), *asked.words[asked.node_at :]]
            argv = ["env", *asked.variable, *words]
            calling = actor.serve.options(num_returns="streaming")
            streams[calling.remote(argv, asked.folder, asked.tie, key)] = node
        return _pass_on(ray, streams)
    finally:
        util.remove_placement_group(group)


def _pass_on(ray: Any, streams: dict[Any, int]) -> int:
    """Pass on what agents print; one that ended badly is told as the shell of `AgentCommand.reporting` does."""
    worst = 0
    while streams:
        for stream in ray.wait(list(streams), num_returns=1)[0]:
            node, status = streams[stream], None
            try:
                number, found = ray.get(next(stream))
            except StopIteration:
                del streams[stream]
                continue
            except Exception as error:  # noqa: BLE001 - of the actor, or of what Ray says of it
                number, found, status = END, b"", _FAILED
                sys.stderr.write(f"maniple: the actor of node {node}: {' '.join(str(error).split())[:500]}\n")
                del streams[stream]
            if number in {OUT, ERR}:
                target = sys.stdout if number == OUT else sys.stderr
                target.buffer.write(found)
                target.flush()
                continue
            status = int(found) if status is None else status
            if status != 0:
                sys.stderr.write(f"maniple: agent {node} ended with exit status {status}\n")
                sys.stderr.flush()
            worst = max(worst, status if 0 <= status < 256 else _FAILED)
    return worst


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments say, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("hosts").add_argument("--address", default="auto")
    starting = parts.add_parser("start")
    for option in ("--address", "--hosts", "--cpus", "--folder", "--tie"):
        starting.add_argument(option, required=True)
    starting.add_argument("--gpus", type=int, default=0)
    starting.add_argument("--wait", type=float, required=True)
    starting.add_argument("--node-at", type=int, required=True)
    starting.add_argument("--variable", action="append", default=[])
    starting.add_argument("words", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    try:
        if asked.part == "hosts":
            ray = connect(asked.address)
            print(json.dumps(list_hosts(ray)), flush=True)  # noqa: T201 - the result of the program
            status = 0
        else:
            asked.words = asked.words[1:] if asked.words[:1] == ["--"] else asked.words
            key = sys.stdin.readline()
            ray = connect(asked.address)
            status = start(ray, asked, key)
    except RayProblem as problem:
        sys.stderr.write(f"error: {problem}\n")
        return _FAILED
    ray.shutdown()
    return status


if __name__ == "__main__":
    sys.exit(main())
