"""The environment: what the launcher tells a rank through variables. The only module that reads them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.process.rank_place import RankPlace

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__: list[str] = []

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
PEER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, and whoever starts programs for torch.distributed's `env://`, tells every rank."""
CHOICES = frozenset(
    f"MANIPLE_{name}"
    for name in (
        *("BOUND", "COMPILE", "DETERMINISTIC", "DEVICE", "ENCRYPT_TILES", "INTERFACE", "LOG", "MACHINE", "MAPPER"),
        *("MEMORY", "RECORD", "REPORT", "SHARED", "SHARED_FROM", "TRANSPORT", "VERIFY_TILES", "WAKEUP_PIPES"),
    )
)
"""What a rank is told if it is not as usual: not to be taken over from a run that the launcher is part of."""
HEAP_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@final
@dataclass(frozen=True, slots=True)
class LaunchEnvironment:
    """What a launched rank knows before it joins.

    Args:
        rank: this process, counted over all nodes.
        world_size: number of ranks.
        local_rank: this process, counted within its node.
        node: its node, from 0.
        nodes: number of nodes.
        ranks_per_node: ranks of each node.
        processors: processors of each rank.
        cores: cores of each processor.
        endpoint: where the coordinator's socket is.
        token: secret of this run.
        mapper: name of the mapper to use, None for the default.
        join_timeout_s: seconds that ranks wait for each other.
        record: file for a timeline of the whole run, None for none.
        report: file for what trainers report when they go, None for none.
        deterministic: whether launches that are not traced run in the order of the program.
        shared: descriptors of the files that the ranks of this host share, by rank; none where they share no memory.
        device: what the processors are.
        wakeup_pipes: the pipe of each, to wake it with: where to read and where to write.
        bound: the cores that the rank keeps to; none leaves that to the system.
        machine: file of the machine that stands in place of what is found, None for none.
        log: file that this rank's output goes to, None for none.
        transport: name of what carries tiles to other ranks.
        interface: address of this host under which they reach it.
        shared_from: the first rank of those that share memory; above 0 where nodes are hosts of their own.
        encrypt_tiles: whether nobody on the way can read tiles.
        verify_tiles: whether tiles that were altered on the way are refused.
        memory_bytes: the most that a program may have of each memory, None for all.
        compiles: whether torch compiles what trainers' bodies call.
    """

    rank: int
    world_size: int
    local_rank: int
    node: int
    nodes: int
    ranks_per_node: int
    processors: int
    cores: int
    endpoint: str
    token: str
    mapper: str | None
    join_timeout_s: float
    record: str | None = None
    report: str | None = None
    deterministic: bool = False
    shared: tuple[int, ...] = ()
    device: str = "cpu"
    wakeup_pipes: tuple[tuple[int, int], ...] = ()
    bound: tuple[int, ...] = ()
    machine: str | None = None
    log: str | None = None
    transport: str = "shared"
    interface: str = "127.0.0.1"
    shared_from: int = 0
    encrypt_tiles: bool = False
    verify_tiles: bool = False
    memory_bytes: int | None = None
    compiles: bool = False

    @property
    def spans_hosts(self) -> bool:
        """Whether memory is shared within each node, and not among all ranks."""
        return bool(self.shared) and len(self.shared) < self.world_size

    def to_environ(self) -> dict[str, str]:
        """Give the variables that say this, as `read` reads them."""
        variables = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "MANIPLE_NODE": str(self.node),
            "MANIPLE_NODES": str(self.nodes),
            "MANIPLE_PROCESSORS": str(self.processors),
            "MANIPLE_CORES": str(self.cores),
            "MANIPLE_HEAD": self.endpoint,
            "MANIPLE_TOKEN": self.token,
            "MANIPLE_JOIN_TIMEOUT": repr(self.join_timeout_s),
        }
        optional = {
            "MANIPLE_SHARED": ",".join(map(str, self.shared)),
            "MANIPLE_SHARED_FROM": str(self.shared_from) if self.spans_hosts else None,
            "MANIPLE_DEVICE": self.device if self.device != "cpu" else None,
            "MANIPLE_TRANSPORT": self.transport if self.transport != "shared" else None,
            "MANIPLE_INTERFACE": self.interface if self.interface != "127.0.0.1" else None,
            "MANIPLE_WAKEUP_PIPES": ",".join(str(end) for ends in self.wakeup_pipes for end in ends),
            "MANIPLE_BOUND": ",".join(map(str, self.bound)),
            "MANIPLE_MAPPER": self.mapper,
            "MANIPLE_RECORD": self.record,
            "MANIPLE_LOG": self.log,
            "MANIPLE_REPORT": self.report,
            "MANIPLE_MACHINE": self.machine,
            "MANIPLE_DETERMINISTIC": "1" if self.deterministic else None,
            "MANIPLE_ENCRYPT_TILES": "1" if self.encrypt_tiles else None,
            "MANIPLE_VERIFY_TILES": "1" if self.verify_tiles else None,
            "MANIPLE_MEMORY": None if self.memory_bytes is None else str(self.memory_bytes),
            "MANIPLE_COMPILE": "1" if self.compiles else None,
        }
        return variables | {name: value for name, value in optional.items() if value}


