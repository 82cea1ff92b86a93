"""The prover of factor rules: an operator run whole and split in every legal way must give the same.

For an operator on random operands it compares, in float64, every result and every gradient of each split with those of
the whole run, and the whole run's gradients with differences of its results. It cannot prove a rule right; it finds
wrong ones fast, because a wrong rule is wrong for nearly all small operands, or else for long ones. On long operands it
also changes what a tile is not given, which must not matter (see ``dependence``). The other way round it splits what
the rule keeps whole, and names the splits that would have been right.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from typing import TYPE_CHECKING

import torch

from maniple.operators.graph.differentiation import gradient_operands, gradient_results
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.composite import lower_composites
from maniple.operators.plan.plan import Plan
from maniple.operators.proving.element_dependence import stray
from maniple.operators.proving.tile_run import TileRun
from maniple.operators.rules.configuration import OperatorPlan
from maniple.process.error import ManipleError

if TYPE_CHECKING:
    from maniple.operators.operator.builder import Tensor
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.proving.sample import Sample
    from maniple.operators.rules.bound_rule import BoundRule

__all__: list[str] = []

Operands = Sequence[torch.Tensor | None]

TOLERANCE = 1e-9
STEP = 1e-6
SLOPE_TOLERANCE = 1e-4
HIGHEST = 3
MANY = 16
LONGEST = 200
"""From so many elements of a factor on, only its halves are looked at."""
SLOPED = 1000
"""From so many points on, differences of results say nothing more about gradients."""
_WHAT_A_BODY_RAISES = (ManipleError, RuntimeError, IndexError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class Counterexample:
    """A split that gives something else than the whole.

    Args:
        rule: the rule's text.
        degrees: of the factors that are split.
        what: the result or gradient that differs, or what was raised.
        expected: of the whole run; None where a body raised.
        found: of the split.
        operands: on which it happened.
        stray: what the body depends on and is not given, where that was found.
        kernel: whether what differs is a kernel from its function, and not a split from the whole.
    """

    rule: str
    degrees: dict[str, int]
    what: str
    expected: torch.Tensor | None
    found: torch.Tensor | None
    operands: tuple[torch.Tensor | None, ...]
    stray: str = ""
    kernel: bool = False

    def __str__(self) -> str:
        """Print the split, the worst element, and all tensors."""
        degrees = " ".join(f"{name}={degree}" for name, degree in self.degrees.items()) or "whole"
        lines = [f"rule   {self.rule}", f"split  {degrees}", f"wrong  {self.what}"]
        if self.stray:
            lines.append(f"reads  {self.stray}")
        if self.expected is not None and self.found is not None:
            error = (self.found - self.expected).abs().nan_to_num(nan=float("inf"))
            at = torch.unravel_index(error.argmax(), error.shape) if error.ndim else ()
            index = tuple(int(place) for place in at)
            whole, split = self.expected[index].item(), self.found[index].item()
            first, second = ("function", "kernel") if self.kernel else ("whole", "split")
            lines.append(f"at     {list(index)}: {first} {whole:.6g}, {second} {split:.6g}")
            lines += [f"{first}\n{self.expected}", f"{second}\n{self.found}"]
        lines += [f"operand {place}\n{operand}" for place, operand in enumerate(self.operands) if operand is not None]
        return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """What the prover found.

    Args:
        splits: how many runs were compared with a whole one.
        counterexample: the first split that is wrong; None where none was found.
        allowed: splits that would be right and that the rule does not allow, as ``k`` or, for a fold, ``k:max``.
        extents: the extents of every factor that were tried, in rule order.
    """

    splits: int
    counterexample: Counterexample | None
    allowed: tuple[str, ...]
    extents: tuple[tuple[str, tuple[int, ...]], ...] = ()


def prove(
    operator: AbstractOperator,
    samples: Iterable[Operands],
    seed: int = 0,
    long: Iterable[Sample] = (),
    plain: AbstractOperator | None = None,
) -> Verdict:
    """Compare an operator with itself, split in every legal way up to three parts of each factor.

    Args:
        operator: what to look at.
        samples: operands to run it on, floats in float64. Extents that three does not divide make uneven parts.
        seed: of the results' gradients.
        long: operands with many elements along one factor, which is split, each other factor only once.
        plain: the operator without kernels of its own, which whole has to give the same.
    """
    count = 0
    trials: list[_Trial] = []
    everything = chain(((operands, "") for operands in samples), ((sample.operands, sample.long) for sample in long))
    for number, (operands, factor) in enumerate(everything):
        trial = _Trial(operator, operands, seed + number)
        trials.append(trial)
        if plain is not None:
            count += 1
            wrong = trial.unlike(_Trial(plain, operands, seed + number))
            if wrong is not None:
                return Verdict(count, wrong, (), _list_extents(trials))
        for degrees in _long_splits(trial.bound, factor) if factor else _splits(trial.bound, HIGHEST):
            count += 1
            wrong = trial.compare(degrees) or (trial.strays(degrees) if degrees == {factor: 2} else None)
            if wrong is not None:
                return Verdict(
                    count, replace(wrong, stray=wrong.stray or trial.reach(degrees)), (), _list_extents(trials)
                )
        slope = trial.slope() if trial.volume < SLOPED else None
        if slope is not None:
            return Verdict(count, slope, (), _list_extents(trials))
    return Verdict(count, None, _find_allowed(trials), _list_extents(trials))


def _list_extents(trials: Sequence[_Trial]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The extents of every factor in some trials."""
    found: dict[str, set[int]] = {}
    for trial in trials:
        for name, extent in trial.bound.extents():
            found.setdefault(name, set()).add(extent)
    return tuple((name, tuple(sorted(extents))) for name, extents in found.items())


