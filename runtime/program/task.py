"""Tasks: functions whose use of regions is declared in their signature."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, get_args, get_origin, get_type_hints, overload

import torch

from maniple.process.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.runtime.program.variant import Variant, make_variant

__all__: list[str] = []

P = ParamSpec("P")
R = TypeVar("R")

Read = Annotated[torch.Tensor, READ]
"""The task reads the rectangle that the argument names."""
WriteDiscard = Annotated[torch.Tensor, WRITE_DISCARD]
"""The task writes every element, and does not care what was there."""
ReadWrite = Annotated[torch.Tensor, READ_WRITE]
"""The task reads and writes."""
ReduceSum = Annotated[torch.Tensor, reduce("+")]
"""The task adds to the rectangle: it sees zeros, and what it leaves there is folded in."""
ReduceProduct = Annotated[torch.Tensor, reduce("*")]
"""The task multiplies into the rectangle: it sees ones."""
ReduceMin = Annotated[torch.Tensor, reduce("min")]
"""The task takes minima into the rectangle: it sees the greatest value of the dtype."""
ReduceMax = Annotated[torch.Tensor, reduce("max")]
"""The task takes maxima into the rectangle: it sees the least value of the dtype."""


NO_DEFAULT = inspect.Parameter.empty
"""What stands for the default of a parameter that has none."""


class _ColorMark:
    """Marks a parameter that receives the point of the launch domain."""


Color = Annotated[tuple[int, ...], _ColorMark()]
"""The task is told which point of the launch domain it is."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a task.

    Args:
        name: its name.
        privilege: how the task uses the region given for it; None for a plain value.
        is_color: whether it receives the point of the launch domain.
        default: the value where a launch gives none; `NO_DEFAULT` where it must.
    """

    name: str
    privilege: Privilege | None
    is_color: bool = False
    default: object = NO_DEFAULT


@dataclass(eq=False)
class Task(Generic[P, R]):
    """A registered function: its parameters with their privileges, and a body per variant.

    Args:
        name: module and qualified name.
        function: the body of the variant `cpu`.
        parameters: in the order of the signature.
        version: hash of the sources of all bodies, so that ranks with different code are told apart.
        variants: the bodies by name.
    """

    name: str
    function: Callable[P, R]
    parameters: tuple[Parameter, ...]
    version: str
    variants: dict[str, Variant] = field(default_factory=dict)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the body directly, outside the runtime."""
        return self.function(*args, **kwargs)

    def complete_arguments(self, args: Sequence[object]) -> Sequence[object]:
        """The arguments of a launch, with the defaults of the parameters that were left out at the end.

        Args:
            args: for each parameter but that of the colour, from the first.
        """
        given = (parameter for parameter in self.parameters if not parameter.is_color)
        missing = [parameter.default for parameter in given][len(args) :]
        return args if NO_DEFAULT in missing else (*args, *missing)

    def __repr__(self) -> str:
        """Print the signature with privileges."""
        return f"<task {self}>"

    def __str__(self) -> str:
        """Print the signature with privileges."""
        shown = (f"{p.name}: {p.privilege}" if p.privilege is not None else p.name for p in self.parameters)
        return f"{self.name}({', '.join(shown)})"

    def variant(
        self, kind: str, *, name: str | None = None, captured: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register another body for the same task; mappers choose among those for a processor by name.

        Args:
            kind: `cpu`, `numba`, `cuda` or `numba.cuda`; says where the body runs and what it is given.
            name: the variant's name, if it is not its kind's.
            captured: that the body does nothing but put work into the GPU's stream, the same in every run, and returns
                nothing: a replay may then issue that work again without calling the body.

        Raises:
            RequestError: there is no such kind, it has nothing to capture, or the parameters are not those of the task.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            given = tuple(inspect.signature(function).parameters)
            if given != tuple(parameter.name for parameter in self.parameters):
                shown = f"variant {name or kind!r} of task {self.name}"
                raise RequestError(f"{shown} has parameters {given}; expected those of the task: {self}")
            self.variants[name or kind] = make_variant(kind, function, captured=captured)
            self.version = hashlib.blake2b((self.version + _version(function)).encode(), digest_size=8).hexdigest()
            return function

        return register


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(*, name: str | None = None) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    function: Callable[P, R] | None = None, /, *, name: str | None = None
) -> Task[P, R] | Callable[[Callable[P, R]], Task[P, R]]:
    """Make a task of a function whose parameters say how it uses regions.

    A parameter annotated `Read`, `WriteDiscard`, `ReadWrite` or `Reduce...` is given a region or a partitioned region
    at launch, and the body sees a torch tensor that views an instance. Others are plain values. Running a notebook cell
    again replaces the task of that name.

    Raises:
        RequestError: a parameter is variadic, or has no annotation where a region could be meant.
    """
    if function is None:
        return lambda chosen: _make(chosen, name)
    return _make(function, name)


def _make(function: Callable[P, R], name: str | None) -> Task[P, R]:
    hints = get_type_hints(function, include_extras=True)
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            msg = f"task {function.__qualname__}: parameter {parameter} is variadic; declare each argument by name"
            raise RequestError(msg)
        parameters.append(_parameter(parameter, hints.get(parameter.name)))
    chosen = name or f"{function.__module__}.{function.__qualname__}"
    made = Task(chosen, function, tuple(parameters), _version(function))
    made.variants["cpu"] = make_variant("cpu", function)
    return made


def _parameter(parameter: inspect.Parameter, hint: object) -> Parameter:
    if get_origin(hint) is Annotated:
        for mark in get_args(hint)[1:]:
            if isinstance(mark, Privilege):
                return Parameter(parameter.name, mark)
            if isinstance(mark, _ColorMark):
                return Parameter(parameter.name, None, is_color=True)
    return Parameter(parameter.name, None, default=parameter.default)


def _version(function: Callable[..., object]) -> str:
    """Hash a function's source, or its bytecode where there is no source (as in a REPL)."""
    try:
        source = inspect.getsource(function).encode()
    except (OSError, TypeError):
        source = function.__code__.co_code
    return hashlib.blake2b(source, digest_size=8).hexdigest()
