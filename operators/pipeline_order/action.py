"""Actions: what a stage of a pipeline does with one micro-batch, written as torch.distributed.pipelining writes it.

2F0    stage 2, forward, micro-batch 0
0B3    stage 0, backward whole, micro-batch 3
1I3    stage 1, backward as far as the gradients of its inputs
1W3    stage 1, the rest: gradients of its weights (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2)
1R3    stage 1, forward again of what was not kept (Huang et al., GPipe, NeurIPS 2019, section 2.3)
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, final, get_args

from maniple.process.error import RequestError

__all__: list[str] = []

Kind = Literal["F", "B", "I", "W", "R"]
"""Forward, backward whole, gradients of inputs, gradients of weights, forward again."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_BY_TEXT: Final[dict[str, Kind]] = {kind: kind for kind in KINDS}
_TEXT: Final = re.compile(r"(\d+)([A-Za-z_]+)(\d*)")


@final
class Action(NamedTuple):
    """What a stage does with a micro-batch.

    Args:
        stage: the stage, the first is 0.
        kind: what it does.
        micro_batch: which part of the mini-batch, the first is 0.
    """

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str, where: str = "order") -> Action:
        """The action of a text.

        Args:
            text: such as ``2F0``.
            where: what messages call its place.

        Raises:
            RequestError: the text is no action, or one of a kind that is not written in orders.
        """
        found = _TEXT.fullmatch(text.strip())
        kind = _BY_TEXT.get(found[2]) if found else None
        if found is None or (kind is not None and not found[3]):
            raise RequestError(
                f"{where}: expected an action such as 2F0 (stage 2, forward, micro-batch 0), got {text.strip()!r}"
            )
        if kind is None:
            raise RequestError(
                f"{where}: {text.strip()!r} is of the unknown kind {found[2]!r}; choices: F forward, B backward, I "
                "gradients of inputs, W gradients of weights, R forward again; transfers, gathers and updates follow "
                "from these and are not written"
            )
        return cls(int(found[1]), kind, int(found[3]))
