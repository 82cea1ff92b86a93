"""How much of torch is imported, and whether any of it is wrong: torch's own samples of every operator.

For each operator of `torch.testing._internal.common_methods_invocations.op_db` and its samples in float64, a module
that applies the operator (and sums what it gives against fixed numbers) is imported, trained one step under a random
plan for two processors, and compared with plain torch: the loss, and the gradient of every float input.

    python benchmarks/import_coverage.py [--samples 3] [--only NAME ...] [--json coverage.json]
    python benchmarks/import_coverage.py --table coverage.json ...             the page docs/reference/coverage.md has

It takes some minutes; ``--only`` takes a part, and the tables of several parts are merged.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import maniple as mp
from maniple.process.error import ManipleError

LARGEST = 20_000
"""Elements. Larger samples are left out, and those that no plan can cut: scalars, and tensors without elements."""
TOLERANCE = {"float64": 1e-8, "float32": 1e-5}
"""Relative to the largest element, by the least precise dtype on the way."""
RATE = 0.5
SEED = 3


@dataclass(frozen=True)
class Outcome:
    """What became of one sample.

    Args:
        status: `split`, `whole` (right, but as one task), `refused`, or `wrong`.
        note: why.
    """

    status: str
    note: str = ""


class Applied(nn.Module):
    """One operator applied to parameters: its float inputs; everything else is fixed."""

    def __init__(self, function: object, arguments: tuple[object, ...], options: dict[str, object]) -> None:
        super().__init__()
        self.function = function
        self.options = options
        self.slots: list[object] = []
        self.values = nn.ParameterList()
        for argument in arguments:
            self.slots.append(self._slot(argument))

    def _slot(self, argument: object) -> object:
        if isinstance(argument, list | tuple):
            return [self._slot(item) for item in argument]
        if isinstance(argument, Tensor) and argument.is_floating_point():
            self.values.append(nn.Parameter(argument.detach().clone()))
            return _Place(len(self.values) - 1)
        return argument

    def _filled(self, slot: object) -> object:
        if isinstance(slot, list):
            return [self._filled(item) for item in slot]
        return self.values[slot.number] if isinstance(slot, _Place) else slot

    def forward(self, x: Tensor) -> Tensor:
        """A scalar that depends on every float element of every result, and on the batch."""
        found = self.function(*(self._filled(slot) for slot in self.slots), **self.options)  # type: ignore[operator]
        total = x.sum() * 0.0
        for value in found if isinstance(found, list | tuple) else (found,):
            if isinstance(value, Tensor) and value.is_floating_point():
                weights = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
                total = total + (value * weights).sum()
        return total


@dataclass(frozen=True)
class _Place:
    number: int


def stepped(module: Applied, x: Tensor) -> list[Tensor]:
    """The loss, and the parameters after one step, by plain torch."""
    module.zero_grad()
    loss = module(x)
    loss.backward()
    return [loss.detach(), *(v.detach() - RATE * (0 if v.grad is None else v.grad) for v in module.values)]


def tried(function: object, arguments: tuple[object, ...], options: dict[str, object]) -> Outcome | None:
    """What becomes of one sample; None where plain torch has no finite gradient for it either."""
    module = Applied(function, arguments, options)
    x = torch.ones(4, dtype=torch.float64)
    sizes = [value.numel() for value in module.values]
    if not sizes or min(sizes) < 1 or max(sizes) == 1 or sum(sizes) > LARGEST:
        return None
    try:
        expected = stepped(module, x)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    if not all(torch.isfinite(value).all() for value in expected):
        return None
    try:
        graph = mp.from_torch(module, (x,))
        machine = mp.Machine.cpu(2)
        plan = mp.search(graph, machine, strategy="random", seed=1)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE), seed=SEED) as trainer:
            ours = trainer.step(x)
            found = list(trainer.parameters().values())
    except ManipleError as error:
        return Outcome("refused", str(error).splitlines()[0][:160])
    if any(node.operator.random for node in graph.nodes):
        try:
            with mp.testing.InjectedDropout(graph, seed=SEED, step=0):
                expected = stepped(module, x)
        except ManipleError as error:  # nothing to compare with
            return Outcome("refused", str(error).splitlines()[0][:160])
    passed = {tensor.dtype for tensor in graph.tensors}
    tolerance = TOLERANCE["float32" if "float32" in passed else "float64"]
    for mine, theirs in zip([torch.tensor(ours, dtype=torch.float64), *found], expected, strict=True):
        limit = tolerance * max(1.0, float(theirs.abs().max()) if theirs.numel() else 1.0)
        if theirs.numel() and not bool(((mine - theirs).abs() <= limit).all()):
            return Outcome("wrong", f"differs by {float((mine - theirs).abs().max()):.3g}")
    return Outcome("whole" if graph.opaque else "split", "; ".join(graph.opaque)[:160])


def outcomes(only: list[str], samples: int) -> Iterator[tuple[str, list[Outcome]]]:
    """What became of the samples of every operator that has a float64 gradient."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        if (only and info.name not in only) or torch.float64 not in info.dtypes or not info.supports_autograd:
            continue
        torch.manual_seed(0)
        found: list[Outcome] = []
        try:
            given = list(info.sample_inputs("cpu", torch.float64, requires_grad=True))
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            sys.stderr.write(f"{name}: torch makes no samples: {error}\n")
            continue
        for sample in given:
            if len(found) == samples:
                break
            outcome = tried(info.op, (sample.input, *sample.args), dict(sample.kwargs))
            if outcome is not None:
                found.append(outcome)
        if found:
            yield name, found


