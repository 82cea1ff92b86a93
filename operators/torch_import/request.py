"""Requests: what the user asked to import, checked, and made a module of tensors alone that can be exported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn

from maniple.operators.torch_import.hooks import check_hooks
from maniple.regions.error import RequestError

Examples = Sequence[object] | Mapping[str, object]
Loss = Callable[..., Tensor]


@final
@dataclass
class Request:
    """A module with everything that its step takes.

    Args:
        module: What to import.
        fixed: The forward's arguments that are no tensors, by name.
        inputs: The tensors of one step, by the names of the forward's arguments.
        targets: The tensors that only the loss takes, by name.
        loss: Gives the loss from the module's output and the targets; None where the module gives it.
        outputs: The names of what forward returns besides the loss, once it was called.
    """

    module: nn.Module
    fixed: dict[str, object]
    inputs: dict[str, Tensor]
    targets: dict[str, Tensor]
    loss: Loss | None
    outputs: list[str] = field(default_factory=list)

    @staticmethod
    def of(module: nn.Module, examples: Examples, loss: Loss | None, targets: Examples | None) -> Request:
        """Check a request.

        Raises:
            RequestError: No module, arguments that forward does not take, targets without a loss, a tensor on another
                device than the module's, or a parameter that cannot be trained here or has a hook.
        """
        if not isinstance(module, nn.Module):
            raise RequestError(f"from_torch: expected a torch.nn.Module, got {type(module).__name__}")
        _check_parameters(module)
        _check_norms(module)
        check_hooks(module)
        found, fixed = _bound(type(module).__name__, module.forward, examples, 0)
        given: dict[str, Tensor] = {}
        if loss is None and targets is not None:
            raise RequestError("from_torch: targets= is for a loss; pass loss=, or let forward take them")
        if loss is not None:
            given, more = _bound("loss", _signed(loss), targets if targets is not None else (), 1)
            if more:
                raise RequestError(f"from_torch: targets: expected tensors, got {next(iter(more))}={more}")
        if clash := sorted(found.keys() & given.keys()):
            given = {(f"target_{name}" if name in clash else name): value for name, value in given.items()}
        _check_devices(module, {**found, **given})
        return Request(module, fixed, found, given, loss)

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
        self.train(request.module.training)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The loss and the outputs for the inputs and then the targets, in their order."""
        request = self.request
        values = iter(tensors)
        arguments = {name: next(values) for name in request.inputs}
        output = _call(self.module, {**arguments, **request.fixed})
        named = _named(output)
        if request.loss is None:
            loss = _loss(request.name, output, named)
            named = {name: value for name, value in named.items() if value is not loss}
        else:
            loss = request.loss(output, *(next(values) for _ in request.targets))
            if not isinstance(loss, Tensor) or loss.shape != ():
                raise RequestError(f"from_torch: expected a scalar from loss=, got {_shown(loss)}")
        request.outputs[:] = named
        return loss, *named.values()


def _call(module: nn.Module, arguments: dict[str, object]) -> object:
    """The module's output; arguments that a star took go back to it."""
    positional: list[object] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            place = 0
            while f"{parameter.name}_{place}" in arguments:
                positional.append(arguments.pop(f"{parameter.name}_{place}"))
                place += 1
        elif parameter.kind is parameter.POSITIONAL_ONLY or (positional and parameter.name in arguments):
            positional.append(arguments.pop(parameter.name))
    return module(*positional, **arguments)


def _bound(
    where: str, function: Callable[..., object], examples: Examples, skip: int
) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The tensors among a function's arguments, by name, and the other arguments."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    signature = inspect.Signature(parameters)
    if isinstance(examples, Tensor):
        raise RequestError(f"from_torch: {where}: expected a tuple or a dict of example inputs, got a tensor: (x,)?")
    try:
        named = isinstance(examples, Mapping)
        bound = signature.bind(**examples) if named else signature.bind(*examples)  # type: ignore[arg-type]
    except TypeError as error:
        takes = ", ".join(str(parameter) for parameter in parameters)
        raise RequestError(f"from_torch: {where} takes ({takes}): {error}") from error
    values: dict[str, object] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            values |= {f"{name}_{place}": item for place, item in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            values |= value
        else:
            values[name] = value
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in values.items() if name not in tensors}


def _signed(loss: Loss) -> Callable[..., object]:
    """What has the loss's signature."""
    return loss.forward if isinstance(loss, nn.Module) else loss


def _named(output: object) -> dict[str, Tensor]:
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
            f"is one, got {_shown(output)}; return the loss, or pass loss=fn(output, *targets) and targets="
        )
    return found


def _shown(value: object) -> str:
    """A value as messages show it."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_parameters(module: nn.Module) -> None:
    """Refuse parameters that no optimizer here can train."""
    for name, parameter in module.named_parameters():
        if parameter.is_complex() or not parameter.is_floating_point():
            raise RequestError(
                f"from_torch: parameter '{name}' is {parameter.dtype}; expected a float. Register it as a buffer, or "
                "keep real and imaginary parts apart"
            )


def _check_norms(module: nn.Module) -> None:
    """Refuse norms whose running statistics an exported program does not have.

    A momentum of None is a count of batches, which torch.export takes for a number to branch on; and what an instance
    norm writes to its statistics is in no program.
    """
    for name, part in module.named_modules():
        alone = isinstance(part, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
        if alone and part.training and part.track_running_stats:
            raise RequestError(
                f"from_torch: '{name}' has track_running_stats=True, and torch.export does not say what an instance "
                "norm writes to them; make it without, or import it in evaluation mode"
            )
        norm = isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
        if norm and part.training and part.track_running_stats and part.momentum is None:
            raise RequestError(
                f"from_torch: '{name}' has momentum=None, an average over all batches that depends on their count; "
                "give it a momentum, or import it in evaluation mode"
            )


def _check_devices(module: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Refuse inputs on another device than the module's parameters and buffers."""
    held = next(iter([*module.parameters(), *module.buffers()]), None)
    for name, value in inputs.items():
        if held is not None and value.device != held.device:
            raise RequestError(
                f"from_torch: example input '{name}' is on {value.device}, the module on {held.device}; move one"
            )
