"""What a trainer measures over many batches: means of a data set's outputs, and metrics of its steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING, Any

import torch

from maniple.process.error import RequestError
from maniple.runtime.program.in_turn import in_turn
from maniple.sample_batch import SampleBatch
from maniple.step_metrics import StepMetrics, model_flops, peak_flops
from maniple.trainer_adaptation import TrainerAdaptation

if TYPE_CHECKING:
    from maniple.step_metrics import Writer

__all__: list[str] = []


class TrainerMeasures(TrainerAdaptation):
    """What a trainer measures; all ranks do the same."""

    _metrics: StepMetrics | None = None

    @in_turn
    def write_metrics(self, write: Writer | None, *, every: int = 1, peak_flops_per_s: float | None = None) -> None:
        """Have a line of JSON written for each step from now on, by rank 0.

        A line has the step's number, loss, samples and seconds, the samples a second, and what part of the processors'
        peak the model's operations are: forward and backward, without what the plan computes again.

        Args:
            write: takes a line with its end, such as ``file.write``; None ends it.
            every: so many steps apart.
            peak_flops_per_s: of all processors together; default the machine's word for those of the plan, in float32.

        Raises:
            RequestError: a number out of range.
        """
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise RequestError(f"write_metrics: every: expected an integer >= 1, got {every!r}")
        peak = peak_flops(self.plan, self.machine) if peak_flops_per_s is None else peak_flops_per_s
        if not 0 < peak < float("inf"):
            raise RequestError(f"write_metrics: peak_flops_per_s: expected a finite number > 0, got {peak!r}")
        mine = write if self._world.rank == 0 else None
        flops = model_flops(self.graph) / self.graph.batch
        self._metrics = None if write is None else StepMetrics(mine, flops, peak, every)

    def evaluate(self, /, *args: Any, **kwargs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute the graph's outputs for one batch, whole on every rank; or their means over all of a loader.

        The mean of an output with an axis of samples is over all samples; one without, such as a loss, counts as the
        mean of its batch. Means are in float64.

        Args:
            args: the inputs that the outputs depend on, in the graph's order; or a loader, ours or torch's ...
            kwargs: ... or by name.

        Raises:
            RequestError: the graph has no output, or the inputs do not fit.
        """
        alone = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(alone, Iterable) and not isinstance(alone, Sequence | Mapping | torch.Tensor):
            return self._mean(alone)
        return self._outputs(args, kwargs)[0]

    def _mean(self, batches: Iterable[Any]) -> dict[str, torch.Tensor]:
        """Give the mean of each output over all samples of a loader; see `Trainer.evaluate`."""
        sums: dict[str, list[torch.Tensor]] = {}
        scalars: dict[str, list[float]] = {}
        count = 0
        for batch in batches:
            alone = isinstance(batch, Mapping | SampleBatch | torch.Tensor)
            found, size = self._outputs((batch,) if alone else tuple(batch), {})
            count += size
            for name, value in found.items():
                each = value.double()
                if value.ndim and value.shape[0] == size:
                    if value.ndim == 1:
                        scalars.setdefault(name, []).extend(each.tolist())
                    else:
                        sums.setdefault(name, []).append(each.sum(0))
                elif value.ndim == 0:
                    scalars.setdefault(name, []).append(size * each.item())
                else:
                    raise RequestError(
                        f"evaluate: output {name!r} of shape {tuple(value.shape)} has no axis of {size} samples, so it "
                        "has no mean over a loader; evaluate it batch by batch"
                    )
        if not count:
            raise RequestError("evaluate: the loader gave no batch; at the end of an epoch, iterate a new one")
        whole = {name: torch.stack(parts).sum(0) / count for name, parts in sums.items()}
        ones = {name: torch.tensor(fsum(parts) / count, dtype=torch.float64) for name, parts in scalars.items()}
        return {name: (whole | ones)[name] for name in self.graph.outputs}

    @abstractmethod
    def _outputs(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[dict[str, torch.Tensor], int]:
        """Give the outputs for one batch, and its samples."""