def table(every: dict[str, list[list[str]]]) -> str:
    """The coverage as a page of the documentation.

    Args:
        every: The outcomes of all samples, by operator.
    """
    order = ("wrong", "refused", "whole", "split")
    samples = Counter(status for found in every.values() for status, _ in found)
    worst = {name: min(found, key=lambda outcome: order.index(outcome[0])) for name, found in every.items()}
    operators = Counter(status for status, _ in worst.values())
    lines = ["| | samples | share | operators, by their worst sample | share |", "|---|---|---|---|---|"]
    words = {"split": "imported, may be split", "whole": "imported, one task", "refused": "refused", "wrong": "wrong"}
    for status, word in words.items():
        shares = [f"{count[status]} | {count[status] / sum(count.values()):.1%}" for count in (samples, operators)]
        lines.append(f"| {word} | {' | '.join(shares)} |")
    reasons: dict[str, list[str]] = {}
    for name, (status, note) in sorted(worst.items()):
        if status == "refused":
            reasons.setdefault(reason(note), []).append(f"`{name}`")
    lines += ["", "| refused, because | operators |", "|---|---|"]
    lines += [f"| {why} | {', '.join(names)} |" for why, names in sorted(reasons.items())]
    whole = [f"`{name}`" for name, (status, _) in sorted(worst.items()) if status == "whole"]
    return "\n".join([*lines, "", f"One task, run whole: {', '.join(whole)}."]) + "\n"


REASONS = (
    ("draws random numbers", "it draws random numbers that a plan would change"),
    ("injected dropout", "it draws random numbers where torch hides them, so that nothing is compared"),
    ("cannot be imported", "torch.export cannot follow it: its shapes or its path depend on values"),
    ("complex", "complex numbers"),
    ("expected extents >= 1", "it makes a tensor without elements"),
    ("without elements", "it makes a tensor without elements"),
    ("torch_nn::", "it calls an operator that is none of torch.ops.aten"),
    ("sparse", "sparse tensors"),
    ("float16", "half precision"),
    ("does not fit; expected at least", "it makes a tensor without elements"),
)


def reason(note: str) -> str:
    """Why a sample was refused, in the words of the table."""
    return next((why for part, why in REASONS if part in note), note.replace("|", "/"))


def merged(paths: list[Path]) -> dict[str, list[list[str]]]:
    """The outcomes that several runs wrote."""
    found: dict[str, list[list[str]]] = {}
    for path in paths:
        found |= json.loads(path.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def main() -> None:
    """Try the operators, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3, help="of every operator")
    parser.add_argument("--only", nargs="*", default=[], help="operators to try")
    parser.add_argument("--json", type=Path, help="where to write every outcome")
    parser.add_argument("--table", nargs="+", type=Path, help="try nothing; print the table of what runs wrote")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(merged(arguments.table)), end="")
        return
    warnings.simplefilter("ignore")
    every: dict[str, list[list[str]]] = {}
    for name, found in outcomes(arguments.only, arguments.samples):
        every[name] = [[outcome.status, outcome.note] for outcome in found]
        worst = min(found, key=lambda outcome: ("wrong", "refused", "whole", "split").index(outcome.status))
        print(f"{name:48} {worst.status:8} {worst.note}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    counts = Counter(status for found in every.values() for status, _ in found)
    print(f"{len(every)} operators, {dict(sorted(counts.items()))}")
    if counts["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
