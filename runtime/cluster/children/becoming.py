"""Becoming: a fork of the nursery goes on as the program of a rank, as if the interpreter had been started with it.

==================  ==================================================================================================
as if just started  arguments, `__main__`, streams, variables, exception hook, states of random numbers, what `ps` shows
as in the nursery   what is imported, the seed of hashes (unless PYTHONHASHSEED says it), `sys.flags`
==================  ==================================================================================================
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from maniple.process import environment
from maniple.process.python_internals import run_module
from maniple.runtime.control import exit_hook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__: list[str] = []

# Where /proc/PID/stat says, after the name, where the arguments begin and end: fields 48 and 49 of proc(5).
_ARGUMENTS = slice(45, 47)


def become(argv: Sequence[str], variables: Mapping[str, str], *, imported: bool) -> None:
    """Run the program of a rank; what it raises goes on to the interpreter, which has nothing left to say of it.

    Args:
        argv: the rank's command.
        variables: what it has in its environment beside this process's.
        imported: whether this process is what the program may go on in; else it begins anew.
    """
    environment.set_variables(variables)
    if not imported:
        _begin_anew(argv)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = _streams()  # type: ignore[misc]
    sys.argv, sys.orig_argv = list(argv[1:]), list(argv)
    _show(argv)
    _draw_seeds()
    exit_hook.install()
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    try:
        if argv[1] == "-m":
            sys.argv[:2] = ["-m"]
            run_module(argv[2])
        else:
            _run_file(argv[1], main)
    except SystemExit:
        raise
    except BaseException as error:
        _tell(error)
        raise


def _run_file(script: str, main: ModuleType) -> None:
    """Run a file as the interpreter runs the one that it is given."""
    path = os.path.join(Path.cwd(), script)  # noqa: PTH118 - `./` stays, as it does in the interpreter's own
    try:
        source = Path(script).read_bytes()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(2) from None
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the program of the user


def _tell(error: BaseException) -> None:
    """Tell of what the program raised and did not catch, without the calls that led to the program."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    sys.excepthook = lambda *_: None  # the interpreter goes on from here: an interrupt, threads, what is left to do


def _streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper, io.TextIOWrapper]:
    """Make the standard streams for what the descriptors are now; unbuffered, as ranks are started."""
    old = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    made: list[io.TextIOWrapper] = []
    for number, (name, was) in enumerate(zip(("<stdin>", "<stdout>", "<stderr>"), old, strict=True)):
        raw: Any = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
        raw.name = name
        encoding, errors = (None, None) if was is None else (was.encoding, was.errors)
        if number == 0:
            stream = io.TextIOWrapper(io.BufferedReader(raw), encoding, errors, write_through=True)
        else:
            stream = io.TextIOWrapper(raw, encoding, errors, newline="\n", write_through=True)
        stream.mode = "r" if number == 0 else "w"  # type: ignore[misc]
        made.append(stream)
    return made[0], made[1], made[2]


def _show(argv: Sequence[str]) -> None:
    """Have `ps` and its like show a command for this process: it is written where the nursery's arguments lie."""
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARGUMENTS])
    text = b"\0".join(map(os.fsencode, argv)) + b"\0"
    if begin and len(text) < end - begin:
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, len(text))


def _draw_seeds() -> None:
    """Have random numbers begin where no other rank's do, as the interpreter sees to for `random`."""
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()


def _begin_anew(argv: Sequence[str]) -> NoReturn:
    """Replace this process by the command."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which the interpreter has ignored, as the new one will
        signal.signal(number, signal.SIG_DFL)
    os.execvp(argv[0], list(argv))  # noqa: S606 - the command is what the user asked the launcher to run
