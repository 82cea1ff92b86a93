"""Requests: what the user asked to import, checked, and made a module of tensors alone that can be exported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import final

import torch
from torch import Tensor, nn

from maniple.operators.graph.arguments import Arguments
from maniple.operators.graph.nesting import check_plain, leaves, rebuilt, tensors
from maniple.operators.torch_import.closure import Untrained, attributes
from maniple.operators.torch_import.forward_state import changed, plain_attributes, undrawn
from maniple.operators.torch_import.hooks import Unhooked, check_gradients, check_hooks
from maniple.operators.torch_import.substitution import Substitution, counted_norms
from maniple.process.error import RequestError

Examples = Sequence[object] | Mapping[str, object]
Loss = Callable[..., Tensor]


@final
@dataclass
class Request:
    """A module with everything that its step takes.

    Args:
        module: What to import.
        given: The forward's arguments, with the tensors and what else they hold, by names under which no tensor has
            that of a parameter or buffer.
        accepted: What forward calls them.
        judged: The loss's arguments besides the module's output, by names that differ from those of forward's as well.
        targets: What the loss calls them.
        loss: Gives the loss from the module's output and the targets; None where the module gives it.
        by_place: Whether forward is given its arguments by position, as the import was: a hook sees that.
        outputs: The names of what forward returns besides the loss, once it was called.
        assigned: The plain attributes that were tensors, and are others once forward was called.
        changed: The plain attributes that are others, or new, once forward was called.
    """

    module: nn.Module
    given: dict[str, object]
    accepted: tuple[str, ...]
    judged: dict[str, object]
    targets: tuple[str, ...]
    loss: Loss | None
    by_place: bool = False
    outputs: list[str] = field(default_factory=list)
    assigned: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @staticmethod
    def of(module: nn.Module, examples: Examples, loss: Loss | None, targets: Examples | None) -> Request:
        """Check a request.

        Raises:
            RequestError: No module, arguments that forward does not take, targets without a loss, a tensor on another
                device than the module's, or a parameter that cannot be trained here or has a hook.
        """
        if not isinstance(module, nn.Module):
            raise RequestError(f"from_torch: expected a torch.nn.Module, got {type(module).__name__}")
        if isinstance(module, torch.jit.ScriptModule):
            raise RequestError("from_torch: a module of TorchScript has no Python to run; import what it was made from")
        _check_parameters(module)
        check_hooks(module)
        found = _bind(type(module).__name__, module.forward, examples, 0)
        judged: dict[str, object] = {}
        if loss is None and targets is not None:
            raise RequestError("from_torch: targets= is for a loss; pass loss=, or let forward take them")
        if loss is not None:
            judged = _bind("loss", _signature_of(loss), targets if targets is not None else (), 1)
            for name, value in judged.items():
                if not tensors(name, value):
                    raise RequestError(f"from_torch: targets: expected tensors, got {name}={value!r:.60}")
        held = {*_state_names(module)}
        given = {_apart("input", name, value, held, found.keys() - {name}): value for name, value in found.items()}
        others = found.keys() | given.keys() | judged.keys()
        wanted = {
            _apart("target", name, value, held, others if name in found else others - {name}): value
            for name, value in judged.items()
        }
        by_place = not isinstance(examples, Mapping)
        request = Request(module, given, tuple(found), wanted, tuple(judged), loss, by_place)
        request.check()
        return request

    def check(self) -> None:
        """Refuse arguments whose tensors are none that a step could be given.

        Raises:
            RequestError: No tensor at all, one on another device than the module, one that is not dense, two of one
                name, or what would hide tensors.
        """
        held = next(iter([*self.module.parameters(), *self.module.buffers()]), None)
        found: set[str] = set()
        for path, leaf in self._leaves():
            if path in found:
                raise RequestError(f"from_torch: two of the example inputs are called '{path}'; give them other keys")
            found.add(path)
            if not isinstance(leaf, Tensor):
                check_plain(path, leaf)
                continue
            if leaf.layout is not torch.strided:
                raise RequestError(f"from_torch: example input '{path}' is {leaf.layout}; expected a dense tensor")
            if held is not None and leaf.device != held.device:
                raise RequestError(
                    f"from_torch: example input '{path}' is on {leaf.device}, the module on {held.device}; move one"
                )
        if not self.tensors:
            raise RequestError(
                f"from_torch: {self.name}: there is no tensor among the example inputs ({', '.join(self.given)}); "
                "expected at least one, whose dimension 0 counts samples"
            )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of one step: what forward is given, then what the loss is, by dotted name."""
        return {path: leaf for path, leaf in self._leaves() if isinstance(leaf, Tensor)}

    def arguments(self, graph: str, unread: Collection[str]) -> Arguments:
        """How a step's arguments become these tensors.

        Args:
            graph: What the graph is called.
            unread: The tensors that nothing reads.
        """
        every = {**self.given, **self.judged}
        fixed = {path: leaf for path, leaf in self._leaves() if not isinstance(leaf, Tensor)}
        inputs = {name: tuple(path for path, _ in tensors(name, value)) for name, value in every.items()}
        return Arguments(graph, inputs, fixed, frozenset(unread), self.renamed)

    def _leaves(self) -> list[tuple[str, object]]:
        return [leaf for name, value in {**self.given, **self.judged}.items() for leaf in leaves(name, value)]

    @property
    def renamed(self) -> dict[str, str]:
        """By what forward or else the loss calls an argument, what it is called here, where that is another name."""
        judged = dict(zip(self.targets, self.judged, strict=True))
        every = {**judged, **dict(zip(self.accepted, self.given, strict=True))}
        return {theirs: ours for theirs, ours in every.items() if theirs != ours}

    @property
    def name(self) -> str:
        """What messages call the module."""
        return type(self.module).__name__