def own_rank(environ: Mapping[str, str] | None = None) -> int | None:
    """Give the rank of this process, as whoever started it says; None where nobody started it as one.

    Args:
        environ: variables by name; default those of this process.

    Raises:
        RequestError: it is no number.
    """
    variables = os.environ if environ is None else environ
    return _integer(variables, "RANK", 0) if is_launched(variables) else None


def is_launched(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether this process is a rank that our launcher or torchrun started.

    Args:
        environ: variables by name; default those of this process.
    """
    variables = os.environ if environ is None else environ
    return "MANIPLE_HEAD" in variables or all(name in variables for name in PEER_VARIABLES)


def read_place(environ: Mapping[str, str] | None = None) -> RankPlace | None:
    """Read what torchrun told this process, or whoever sets the same variables; None where nobody did.

    Args:
        environ: variables by name; default those of this process.

    Raises:
        RequestError: a variable is missing or malformed, or they contradict each other; the message names it.
    """
    variables = os.environ if environ is None else environ
    if "MANIPLE_HEAD" in variables or not is_launched(variables):
        return None
    rank, size = _integer(variables, "RANK", 0), _integer(variables, "WORLD_SIZE", 1)
    local, per_node = _integer(variables, "LOCAL_RANK", 0), _integer(variables, "LOCAL_WORLD_SIZE", 1)
    if rank >= size or size % per_node or rank % per_node != local:
        raise RequestError(
            f"RANK {rank} of WORLD_SIZE {size}, LOCAL_RANK {local} of LOCAL_WORLD_SIZE {per_node}: expected hosts of "
            "as many ranks each, numbered host by host; start them by torchrun with one --nproc-per-node for all"
        )
    attempt = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
    return RankPlace(
        rank=rank,
        world_size=size,
        local_rank=local,
        ranks_per_node=per_node,
        meeting=f"{_text(variables, 'MASTER_ADDR')}:{_integer(variables, 'MASTER_PORT', 1)}",
        run=f"{variables.get('TORCHELASTIC_RUN_ID', 'none')} {attempt}",
        has_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        processors=_integer(variables, "MANIPLE_PROCESSORS", 1) if variables.get("MANIPLE_PROCESSORS") else 1,
        join_timeout_s=_seconds(variables, "MANIPLE_JOIN_TIMEOUT") if variables.get("MANIPLE_JOIN_TIMEOUT") else 60.0,
        device=variables.get("MANIPLE_DEVICE") or "cpu",
        transport=variables.get("MANIPLE_TRANSPORT") or "shared",
        mapper=variables.get("MANIPLE_MAPPER") or None,
        machine=variables.get("MANIPLE_MACHINE") or None,
        record=variables.get("MANIPLE_RECORD") or None,
        encrypt_tiles=variables.get("MANIPLE_ENCRYPT_TILES") == "1",
        verify_tiles=variables.get("MANIPLE_VERIFY_TILES") == "1",
        deterministic=variables.get("MANIPLE_DETERMINISTIC") == "1",
        memory_bytes=_bytes(variables, "MANIPLE_MEMORY"),
        compiles=variables.get("MANIPLE_COMPILE") == "1",
    )


def read(environ: Mapping[str, str] | None = None) -> LaunchEnvironment | None:
    """Read what the launcher told this process; None when it was not launched, or by torchrun.

    Args:
        environ: variables by name; default those of this process.

    Raises:
        RequestError: a variable is missing or malformed; the message names it.
    """
    variables = os.environ if environ is None else environ
    if "MANIPLE_HEAD" not in variables:
        return None
    rank, size = _integer(variables, "RANK", 0), _integer(variables, "WORLD_SIZE", 1)
    nodes = _integer(variables, "MANIPLE_NODES", 1)
    if rank >= size:
        raise RequestError(f"RANK: expected less than WORLD_SIZE {size}, got {rank}; start ranks with maniple run")
    if size % nodes:
        raise RequestError(f"WORLD_SIZE: expected a multiple of MANIPLE_NODES {nodes}, got {size}")
    node, per_node = _integer(variables, "MANIPLE_NODE", 0), size // nodes
    if node != rank // per_node:
        raise RequestError(f"MANIPLE_NODE: expected {rank // per_node} for RANK {rank}, got {node}")
    spans_hosts = "MANIPLE_SHARED_FROM" in variables
    sharing = per_node if spans_hosts else size
    processors, cores = _integer(variables, "MANIPLE_PROCESSORS", 1), _integer(variables, "MANIPLE_CORES", 1)
    return LaunchEnvironment(
        rank=rank,
        world_size=size,
        local_rank=_integer(variables, "LOCAL_RANK", 0),
        node=node,
        nodes=nodes,
        ranks_per_node=per_node,
        processors=processors,
        cores=cores,
        endpoint=variables["MANIPLE_HEAD"],
        token=_text(variables, "MANIPLE_TOKEN"),
        mapper=variables.get("MANIPLE_MAPPER") or None,
        deterministic=variables.get("MANIPLE_DETERMINISTIC") == "1",
        join_timeout_s=_seconds(variables, "MANIPLE_JOIN_TIMEOUT"),
        record=variables.get("MANIPLE_RECORD") or None,
        report=variables.get("MANIPLE_REPORT") or None,
        shared=_numbers(variables, "MANIPLE_SHARED", "descriptors", sharing),
        device=variables.get("MANIPLE_DEVICE") or "cpu",
        wakeup_pipes=_pairs(_numbers(variables, "MANIPLE_WAKEUP_PIPES", "descriptors", 2 * sharing)),
        bound=_numbers(variables, "MANIPLE_BOUND", "cores", processors * cores),
        machine=variables.get("MANIPLE_MACHINE") or None,
        log=variables.get("MANIPLE_LOG") or None,
        transport=variables.get("MANIPLE_TRANSPORT") or "shared",
        interface=variables.get("MANIPLE_INTERFACE") or "127.0.0.1",
        shared_from=node * per_node if spans_hosts else 0,
        encrypt_tiles=variables.get("MANIPLE_ENCRYPT_TILES") == "1",
        verify_tiles=variables.get("MANIPLE_VERIFY_TILES") == "1",
        memory_bytes=_bytes(variables, "MANIPLE_MEMORY"),
        compiles=variables.get("MANIPLE_COMPILE") == "1",
    )


def slurm_hosts(environ: Mapping[str, str] | None = None) -> str:
    """Give the hosts of the Slurm allocation that this process is in, as Slurm lists them; empty outside of one.

    Args:
        environ: variables by name; default those of this process.
    """
    variables = os.environ if environ is None else environ
    return variables.get("SLURM_JOB_NODELIST", "")


def node_of_host(environ: Mapping[str, str] | None = None) -> int:
    """Give which of several hosts this is, as the program says that started one process on each.

    ================  ===================================  ==============================
    started by        which                                processes of this host
    ================  ===================================  ==============================
    Open MPI          OMPI_COMM_WORLD_RANK                 OMPI_COMM_WORLD_LOCAL_SIZE
    MPICH, Intel MPI  PMI_RANK                             MPI_LOCALNRANKS
    srun              SLURM_PROCID, in a step              SLURM_STEP_TASKS_PER_NODE
    ================  ===================================  ==============================

    Args:
        environ: variables by name; default those of this process.

    Raises:
        RequestError: none of them started it, or several processes are on this host.
    """
    variables = os.environ if environ is None else environ
    programs = {
        "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK": "MPI_LOCALNRANKS",
        "SLURM_PROCID": "SLURM_STEP_TASKS_PER_NODE",
    }
    for rank, local in programs.items():
        # The shell of an allocation has most of Slurm's variables, but is no task of a step.
        if rank not in variables or (rank == "SLURM_PROCID" and "SLURM_STEP_ID" not in variables):
            continue
        if variables.get(local, "1").partition("(")[0] != "1":
            raise RequestError(
                f"{local}: expected one process on each host, got {variables[local]}; start one, and say how many "
                "ranks it starts with --nproc-per-node"
            )
        return _integer(variables, rank, 0)
    raise RequestError(
        f"--node-rank: expected a number, since neither srun nor mpirun started this ({', '.join(programs)}); give it"
    )


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Give the folder for what is found out once and kept for later programs of this user; it need not be there.

    It is the one that MANIPLE_CACHE names, or else `maniple` in the one that XDG_CACHE_HOME names (XDG Base Directory
    Specification, 0.8), by default ~/.cache.

    Args:
        environ: variables by name; default those of this process.

    Raises:
        RequestError: MANIPLE_CACHE is no absolute path.
    """
    variables = os.environ if environ is None else environ
    own = variables.get("MANIPLE_CACHE", "")
    if own:
        if not Path(own).is_absolute():
            raise RequestError(f"MANIPLE_CACHE: expected an absolute path, got {own!r}")
        return Path(own)
    shared = Path(variables.get("XDG_CACHE_HOME", ""))
    # The specification has a relative path ignored.
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "maniple"


def sets_heap(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether the user has told the C library how to keep its heap.

    Args:
        environ: variables by name; default those of this process.
    """
    variables = os.environ if environ is None else environ
    return any(variables.get(name) for name in HEAP_VARIABLES)


def copy_variables() -> dict[str, str]:
    """Give a copy of this process's variables, for processes that it starts."""
    return dict(os.environ)


def set_variables(variables: Mapping[str, str]) -> None:
    """Give this process variables beside those that it has, as a process that becomes a rank's must have them."""
    os.environ.update(variables)


def _text(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        beside = "MANIPLE_HEAD" if "MANIPLE_HEAD" in variables else "RANK and MASTER_ADDR"
        how = "maniple run" if beside == "MANIPLE_HEAD" else "torchrun or maniple run"
        raise RequestError(f"{name}: expected a value beside {beside}, got none; start ranks with {how}")
    return variables[name]


def _integer(variables: Mapping[str, str], name: str, least: int) -> int:
    text = _text(variables, name)
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise RequestError(f"{name}: expected an integer of at least {least}, got {text!r}")
    return int(text)


def _bytes(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < 1:
        raise RequestError(f"{name}: expected a number of bytes above 0, got {text!r}")
    return int(text)


def _numbers(variables: Mapping[str, str], name: str, what: str, count: int) -> tuple[int, ...]:
    text = variables.get(name)
    if not text:
        return ()
    found = text.split(",")
    if len(found) != count or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in found):
        raise RequestError(f"{name}: expected {count} {what}, got {text!r}")
    return tuple(map(int, found))


def _pairs(found: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(found[::2], found[1::2], strict=True))


def _seconds(variables: Mapping[str, str], name: str) -> float:
    text = _text(variables, name)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise RequestError(f"{name}: expected seconds above 0, got {text!r}")
    return seconds
