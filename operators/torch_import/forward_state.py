"""Forward's state: what a module's forward changes besides its buffers, in itself or in Python, and no graph has.

| forward | keeps | an import |
|---|---|---|
| ``self.mask = causal(len(x))``, made by the first call alone | what depends on no input | is as it would be without |
| ``self.calls += 1`` | a number that nothing computes with | tells it |
| ``self.calls += 1; return x / self.calls`` | a number | refuses: the next call computes something else |
| ``h = h + self.last; self.last = h.detach()`` | a tensor | refuses |
| ``if random.random() < 0.5``, ``numpy.random.rand()`` | the place in Python's or numpy's random numbers | refuses |
| ``self.generator.random()`` of either | the place in an attribute's | refuses |

Which of these it is shows a second call on tensors without values: what depends on inputs, parameters, buffers or
chance is the same operators with the same numbers, or it is not.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from maniple.operators.graph.nesting import leaves, rebuilt, tensors
from maniple.process.error import RequestError
from maniple.process.torch_internals import DispatchMode, known_values, memoryless

if TYPE_CHECKING:
    from maniple.operators.torch_import.import_request import Step

_OF_TORCH = frozenset(vars(nn.Module()))
_PARAMETERS_AGAIN = "_flat_weights"
"""Where a recurrent layer of torch has its parameters once more: while a module is exported these are others."""
_PLAIN = (Tensor, type(None), bool, int, float, complex, str)


def plain_attributes(module: nn.Module) -> dict[str, object]:
    """The tensors, numbers and strings that a module and those inside hold as plain attributes, by dotted name."""
    return {path: leaf for path, leaf in _attributes(module) if isinstance(leaf, _PLAIN)}


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module and those inside hold as plain attributes, also within containers, by dotted name."""
    for prefix, part in module.named_modules():
        for key, held in vars(part).items():
            if key not in _OF_TORCH and key != _PARAMETERS_AGAIN:
                yield from leaves(f"{prefix}.{key}" if prefix else key, held)


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The names of attributes that are others now, or are new."""
    return [
        path
        for path, value in after.items()
        if path not in before
        or (
            before[path] is not value
            if isinstance(value, Tensor) or isinstance(before[path], Tensor)
            else (type(before[path]), before[path]) != (type(value), value)
        )
    ]


def check_second_call(step: Step, examples: Iterable[Tensor]) -> None:
    """Refuse a module whose second call computes something else than its first.

    Args:
        step: What is called; its attributes are as before afterwards.
        examples: What it takes. Only shapes and types count.

    Raises:
        RequestError: It does; names the attributes that a call changes.
    """
    kept = tuple(step.request.changed)
    with _restored(step.module), memoryless(takes_others=True):
        state = {
            key: torch.empty_like(value, requires_grad=value.requires_grad)
            for key, value in (*step.named_parameters(), *step.named_buffers())
        }
        given = tuple(torch.empty_like(value) for value in examples)
        record = _Record((*state.values(), *given))
        first, second = record.of(step, state, given), record.of(step, state, given)
    step.request.changed[:] = kept
    if first != second:
        raise RequestError(
            f"from_torch: {step.request.name}: forward changes {', '.join(map(repr, kept))}, and what its next call "
            "computes depends on it, which no graph has; keep it in a buffer (register_buffer), or pass it as input"
        )


@final
class _Record(DispatchMode):
    """What calls compute of some tensors, of what comes of these, and of chance: operators and their numbers.

    Args:
        given: The tensors.
    """

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reached = {id(value): value for value in given}  # kept, so that no other gets the number of one
        self._others: dict[int, tuple[Tensor, str]] = {}
        self._origins: dict[str, str] = {}
        self._calls: list[str] = []

    def of(self, step: nn.Module, state: dict[str, Tensor], given: tuple[Tensor, ...]) -> list[str]:
        """What one more call computes, in order."""
        self._calls = []
        with self:
            functional_call(step, state, given)
        return self._calls

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        results = tensors("", [found])
        operands = [*args, *(kwargs or {}).items()]
        call = f"{func}{rebuilt('', operands, lambda _, leaf: self._shown(leaf))}"
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if drawn or any(id(value) in self._reached for _, value in tensors("", operands)):
            self._calls += [call] * bool(results)
            self._reached |= {id(value): value for _, value in results}
        else:  # the same, if it is made of the same: kept from the first call, or made by the second one anew
            for path, value in results:
                origin = self._origins.setdefault(f"{call}{path}{known_values(value)}", f"other {len(self._origins)}")
                self._others[id(value)] = (value, origin)
        return found

    def _shown(self, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        _, origin = self._others.get(id(leaf), (leaf, ""))
        return origin if origin and id(leaf) not in self._reached else tuple(leaf.shape)


@contextmanager
def undrawn(name: str, module: nn.Module) -> Iterator[None]:
    """A stretch in which a module's forward draws no numbers but torch's: these would be one graph's for good.

    Those of a generator that forward makes for itself are not seen.

    Args:
        name: What messages call the module.
        module: Whose generators, which it holds as plain attributes, are looked at too.

    Raises:
        RequestError: It drew some of Python's or numpy's.
    """
    before = _places(module)
    yield
    for owner, place in _places(module).items():
        if before.get(owner, place) != place:
            raise RequestError(
                f"from_torch: {name}: forward draws numbers of {owner}, and a graph would have the same ones in every "
                "step; draw them by torch (torch.rand), or before the step, and pass them as input"
            )


def _places(module: nn.Module) -> dict[str, object]:
    """Where Python's random numbers are, numpy's, if it was imported, and those of a module's own generators."""
    found: dict[str, object] = {"Python's random": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy.random"] = _place(numpy.random.get_state(legacy=False))
    for path, held in _attributes(module):
        if isinstance(held, random.Random):
            found[repr(path)] = held.getstate()
        elif numpy is not None and isinstance(held, numpy.random.Generator):
            found[repr(path)] = _place(held.bit_generator.state)
        elif numpy is not None and isinstance(held, numpy.random.RandomState):
            found[repr(path)] = _place(held.get_state(legacy=False))
    return found


def _place(state: Any) -> list[object]:
    """A state of numpy's, which has arrays inside, as values that can be compared."""
    inside: list[tuple[str, Any]] = leaves("", state)
    return [leaf.tobytes() if hasattr(leaf, "tobytes") else leaf for _, leaf in inside]


@contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """A stretch after which the plain attributes of a module and those inside are what they were."""
    before = [
        (
            part,
            {key: rebuilt("", held, lambda _, leaf: leaf) for key, held in vars(part).items() if key not in _OF_TORCH},
        )
        for part in module.modules()
    ]
    try:
        yield
    finally:
        for part, held in before:
            for key in vars(part).keys() - _OF_TORCH - held.keys():
                delattr(part, key)
            vars(part).update(held)