def _long_splits(bound: BoundRule, long: str) -> Iterator[dict[str, int]]:
    """Splits of one factor with many elements; and of each other one, for a body may be another beyond some extent."""
    if long not in dict(bound.extents()):
        return  # only an operand has it that is absent
    extent, highest = bound.factor(long).extent, bound.factor(long).highest_degree
    yield from ({long: degree} for degree in (2, 3) if degree <= highest and (degree == 2 or extent < LONGEST))
    if MANY * 2 < extent < LONGEST:
        yield from ({long: degree} for degree in (MANY,) if degree <= highest)
        yield from ({other.name: 2} for other in bound.factors if other.name != long and other.highest_degree > 1)


def _splits(bound: BoundRule, highest: int) -> Iterator[dict[str, int]]:
    """Every legal choice of degrees, those with the fewest tasks first, so that a counterexample is small."""
    choices = [range(1, min(highest, factor.highest_degree) + 1) for factor in bound.factors]
    names = [factor.name for factor in bound.factors]
    for degrees in sorted(product(*choices), key=lambda degrees: (prod(degrees), degrees)):
        yield dict(zip(names, degrees, strict=True))


class _Trial:
    """One operator on one choice of operands.

    Args:
        operator: what to run.
        operands: on what, its own parameters last.
        seed: of the results' gradients.
    """

    def __init__(self, operator: AbstractOperator, operands: Operands, seed: int) -> None:
        self.operands = tuple(operands)
        self._graph = graph = Graph("prover")
        first = len(operands) - len(operator.parameters())
        handles: list[Tensor | None] = []
        for place, operand in enumerate(operands):
            if operand is None:
                handles.append(None)
                continue
            declare = graph.buffer if place < first else graph.parameter
            dtype = str(operand.dtype).removeprefix("torch.")
            handles.append(declare(f"operand {place}", tuple(operand.shape), dtype))
        results = graph.apply(operator, handles[:first], handles[first:], "operator")
        for place, result in enumerate(results):
            graph.output(f"result {place}", result)
        (node,) = graph.nodes
        self.bound = graph.bound(node)
        self._differentiable = [f"operand {place}" for place in gradient_operands(graph, node)]
        chance = torch.Generator().manual_seed(seed)
        self._seeds = {
            f"result {place}": torch.randn(graph.tensors[result].shape, generator=chance, dtype=torch.float64)
            for place, result in gradient_results(graph, node).items()
        }
        self.whole = self._run({}, None, self.operands)

    def compare(self, degrees: dict[str, int], bound: BoundRule | None = None) -> Counterexample | None:
        """The first result or gradient in which a split differs from the whole; None where none does.

        Args:
            degrees: of every factor.
            bound: takes the place of the operator's own rule.
        """
        text = self.bound.rule.text
        split = {name: degree for name, degree in degrees.items() if degree > 1}
        try:
            found = self._run(degrees, bound, self.operands)
        except _WHAT_A_BODY_RAISES as error:
            return Counterexample(text, split, f"{type(error).__name__}: {error}", None, None, self.operands)
        for what, expected in self.whole.items():
            value = found.get(what)
            if value is None:
                return Counterexample(text, split, f"{what}: nobody computes it", None, None, self.operands)
            if not _close(value, expected, TOLERANCE):
                return Counterexample(text, split, what, expected, value, self.operands)
        return None

    def unlike(self, plain: _Trial) -> Counterexample | None:
        """The first result or gradient in which the whole differs from that without kernels; None where none does."""
        text, operands = self.bound.rule.text, self.operands
        for what, expected in plain.whole.items():
            value = self.whole.get(what)
            if value is None:
                return Counterexample(text, {}, f"{what}: the kernel does not give it", None, None, operands)
            if not _close(value, expected, TOLERANCE):
                return Counterexample(text, {}, f"{what}: the kernel's", expected, value, operands, kernel=True)
        return None

    @property
    def volume(self) -> int:
        """The points of the whole iteration space."""
        return prod(extent for _, extent in self.bound.extents())

    def strays(self, degrees: dict[str, int]) -> Counterexample | None:
        """The first result of a tile that depends on what the tile is not given; None where none does."""
        if lower_composites(self._graph, self._plan(degrees, self.bound), training=True)[0] is not self._graph:
            return None  # its parts exchange what they are not given
        whole = {name: self.whole[name] for name in self._graph.outputs}
        try:
            found = stray(self.bound, degrees, self.operands, whole, self._results)
        except _WHAT_A_BODY_RAISES:  # of operands that it is never given
            return None
        if found is None:
            return None
        split = {name: degree for name, degree in degrees.items() if degree > 1}
        what = f"{found.what}: changed by what the tile is not given"
        return Counterexample(self.bound.rule.text, split, what, found.expected, found.found, self.operands, found.text)

    def reach(self, degrees: dict[str, int]) -> str:
        """What a tile depends on and is not given, as messages say it; empty where nothing is found."""
        if all(degree == 1 for degree in degrees.values()):
            return "two runs on the same operands differ: the body draws random numbers, or keeps something"
        found = self.strays(degrees)
        return found.stray if found is not None else ""

    def _results(self, operands: Operands) -> dict[str, torch.Tensor]:
        return self._run({}, None, operands, backward=False)

    def slope(self) -> Counterexample | None:
        """The whole run's gradients, where differences of its results along a random direction do not agree."""
        chance = torch.Generator().manual_seed(1)
        for place, value in enumerate(self.operands):
            what = f"gradient of operand {place}"
            if value is None or what not in self.whole:
                continue
            direction = torch.randn(value.shape, generator=chance, dtype=torch.float64)
            sides = []
            for sign in (1, -1):
                moved = list(self.operands)
                moved[place] = value + sign * STEP * direction
                found = self._run({}, None, moved, backward=False)
                sides.append(sum((found[name] * seed).sum() for name, seed in self._seeds.items()))
            expected = torch.as_tensor((sides[0] - sides[1]) / (2 * STEP))
            slope = (self.whole[what] * direction).sum()
            if not _close(slope, expected, SLOPE_TOLERANCE):
                what += " along a random direction: backward does not fit forward"
                return Counterexample(self.bound.rule.text, {}, what, expected, slope, self.operands)
        return None

    @staticmethod
    def _plan(degrees: dict[str, int], bound: BoundRule) -> Plan:
        full = tuple((factor.name, degrees.get(factor.name, 1)) for factor in bound.factors)
        configuration = OperatorPlan(full, tuple(range(prod(degree for _, degree in full))))
        return Plan("", "", (("operator", configuration),), ())

    def _run(
        self, degrees: dict[str, int], bound: BoundRule | None, operands: Operands, *, backward: bool = True
    ) -> dict[str, torch.Tensor]:
        """Results and gradients of one split, by what messages call them."""
        plan = self._plan(degrees, bound or self.bound)
        rules = {}
        if bound is None:
            graph, plan = lower_composites(self._graph, plan, training=True)
        else:
            graph, rules = self._graph, {0: bound}
        given = {
            graph.tensor(f"operand {place}").id: value for place, value in enumerate(operands) if value is not None
        }
        outputs = graph.outputs
        seeds = {outputs[name]: seed for name, seed in self._seeds.items() if backward}
        outcome = TileRun(graph, plan, rules).run(given, seeds)
        found = {name: outcome.values[tensor] for name, tensor in outputs.items()}
        for name in self._differentiable if seeds else ():
            gradient = outcome.gradients.get(graph.tensor(name).id)
            if gradient is not None:
                found[f"gradient of {name}"] = gradient
        return found


