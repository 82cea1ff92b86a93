"""How much of torch is imported, and whether any of it is wrong: torch's own samples of every operator.

For each operator of `torch.testing._internal.common_methods_invocations.op_db` and its samples in float64, a module
that applies the operator (and sums what it gives against fixed numbers) is imported, trained one step under a random
plan for two processors, and compared with plain torch: the loss, and the gradient of every float input.

    python benchmarks/import_coverage.py [--samples 3] [--only NAME ...] [--json coverage.json]
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
from maniple.regions.error import ManipleError

LARGEST = 20_000
"""Elements: samples that are larger are left out."""
TOLERANCE = 1e-8
RATE = 0.5


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


def tried(function: object, arguments: tuple[object, ...], options: dict[str, object]) -> Outcome | None:
    """What becomes of one sample; None where plain torch has no finite gradient for it either."""
    module = Applied(function, arguments, options)
    x = torch.ones(4, dtype=torch.float64)
    if not len(module.values) or sum(value.numel() for value in module.values) > LARGEST:
        return None
    try:
        loss = module(x)
        loss.backward()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    expected = [value.detach() - RATE * (0 if value.grad is None else value.grad) for value in module.values]
    if not torch.isfinite(loss) or not all(torch.isfinite(value).all() for value in expected):
        return None
    try:
        graph = mp.from_torch(module, (x,))
        machine = mp.Machine.cpu(2)
        plan = mp.search(graph, machine, strategy="random", seed=1)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE)) as trainer:
            ours = trainer.step(x)
            found = list(trainer.parameters().values())
    except ManipleError as error:
        return Outcome("refused", str(error).splitlines()[0][:160])
    pairs = [(torch.tensor(ours, dtype=torch.float64), loss.detach()), *zip(found, expected, strict=True)]
    for mine, theirs in pairs:
        limit = TOLERANCE * max(1.0, float(theirs.abs().max()) if theirs.numel() else 1.0)
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


def main() -> None:
    """Try the operators, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3, help="of every operator")
    parser.add_argument("--only", nargs="*", default=[], help="operators to try")
    parser.add_argument("--json", type=Path, help="where to write every outcome")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    every: dict[str, list[Outcome]] = {}
    for name, found in outcomes(arguments.only, arguments.samples):
        every[name] = found
        worst = min(found, key=lambda outcome: ("wrong", "refused", "whole", "split").index(outcome.status))
        print(f"{name:48} {worst.status:8} {worst.note}", flush=True)
    counts = Counter(outcome.status for found in every.values() for outcome in found)
    total = max(1, sum(counts.values()))
    rows = {status: counts[status] for status in ("split", "whole", "refused", "wrong")}
    print(
        f"{len(every)} operators, {total} samples: " + ", ".join(f"{k} {v} ({v / total:.1%})" for k, v in rows.items())
    )
    if arguments.json:
        data = {name: [[outcome.status, outcome.note] for outcome in found] for name, found in every.items()}
        arguments.json.write_text(json.dumps({"samples": rows, "operators": data}, indent=1) + "\n")


if __name__ == "__main__":
    main()
