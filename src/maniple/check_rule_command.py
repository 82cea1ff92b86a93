"""The command `maniple check-rule`: a user's operator, whole and split in every legal way."""

from __future__ import annotations

import json
import runpy
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.process.error import ManipleError, RequestError, RunError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.proving.user_operator import Definition, OperatorFunction

__all__: list[str] = []


@click.command(name="check-rule")
@click.argument("target", metavar="FILE:OPERATOR")
@click.option("--samples", default=8, show_default=True, help="Random choices of operands.")
@click.option("--seed", default=0, show_default=True, help="Of the operands.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_rule(target: str, samples: int, seed: int, as_json: bool) -> int:  # noqa: FBT001
    """Run an operator made by mp.operator whole and split in every legal way, forward and backward.

    Kernels that its author gave for the CPU must give what the function and autograd give; those for a GPU are not run.

    Prints a counterexample with its tensors where the rule is wrong, and the splits that would be right and that the
    rule does not allow.
    """
    from maniple.operators.proving.prover import prove
    from maniple.operators.proving.sample import long_samples
    from maniple.operators.proving.sample import samples as make_samples

    function = _load(target)
    if samples < 1:
        raise RequestError(f"--samples: expected at least 1, got {samples}")
    definition = function.kind.definition
    with _name_errors(target, definition):
        operator = function.operator()
        plain = operator.plain() if function.kind.bodies else None
        short, long = make_samples(definition, samples, seed), long_samples(definition, seed)
        verdict = prove(operator, short, seed, long, plain)
    text = function.kind.definition.text
    if verdict.counterexample is not None:
        wrong = "a kernel is not what the function is" if verdict.counterexample.kernel else "the rule is wrong"
        raise RunError(f"{target}: {wrong}\n{verdict.counterexample}")
    if as_json:
        found = {"operator": operator.name, "rule": text, "splits": verdict.splits, "allowed": list(verdict.allowed)}
        found["extents"] = {name: list(extents) for name, extents in verdict.extents}
        click.echo(json.dumps(found))
        return 0
    click.echo(f"{operator.name}: '{text}' is right in {verdict.splits} runs")
    tried = ", ".join(f"{name} of {' '.join(map(str, extents))}" for name, extents in verdict.extents)
    click.echo(f"  tried {tried}")
    for split in verdict.allowed:
        click.echo(f"  a split of {split} would be right too, and the rule does not allow it")
    return 0


@contextmanager
def _name_errors(target: str, definition: Definition) -> Iterator[None]:
    """A stretch in which a body runs: what goes wrong in it names the operator, file and line.

    Raises:
        RunError: Whatever the body, or the function that makes its operands, raised.
    """
    from maniple.operators.proving.user_operator import place_of

    try:
        yield
    except ManipleError as error:
        raise type(error)(f"{target}, defined at {place_of(definition.function)}: {error}") from error
    except Exception as error:  # whatever a user's function raises
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else place_of(definition.function)
        raise RunError(
            f"{target}: the body raised {type(error).__name__} at {place}: {error}; a body must take operands of any "
            "extents that the rule allows, or examples= must make those that it takes"
        ) from error


def _is_users(path: str) -> bool:
    """Whether a file is the user's own: of neither torch nor this package."""
    import torch

    packages = (Path(torch.__file__).parent, *(Path(place).resolve() for place in _packages()))
    return Path(path).exists() and not any(Path(path).resolve().is_relative_to(package) for package in packages)


def _packages() -> list[Path]:
    """Where this package's modules lie: a checkout has links to its folders."""
    here = Path(__file__).resolve().parent
    return [here, *(path.resolve() for path in here.iterdir() if path.is_symlink())]


def _load(target: str) -> OperatorFunction:
    """The operator of that name in that file.

    Raises:
        RequestError: There is no such file, it cannot be run, or there is no such operator in it.
    """
    from maniple.operators.proving.user_operator import OperatorFunction, Refused, refusals

    file, colon, name = target.rpartition(":")
    if not colon:
        raise RequestError(f"check-rule: expected FILE:OPERATOR, got '{target}'")
    if not Path(file).is_file():
        raise RequestError(f"check-rule: the file '{file}' does not exist; expected FILE:OPERATOR, got '{target}'")
    with refusals():
        try:
            made = runpy.run_path(file)
        except ManipleError:
            raise
        except Exception as error:  # whatever the file's own Python raises
            raise RequestError(f"check-rule: '{file}' raised {type(error).__name__}: {error}") from error
    found = {key: value for key, value in made.items() if isinstance(value, OperatorFunction | Refused)}
    if name not in found:
        raise RequestError(
            f"check-rule: '{file}' has no operator '{name}' made by mp.operator{nearest(name, sorted(found))}"
        )
    for key, value in found.items():
        if isinstance(value, Refused) and key != name:
            click.echo(f"warning: {value.error}", err=True)
    chosen = found[name]
    if isinstance(chosen, Refused):
        raise chosen.error
    return chosen
