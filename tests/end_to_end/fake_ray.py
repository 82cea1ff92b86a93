"""Stands for Ray, as the module of a package of that name: its nodes are namespaces, its actors are programs in them.

FAKE_HOSTS has what each node is, as for `fake_starter.py`. Called as a program it is the worker of an actor: it takes
the actor's class from the module that its argument names and the arguments of a call as JSON from its input.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

KNOWN = dict(word.split("=") for word in os.environ.get("FAKE_HOSTS", "").split())
BROKEN = os.environ.get("FAKE_BROKEN")  # a host without Python there
COMING: queue.Queue[tuple[Stream, list[object] | None]] = queue.Queue()


class Group:
    """A placement group."""

    def __init__(self, bundles: list[dict[str, float]], strategy: str) -> None:
        assert strategy == "STRICT_SPREAD"
        self.hosts = [next(name[5:] for name in bundle if name.startswith("node:")) for bundle in bundles]
        self.fits = all(bundle["CPU"] <= 1 and host in KNOWN for bundle, host in zip(bundles, self.hosts, strict=True))
        with Path(os.environ["FAKE_WORDS"]).open("a", encoding="utf-8") as file:
            file.write("\0".join([*sys.argv, json.dumps(bundles)]) + "\n")

    def wait(self, timeout_seconds: float) -> bool:
        return self.fits and "FAKE_TAKEN" not in os.environ


class Placed:
    """Where an actor belongs."""

    def __init__(self, group: Group, placement_group_bundle_index: int) -> None:
        self.host = group.hosts[placement_group_bundle_index]


class Stream:
    """What a call of an actor gives, part by part."""

    def __init__(self, host: str, argv: list[str], *arguments: str) -> None:
        words = ["false" if host == BROKEN and word == sys.executable else word for word in argv]
        name, module = KNOWN[host], sys.modules["__main__"].__spec__
        assert module is not None
        become = ["unshare", "--uts", "sh", "-c", f'hostname {name.rpartition("-")[2]}; exec "$@"', "sh"]
        command = ["ip", "netns", "exec", name, *become, sys.executable, __file__, module.name]
        self.worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.parts: list[list[object] | None] = []
        assert self.worker.stdin is not None
        self.worker.stdin.write(json.dumps([words, *arguments]).encode())
        self.worker.stdin.close()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.worker.stdout is not None
        for line in self.worker.stdout:
            COMING.put((self, json.loads(line)))
        self.worker.wait()
        COMING.put((self, None))

    def __next__(self) -> tuple[object, bytes]:
        part = self.parts.pop(0)
        if part is None:
            raise StopIteration
        return part[0], str(part[1]).encode("latin-1")


class Method:
    """A method of an actor."""

    def __init__(self, host: str) -> None:
        self.host = host

    def options(self, num_returns: str) -> Method:
        assert num_returns == "streaming"
        return self

    def remote(self, argv: list[str], *arguments: str) -> Stream:
        return Stream(self.host, argv, *arguments)


class Actor:
    """An actor, or its class."""

    serve: Method

    def options(self, num_cpus: float, num_gpus: float, scheduling_strategy: Placed) -> Actor:
        placed = Actor()
        placed.serve = Method(scheduling_strategy.host)
        return placed

    def remote(self) -> Actor:
        return self


def init(address: str, log_to_driver: bool, logging_level: str) -> None:
    if not KNOWN:
        raise ConnectionError("Could not find any running Ray instance.")


def shutdown() -> None:
    pass


def nodes() -> list[dict[str, object]]:
    return [{"NodeManagerAddress": host, "Alive": True, "Resources": {"CPU": 1.0}} for host in KNOWN]


def remote(_: type) -> Actor:
    return Actor()


def wait(streams: Sequence[Stream], num_returns: int) -> tuple[list[Stream], list[Stream]]:
    stream, part = COMING.get()
    stream.parts.append(part)
    return [stream], [other for other in streams if other is not stream]


def get(part: tuple[object, bytes]) -> tuple[object, bytes]:
    return part


if __name__ == "__main__":
    for number, found in import_module(sys.argv[1]).HostActor().serve(*json.load(sys.stdin)):
        print(json.dumps([number, found.decode("latin-1")]), flush=True)  # noqa: T201 - the driver reads it
else:
    util, scheduling = ModuleType("ray.util"), ModuleType("ray.util.scheduling_strategies")
    util.placement_group, util.remove_placement_group = Group, lambda group: None  # type: ignore[attr-defined]
    scheduling.PlacementGroupSchedulingStrategy = Placed  # type: ignore[attr-defined]
    sys.modules.update({"ray.util": util, "ray.util.scheduling_strategies": scheduling})