@final
class Step(nn.Module):
    """The module of a request as a function of tensors: the loss, then the other outputs.

    Args:
        request: What it calls; takes the names of the outputs.
    """

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.module = request.module
        self.request = request
        self.training = request.module.training  # not train(), which changes the modules inside

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The loss and the outputs for the inputs and then the targets, in their order."""
        request = self.request
        values: dict[str, object] = dict(zip(request.tensors, given, strict=True))

        def fill(part: dict[str, object]) -> dict[str, object]:
            return {name: rebuilt(name, value, values.get) for name, value in part.items()}

        before, buffers = dict(attributes(self.module)), dict(self.module.named_buffers())
        held = plain_attributes(self.module)
        with (
            Untrained(request.name, before),
            Unhooked(),
            Substitution(),
            counted_norms(self.module),
            undrawn(request.name, self.module),
        ):
            arguments = dict(zip(request.accepted, fill(request.given).values(), strict=True))
            output = _call(self.module, self.module.forward, arguments, by_place=request.by_place)
            named = _name_outputs(output)
            if request.loss is None:
                loss = _loss(request.name, output, named)
                named = {name: value for name, value in named.items() if value is not loss}
            else:
                targets = dict(zip(request.targets, fill(request.judged).values(), strict=True))
                loss = _scalar(_call(request.loss, _signature_of(request.loss), targets, output))
            check_gradients((loss, *named.values()))
        _write_assigned(request.name, self.module, buffers)
        request.assigned[:] = [path for path, value in attributes(self.module) if before.get(path, value) is not value]
        request.changed[:] = changed(held, plain_attributes(self.module))
        request.outputs[:] = named
        return loss, *named.values()


def _write_assigned(name: str, module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Have a buffer that forward gave another tensor (``self.mean = 0.9 * self.mean + x``) written in place instead.

    The module has its own tensors again, and what they hold is part of the exported program.

    Args:
        name: What messages call the module.
        module: Whose forward was called.
        buffers: Those that it had before, by name.

    Raises:
        RequestError: One has become a tensor of another shape or dtype, or none.
    """
    for path, held in buffers.items():
        owner = module.get_submodule(path.rpartition(".")[0])
        key = path.rpartition(".")[2]
        found = getattr(owner, key, None)
        if found is held:
            continue
        if not isinstance(found, Tensor) or (found.shape, found.dtype) != (held.shape, held.dtype):
            raise RequestError(
                f"from_torch: {name}: forward makes buffer '{path}' {_show(found)}; expected one of shape "
                f"{tuple(held.shape)}, {held.dtype}, as it was before"
            )
        with torch.no_grad():
            held.copy_(found)
        setattr(owner, key, held)


