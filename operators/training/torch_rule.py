"""Optimizers of torch that go element by element, as updates of blocks.

Of classes whose arithmetic ``torch_rule_kernels`` has, contiguous blocks on one core or on CUDA are updated in one
fused pass. Otherwise torch's own step runs on each block.

Whether one does is found out by a trial: three steps of a small matrix, and of its halves by themselves, in place in
memory of its shape. Its rows are cut, and its columns, which are no contiguous memory. What differs, what writes
outside its half, what keeps other state than tensors of the parameter's shape and the number of steps, and what cannot
take a step by itself is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, final

from maniple.operators.training.block import Block, can_share_kernel
from maniple.operators.training.loss_scale import LossScale
from maniple.operators.training.optimizer import AbstractOptimizer, Groups, State, frozen_option
from maniple.process.error import RequestError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from maniple.operators.training.element_rule import ElementRule

__all__: list[str] = []

STEP = "step"
"""What torch calls the number of steps that a parameter has seen; it enters with the numbers."""
REFUSED: Mapping[str, str] = {
    "fused": "torch's fused kernels read a block as contiguous memory, and would write into others",
    "capturable": "the number of steps enters from the host",
    "differentiable": "an update is no part of a graph of autograd",
}
"""Arguments of torch's optimizers that an update of blocks cannot have, and why."""


