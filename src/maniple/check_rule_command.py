"""The command `maniple check-rule`: a user's operator, whole and split in every legal way."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.regions.error import RequestError, RunError, nearest

if TYPE_CHECKING:
    from maniple.operators.user_operator import OperatorFunction

__all__: list[str] = []


@click.command(name="check-rule")
@click.argument("target", metavar="FILE:OPERATOR")
@click.option("--samples", default=8, show_default=True, help="Random choices of operands.")
@click.option("--seed", default=0, show_default=True, help="Of the operands.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_rule(target: str, samples: int, seed: int, as_json: bool) -> int:  # noqa: FBT001
    """Run an operator made by mp.operator whole and split in every legal way, forward and backward.

    Prints a counterexample with its tensors where the rule is wrong, and the splits that would be right and that the
    rule does not allow.
    """
    from maniple.operators.prover import prove
    from maniple.operators.sample import samples as make_samples

    function = _load(target)
    if samples < 1:
        raise RequestError(f"--samples: expected at least 1, got {samples}")
    operator = function.operator()
    verdict = prove(operator, make_samples(function.kind.definition, samples, seed), seed)
    text = function.kind.definition.text
    if verdict.counterexample is not None:
        raise RunError(f"{target}: the rule is wrong\n{verdict.counterexample}")
    if as_json:
        found = {"operator": operator.name, "rule": text, "splits": verdict.splits, "allowed": list(verdict.allowed)}
        click.echo(json.dumps(found))
        return 0
    click.echo(f"{operator.name}: '{text}' is right in {verdict.splits} runs")
    for split in verdict.allowed:
        click.echo(f"  a split of {split} would be right too, and the rule does not allow it")
    return 0


def _load(target: str) -> OperatorFunction:
    """The operator of that name in that file.

    Raises:
        RequestError: There is no such file, or no such operator in it.
    """
    from maniple.operators.user_operator import OperatorFunction

    file, colon, name = target.rpartition(":")
    if not colon or not Path(file).is_file():
        raise RequestError(f"check-rule: expected FILE:OPERATOR with a file that exists, got '{target}'")
    found = {key: value for key, value in runpy.run_path(file).items() if isinstance(value, OperatorFunction)}
    if name not in found:
        raise RequestError(
            f"check-rule: '{file}' has no operator '{name}' made by mp.operator{nearest(name, sorted(found))}"
        )
    return found[name]