def _find_allowed(trials: Sequence[_Trial]) -> tuple[str, ...]:
    """The splits of whole factors that are right on all samples (and possible on one)."""
    rule = trials[0].bound.rule
    found = []
    for factor in rule.factors:
        if not factor.whole:
            continue
        everywhere = all(factor.name in pattern.factors for pattern in rule.results)
        for word in ("",) if everywhere else ("sum", "max", "min"):
            verdicts = [_is_right(trial, factor.name, _SYMBOLS[word]) for trial in trials]
            if True in verdicts and False not in verdicts:
                found.append(f"{factor.name}:{word}" if word else factor.name)
                break
    return tuple(found)


_SYMBOLS = {"": "+", "sum": "+", "max": "max", "min": "min"}


def _is_right(trial: _Trial, name: str, symbol: str) -> bool | None:
    """Whether splits of a factor that stays whole would be right; None where its extent does not let it be split."""
    rule = trial.bound.rule
    loose = replace(
        rule,
        factors=tuple(replace(factor, whole=factor.whole and factor.name != name) for factor in rule.factors),
        reductions=(*rule.reductions, (name, symbol)),
    )
    bound = loose.bind(trial.bound.operand_shapes)
    highest = bound.factor(name).highest_degree
    if highest < 2:
        return None
    with warnings.catch_warnings():
        # torch says so where a body has memory of another size made larger: a wrong split, and no news.
        warnings.filterwarnings("ignore", message="An output with one or more elements was resized")
        return all(trial.compare({name: degree}, bound) is None for degree in range(2, min(HIGHEST, highest) + 1))


def _close(value: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether two tensors agree; a NaN agrees with nothing."""
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return False
    if not value.is_floating_point():
        return torch.equal(value, expected)
    if not value.numel():
        return True
    error = (value - expected).abs().max()
    return bool(error <= tolerance * max(1.0, float(expected.abs().max())))
