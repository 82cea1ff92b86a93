"""Registered reductions: operators of a program's own, folded in a fixed order like the built-in ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.process.error import RequestError
from maniple.regions.privilege import add_operation
from maniple.runtime.storage.copy_kernels import register_fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.regions.privilege import Privilege

__all__: list[str] = []


def register_reduction(
    name: str, fold: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], identity: float
) -> Privilege:
    """Register a reduction operator; tasks declare its use as ``Annotated[torch.Tensor, privilege]``.

    Contributions are folded in a fixed order: two runs of one program on one machine give the same bits. Another number
    of ranks folds in another order, so results agree with those of one rank only as far as the operator is associative
    and commutative. Every rank registers the same operators, before the tasks that use them.

    Args:
        name: of the operator; registering it again replaces it.
        fold: gives, element by element, the fold of two tensors of one shape, in a tensor of its own.
        identity: the value that changes nothing: what a body sees before it contributes.

    Returns:
        The privilege to fold contributions with it.

    Raises:
        RequestError: the name is taken by a built-in operator, or the identity changes something.
    """
    neutral = torch.full((3,), identity)
    sample = torch.tensor([0, 1, 2]).to(neutral.dtype)
    for one, other in ((sample, neutral), (neutral, sample)):
        found = fold(one.clone(), other.clone())
        if not torch.equal(found, sample):
            msg = f"reduction {name!r}: folding {sample.tolist()} with the identity {identity} gave {found.tolist()}"
            raise RequestError(msg + "; an identity leaves every value as it is")
    made = add_operation(name, identity)
    register_fold(name, fold)
    return made
