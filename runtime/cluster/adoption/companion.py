"""The companion of the ranks that torchrun started on a host: what the launcher is to ranks that it starts itself.

Run by the first rank of each host, as `python -m`, in a session of its own. It ends when the run is over, or when the
ranks of its host have ended, which it sees without being their parent. That of the first host coordinates the run.

    ranks of this host ── door ── agent ── supervisor ── coordinator          (the first host)
    ranks of this host ── door ── agent ── service ── coordinator elsewhere   (any other)

=============  ====================================================  ==============================
standard       what                                                  from or to
=============  ====================================================  ==============================
input          one line of JSON: arguments, meeting and key if any   the rank that started it
output         one line: meeting and key, or why there are none      likewise
error          how the run ended, if not well                        torchrun's, or the user's
=============  ====================================================  ==============================
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from maniple.process import environment, open_files
from maniple.process.error import ManipleError, RequestError, RunError
from maniple.runtime.cluster.adoption.door import Door
from maniple.runtime.cluster.agent_service import AgentService
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import Event, Finish
from maniple.runtime.cluster.hosts.interface import address_towards, resolve
from maniple.runtime.cluster.hosts.key import mint
from maniple.runtime.cluster.launcher import LaunchRequest
from maniple.runtime.cluster.local import LocalLauncher
from maniple.runtime.cluster.meeting import Meeting, host_name, terms
from maniple.runtime.cluster.phase import Phase
from maniple.runtime.cluster.roster import Roster, Seat
from maniple.runtime.cluster.run import Setting, announce, tell
from maniple.runtime.cluster.supervisor import Supervisor
from maniple.runtime.transports.agent_message import AgentHello
from maniple.runtime.transports.transport import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.process.rank_place import RankPlace
    from maniple.runtime.cluster.agent import Agent

__all__: list[str] = []

# torchrun has its own files of what ranks print.
_LOGS = "torchrun has what ranks printed"
_ENDED_BY_TORCHRUN = "; torchrun ends all ranks by this signal when one of them fails: its report names that one"


def main() -> int:
    """Read what the first rank of this host says, and stand by until the run is over; gives its exit status."""
    place = environment.read_place()
    told: dict[str, object] = json.loads(sys.stdin.readline() or "{}")
    if place is None or not told:
        sys.stderr.write("error: the companion of ranks is started by the first of them, under torchrun\n")
        return 2
    try:
        request = make_request(place, told)
        open_files.check(request.ranks_here)
        if place.node:
            return _follow(place, request, told)
        return _lead(place, request)
    except RequestError as error:
        _answer({"refused": str(error)})
        return 2
    except (ManipleError, OSError) as error:
        _answer({"failed": str(error)})
        return 1


def make_request(place: RankPlace, told: Mapping[str, object]) -> LaunchRequest:
    """Say what torchrun started, as if it was asked of our launcher.

    Args:
        place: of any rank.
        told: `argv` has what the program's own arguments are.

    Raises:
        RequestError: it cannot be started so.
    """
    argv = told.get("argv")
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    return LaunchRequest(
        tuple(words) if words and Path(words[0]).is_file() else ("-m", "maniple", *words[1:]),
        nodes=place.nodes,
        ranks_per_node=place.ranks_per_node,
        processors=place.processors,
        join_timeout_s=place.join_timeout_s,
        mapper=place.mapper,
        deterministic=place.deterministic,
        record=None if place.record is None else Path(place.record),
        transport=place.transport,
        device=place.device,
        encrypt_tiles=place.encrypt_tiles,
        verify_tiles=place.verify_tiles,
        memory_bytes=place.memory_bytes,
        compiles=place.compiles,
        bind=False,  # cores are torchrun's to divide
        machine=None if place.machine is None else Path(place.machine),
        spread=place.nodes > 1,
    )


def _lead(place: RankPlace, request: LaunchRequest) -> int:
    """Coordinate the run, and look after the ranks of this host."""
    own = _own_address(place, request)
    seats = [Seat(host_name(), own, home=True), *(Seat() for _ in range(1, place.nodes))]
    advice = "see that torchrun runs there, and that its ranks reach mp.world()"
    roster = Roster(seats, request.ranks_per_node, terms(request), advice)
    if place.nodes == 1:
        roster = Roster.at_home(1, request.ranks_per_node)
    coordinator = Coordinator(
        request.size, request.ranks_per_node, request.join_timeout_s, request.hang_timeout_s, roster
    )
    token = mint()
    with Supervisor(coordinator, token, None, own) as supervisor:
        setting = _setting(place, supervisor.endpoint, token, own)
        Door(place, request, setting, supervisor.agent)
        announce(request, LocalLauncher())
        port = supervisor.endpoint.rpartition(":")[2]  # ZeroMQ writes the address in IPv6's form
        _answer({"head": f"{own}:{port}", "token": token})
        teller = _Teller(coordinator)
        supervisor.attend(teller.look)
        finish = supervisor.watch()
        teller.tell(finish)
    return finish.status


def _follow(place: RankPlace, request: LaunchRequest, told: Mapping[str, object]) -> int:
    """Look after the ranks of this host, in a run that another coordinates."""
    head, token = str(told["head"]), str(told["token"])
    address, _, port = head.rpartition(":")
    own, starter = address_towards(address), os.getppid()
    meeting = Meeting(place.node, address, int(port), own)
    hello = AgentHello(place.node, place.nodes, place.ranks_per_node, host_name(), own, _LOGS, terms(request))

    def open_door(agent: Agent) -> None:
        Door(place, request, _setting(place, f"tcp://{head}", token, own), agent)

    def see_starter() -> None:
        if os.getppid() != starter:
            raise RunError("the rank that started this ended before the run began")

    _answer({"head": head})
    service = AgentService(meeting, token, hello, request.join_timeout_s, lambda _: "", reread=see_starter)
    try:
        finish = service.serve(open_door)
    except ManipleError as error:  # who asked has its answer already
        finish = Finish(1, str(error), None)
    tell(finish, (), _LOGS, str)
    return finish.status


class _Teller:
    """Says how a run ends as soon as that is decided: torchrun gives its user the prompt back without waiting."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._told = False

    def look(self) -> Sequence[Event]:
        """Say it, if it is decided."""
        if self._coordinator.phase is Phase.STOPPING:
            self.tell(self._coordinator.finish)
        return ()

    def tell(self, finish: Finish) -> None:
        """Say it, once."""
        if not self._told and finish.message is not None:
            self._told = True
            by_torchrun = "was killed by signal 15" in finish.message
            tell(Finish(finish.status, finish.message + _ENDED_BY_TORCHRUN * by_torchrun, None), (), _LOGS, str)


def _own_address(place: RankPlace, request: LaunchRequest) -> str:
    """Give the address of this host under which the others reach it; loopback where there are none."""
    return address_towards(resolve(place.meeting.rpartition(":")[0])) if request.spread else LOOPBACK


def _setting(place: RankPlace, endpoint: str, token: str, own: str) -> Setting:
    first = place.node * place.ranks_per_node
    return Setting(range(first, first + place.ranks_per_node), endpoint, token, Path(), own)


def _answer(told: Mapping[str, str]) -> None:
    """Answer the rank that started this, once, and let go of it."""
    with os.fdopen(os.dup(1), "w") as line:
        line.write(json.dumps(told) + "\n")
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device, by descriptor
        os.dup2(nowhere.fileno(), 1)


if __name__ == "__main__":
    sys.exit(main())