@final
@dataclass(frozen=True, slots=True)
class TorchRule(AbstractOptimizer):
    """An optimizer of `torch.optim` that goes element by element.

    Args:
        kind: Its name there.
        options: Its arguments, by name.
        clip_norm: See ``AbstractOptimizer``.
        clip_value: See ``AbstractOptimizer``.
        loss_scale: See ``AbstractOptimizer``.
        groups: Arguments by pattern of names, ``{"*.bias": {"weight_decay": 0.0}}``.

    Raises:
        RequestError: There is no such optimizer, it takes no such arguments, or it does not go element by element.
    """

    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    clip_norm: float | None = field(default=None, kw_only=True)
    clip_value: float | None = field(default=None, kw_only=True)
    loss_scale: LossScale | None = field(default=None, kw_only=True)
    groups: Mapping[str, Mapping[str, Any]] | tuple[Any, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple((name, frozen_option(value)) for name, value in self.options))
        for name, value in self.options:
            if name in REFUSED and value:
                raise RequestError(
                    f"torch.optim.{self.kind}: {name}={value!r} is not for updates of blocks: {REFUSED[name]}; "
                    "leave it out"
                )
            if not isinstance(value, Hashable):
                raise RequestError(f"torch.optim.{self.kind}: {name}: expected a number or a flag, got {value!r}")
        _trial(self.kind, self.options)
        self._check()

    @property
    def title(self) -> str:
        """The name of torch's class."""
        return self.kind

    @property
    def numbers(self) -> tuple[str, ...]:  # type: ignore[override]
        """What of the arguments is a number, and may change from step to step."""
        pairs = self.pairs
        return tuple(part for name in self.arguments() for part in pairs.get(name, (name,)))

    @property
    def pairs(self) -> Mapping[str, tuple[str, ...]]:  # type: ignore[override]
        """Arguments that hold several numbers."""
        found = {name: value for name, value in self.arguments().items() if isinstance(value, tuple)}
        return {name: tuple(f"{name}[{n}]" for n in range(len(value))) for name, value in found.items()}

    def arguments(self) -> dict[str, Any]:
        """The numbers as torch's arguments, by name."""
        return dict(_trial(self.kind, self.options)[0])

    @property
    def states(self) -> tuple[State, ...]:
        """What torch keeps of a parameter, but for the number of steps."""
        return tuple(State(name) for name in _trial(self.kind, self.options)[1])

    def stays_zero(self, name: str) -> bool:
        """Whether a number is 0 and torch keeps more of a parameter where it is another, by a trial."""
        if self.arguments()[name] != 0:
            return False
        try:
            other = self.with_options({name: 0.5})
        except RequestError:  # no such number is taken, so it tells nothing of the state
            return False
        return not {*other.state_names} <= {*self.state_names}

    @property
    def flops(self) -> int:
        """The operations that the update of one element counts for: about as many as Adam's."""
        return 14

    @property
    def options_of_groups(self) -> frozenset[str]:
        """Torch's arguments."""
        return frozenset(_trial(self.kind, self.options)[2])

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same with other arguments, and without groups."""
        return replace(self, options=tuple({**dict(self.options), **options}.items()), groups=())

    def bind_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        states: tuple[Tensor, ...],
        cores: int,
        row: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_update``; torch's step of the block where there is no fused pass."""
        return self.bind_updates([Block(parameter, gradient, states)], cores, row, squares)

    @property
    def rule(self) -> ElementRule | None:
        """See ``AbstractOptimizer.rule``; None of a class that is not known, or has other numbers in this torch."""
        from maniple.operators.training.torch_rule_kernels import RULES

        known = RULES.get(self.kind)
        return known.rule if known is not None and known.numbers == self.numbers else None

    @property
    def maximize(self) -> bool:
        """Whether it goes up the gradient."""
        return bool(self.option("maximize"))

    def option(self, name: str) -> Any:
        """An argument that is no number, by name."""
        return dict(self.options).get(name, False)

    def bind_updates(
        self, blocks: Sequence[Block], cores: int, row: Tensor | None = None, squares: Tensor | None = None
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_updates``; one fused pass, or one step of torch's for all."""
        if row is None:
            raise RequestError(f"torch.optim.{self.kind}: an update needs the numbers of the step")
        from maniple.operators.operator.host_memory import in_host_memory
        from maniple.operators.operator.kernel_scratch import CallSequence

        rule, tensors = self.rule, [tensor for block in blocks for tensor in block.tensors]
        if rule is not None and cores == 1 and all(each.is_contiguous() and in_host_memory(each) for each in tensors):
            calls = CallSequence()
            for block in blocks:
                calls.then(rule.bind(self, block, row, squares))
            return calls.bind()
        if rule is not None and can_share_kernel(blocks):
            return super(TorchRule, self).bind_updates(blocks, cores, row, squares)
        return self._bind_step(blocks, row, squares)

    def _bind_step(self, blocks: Sequence[Block], row: Tensor, squares: Tensor | None) -> Callable[[], None]:
        """One step of torch's for all blocks, which on a GPU has kernels for many."""
        import torch

        from maniple.operators.operator.host_memory import in_host_memory
        from maniple.operators.training.clipping import Clipping, bounded_by_torch, factor_there, on_host, scale

        held = [torch.nn.Parameter(block.value, requires_grad=True) for block in blocks]
        theirs = _made(self.kind, self.options, held)
        limits, names, joined, known = Clipping(self).limits, self.state_names, self.pairs, [*self.arguments()]
        upwards = limits.copy()
        upwards[2] = 1.0  # the sign is torch's concern

        def update() -> None:
            nonlocal theirs
            step, *numbers = on_host(row).tolist()
            if step <= 1:  # what it keeps begins anew
                theirs = _made(self.kind, self.options, held)
            else:
                for weight, block in zip(held, blocks, strict=True):
                    state = dict(zip(names, block.states, strict=True))
                    theirs.state[weight] = {STEP: torch.tensor(step - 1, dtype=torch.float32), **state}
            at = iter(numbers)
            theirs.param_groups[0].update(
                {name: tuple(next(at) for _ in joined[name]) if name in joined else next(at) for name in known}
            )
            here = squares is None or in_host_memory(squares)
            factor = scale(on_host(squares)[0], limits[0], 1.0) if here else factor_there(squares, upwards)
            for weight, block in zip(held, blocks, strict=True):
                weight.grad = bounded_by_torch(block.gradient, factor, limits[1])
            theirs.step()
            for weight, block in zip(held, blocks, strict=True):
                _keep(theirs.state[weight], names, block.states)
                weight.grad = None

        return update

    def bind_direction(
        self, parameter: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
    ) -> Callable[[], None]:
        """Not known of an optimizer that is torch's own.

        Raises:
            RequestError: always.
        """
        del parameter, states, cores, row, target
        raise RequestError(
            f"torch.optim.{self.kind}: what its next update subtracts is not known; use SGD, Adam or AdamW of mp.optim"
        )


def by_torch(
    kind: type[torch.optim.Optimizer],
    *,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    loss_scale: LossScale | None = None,
    groups: Mapping[str, Mapping[str, Any]] | Groups = (),
    **options: Any,
) -> TorchRule:
    """Give an optimizer of `torch.optim` that goes element by element, such as Adagrad or RMSprop.

    Args:
        kind: the class.
        clip_norm: see ``AbstractOptimizer``.
        clip_value: see ``AbstractOptimizer``.
        loss_scale: see ``AbstractOptimizer``.
        groups: arguments by pattern of names.
        options: its arguments.

    Raises:
        RequestError: it is none of `torch.optim`, or does not go element by element.
    """
    import torch

    name = getattr(kind, "__name__", repr(kind))
    if getattr(torch.optim, name, None) is not kind:
        raise RequestError(f"optimizer: expected a class of torch.optim, got {name}")
    given = tuple(options.items())
    clips = {"clip_norm": clip_norm, "clip_value": clip_value}
    return TorchRule(name, given, **clips, loss_scale=loss_scale, groups=groups)


def _keep(state: Mapping[str, Any], names: Sequence[str], places: Sequence[Tensor]) -> None:
    """Leave what torch made of a state where it was."""
    for name, kept in zip(names, places, strict=True):
        found = state.get(name)
        if found is None:  # of a momentum that is 0 in the first step
            kept.zero_()
        elif found.data_ptr() != kept.data_ptr():
            kept.copy_(found)


def _made(kind: str, options: tuple[tuple[str, Any], ...], held: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    import torch

    theirs = getattr(torch.optim, kind, None)
    if not (isinstance(theirs, type) and issubclass(theirs, torch.optim.Optimizer)):
        raise RequestError(f"optimizer: expected a class of torch.optim, got {kind}")
    found: torch.optim.Optimizer = theirs(held, **dict(options))
    return found


@lru_cache(maxsize=256)
def _trial(
    kind: str, options: tuple[tuple[str, Any], ...]
) -> tuple[tuple[tuple[str, Any], ...], tuple[str, ...], tuple[str, ...]]:
    """The numbers among an optimizer's arguments, the names of its state, and of all its arguments, by a trial.

    Raises:
        RequestError: it cannot be an update of blocks.
    """
    import torch

    where = f"torch.optim.{kind}"
    chance = torch.Generator().manual_seed(0)
    start, *slopes = [torch.randn(4, 3, generator=chance, dtype=torch.float64) for _ in range(4)]

    def run(value: Tensor, *part: slice) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
        """Take the steps of a part of a value in place, with its state in memory of the same form."""
        held = torch.nn.Parameter(value[part])
        theirs = _made(kind, options, [held])
        for slope in slopes:
            held.grad = slope[part].clone()
            theirs.step()
            state = theirs.state[held]
            for name, kept in state.items():
                if isinstance(kept, torch.Tensor) and kept.shape == held.shape:
                    state[name] = torch.zeros_like(value)[part].copy_(kept)
        return theirs, theirs.state[held]

    whole, rows, columns = start.clone(), start.clone(), start.clone()
    try:
        theirs, state = run(whole)
        for half in (slice(0, 2), slice(2, 4)):
            run(rows, half)
        for half in (slice(0, 2), slice(2, 3)):
            run(columns, slice(None), half)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, OverflowError) as error:
        raise RequestError(f"{where}: cannot update a block by itself: {error}") from None
    if not all(torch.allclose(whole, halves, rtol=1e-12, atol=1e-14) for halves in (rows, columns)):
        raise RequestError(f"{where}: does not go element by element, so no block can be updated alone")
    for name, value in state.items():
        if name != STEP and not (isinstance(value, torch.Tensor) and value.shape == start.shape):
            raise RequestError(f"{where}: its state {name!r} is not of the parameter's shape")
    numbers = tuple(
        (name, value)
        for name, value in theirs.defaults.items()
        if all(isinstance(part, int | float) and not isinstance(part, bool) for part in _parts(value))
    )
    return numbers, tuple(name for name in state if name != STEP), tuple(theirs.defaults)


def _parts(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