def _call(
    function: Callable[..., object],
    signed: Callable[..., object],
    arguments: dict[str, object],
    *first: object,
    by_place: bool = False,
) -> object:
    """What a function gives for arguments by name; those that a star took go back to it.

    Args:
        function: What is called.
        signed: What has its signature.
        arguments: By name.
        first: What goes before them.
        by_place: Whether they go by position as far as that can be.
    """
    parameters = list(inspect.signature(signed).parameters.values())[len(first) :]
    rest = dict(arguments)
    stars = [found.name for found in parameters if found.kind is found.VAR_POSITIONAL and f"{found.name}_0" in rest]
    by_place, positional = by_place or bool(stars), list(first)
    before = len(positional)
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            while (name := f"{parameter.name}_{len(positional) - before}") in rest:
                positional.append(rest.pop(name))
        elif parameter.name in rest and (
            parameter.kind is parameter.POSITIONAL_ONLY
            or (by_place and parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        ):
            positional.append(rest.pop(parameter.name))
        before = len(positional)
    return function(*positional, **rest)


def _bind(where: str, function: Callable[..., object], examples: Examples, skip: int) -> dict[str, object]:
    """A function's arguments by name."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    signature = inspect.Signature(parameters)
    if isinstance(examples, Tensor):
        raise RequestError(f"from_torch: {where}: expected a tuple or a dict of example inputs, got a tensor: (x,)?")
    named = isinstance(examples, Mapping)
    try:
        bound = signature.bind(**examples) if named else signature.bind(*examples)  # type: ignore[arg-type]
    except TypeError as error:
        takes = ", ".join(str(parameter) for parameter in parameters)
        alone = "; a dict gives arguments by name: pass ({...},) for one argument that is a dict" if named else ""
        raise RequestError(f"from_torch: {where} takes ({takes}): {error}{alone}") from error
    values: dict[str, object] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            values |= {f"{name}_{place}": item for place, item in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            values |= value
        else:
            values[name] = value
    return values


def _state_names(module: nn.Module) -> Iterator[str]:
    """The names of a module's parameters and buffers, of shared ones all."""
    for named in (module.named_parameters, module.named_buffers):
        yield from (name for name, _ in named(remove_duplicate=False))


def _apart(word: str, name: str, value: object, held: Collection[str], others: Collection[str]) -> str:
    """A name for an argument that no other has, and under which no tensor in it has that of a parameter or buffer."""
    while name in others or any(path in held for path, _ in leaves(name, value)):
        name = f"{word}_{name}"
    return name


def _signature_of(loss: Loss) -> Callable[..., object]:
    """What has the loss's signature."""
    return loss.forward if isinstance(loss, nn.Module) else loss


def _scalar(loss: object) -> Tensor:
    """What a loss function gave, which must be a scalar."""
    if not isinstance(loss, Tensor) or loss.shape != ():
        raise RequestError(f"from_torch: expected a scalar from loss=, got {_show(loss)}")
    return loss


def _name_outputs(output: object) -> dict[str, Tensor]:
    """The tensors of a module's output by name."""
    if isinstance(output, Tensor):
        return {"output": output}
    if isinstance(output, Mapping):
        return {str(name): value for name, value in output.items() if isinstance(value, Tensor)}
    fields = getattr(output, "_fields", None)
    if isinstance(output, tuple) and fields is not None:
        return {name: value for name, value in zip(fields, output, strict=True) if isinstance(value, Tensor)}
    if isinstance(output, list | tuple):
        return {f"output_{place}": value for place, value in enumerate(output) if isinstance(value, Tensor)}
    return {name: value for name, value in vars(output).items() if isinstance(value, Tensor)}


def _loss(where: str, output: object, named: dict[str, Tensor]) -> Tensor:
    """The loss among a module's outputs: the output itself, what is called so, or the first of several."""
    found = named.get("loss", next(iter(named.values()), None))
    if found is None or found.shape != () or not found.is_floating_point():
        raise RequestError(
            f"from_torch: {where}.forward gives no loss: expected a scalar, or an output whose .loss or first element "
            f"is one, got {_show(output)}; return the loss, or pass loss=fn(output, *targets) and targets="
        )
    return found


def _show(value: object) -> str:
    """A value as messages show it."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_parameters(module: nn.Module) -> None:
    """Refuse parameters that no optimizer here can train."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise RequestError(
                f"from_torch: parameter '{name}' has no size yet, for it belongs to a lazy module; call the module "
                "once on an example, then import it"
            )
        if parameter.is_complex() or not parameter.is_floating_point():
            raise RequestError(
                f"from_torch: parameter '{name}' is {parameter.dtype}; expected a float. Register it as a buffer, or "
                "keep real and imaginary parts apart"
            )
    _check_apart(dict(module.named_parameters()))


def _check_apart(parameters: Mapping[str, Tensor]) -> None:
    """Refuse parameters that share memory and are two: torch's optimizers update what they share for each of them."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, value in parameters.items():
        if not value.is_meta and value.numel():
            size = value.element_size()
            reach = 1 + sum((extent - 1) * step for extent, step in zip(value.shape, value.stride(), strict=True))
            first = int(value.storage_offset()) * size
            spans.setdefault(value.untyped_storage().data_ptr(), []).append((first, first + int(reach) * size, name))
    for held in spans.values():
        for (_, end, one), (start, _, other) in combinations(sorted(held), 2):
            if start < end and _share(parameters[one], parameters[other]):
                raise RequestError(
                    f"from_torch: parameters '{one}' and '{other}' share memory, and are two to torch and its "
                    "optimizers; make them one parameter at two places (b.weight = a.weight, without .data)"
                )


def _share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage have an element in common; columns of a matrix lie between each other."""
    if one.element_size() != other.element_size():
        return True  # that one sees the other's bytes is no use of parameters
    there = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    there.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(there.as_strided(other.shape, other.stride(), other.storage_offset()).any())
