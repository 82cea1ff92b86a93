"""Launches of a run without a flush: predictions of weights, updates from one version to the next, the loss's way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maniple.operators.lowering.operator_body import PureBinder, UpdateBinder, there
from maniple.regions.index_space import union
from maniple.regions.privilege import READ, WRITE_DISCARD
from maniple.runtime.schedule.launch import Launch, Point, Requirement

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from maniple.operators.lowering.weight import Weight
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.operators.training.prediction import AbstractPredictor
    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect

__all__: list[str] = []


@dataclass(frozen=True)
class VersionBinder(PureBinder):
    """Binds an update that writes a version from another: views are those of `UpdateBinder`, and last the one before.

    Args:
        update: in place.
    """

    update: UpdateBinder

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        return "version", self.update.signature(point)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        value, before = there(views[0]), there(views[-1])
        update = self.update(point, views[:-1], cores)

        def renew() -> None:
            value.copy_(before)
            update()

        return renew


@dataclass(frozen=True)
class PredictBinder(PureBinder):
    """Binds a prediction: views are the prediction, the value, the optimizer's state, and the step's numbers.

    Args:
        predictor: the predictor.
        delay: how many updates ahead.
        optimizer: as it is for the parameter.
        row: which of the step's numbers the parameter's group has.
    """

    predictor: AbstractPredictor
    delay: int
    optimizer: AbstractOptimizer
    row: int

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return "predict", type(self.predictor), self.delay, self.optimizer, self.row

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        target, value, *others = (there(view) for view in views)
        states, row = tuple(others[:-1]), self.optimizer.row_in(others[-1], self.row)
        return self.predictor.bind(self.optimizer, value, states, cores, row, self.delay, target)


@dataclass(frozen=True)
class RelayBinder(PureBinder):
    """Binds a hop of the loss: views are where it goes, and where it is."""

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return ("relay",)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind it."""
        target, source = (there(view) for view in views)
        return lambda: target.copy_(source)


@dataclass(frozen=True)
class SettleBinder(PureBinder):
    """Binds nothing: what is read was folded when it was brought."""

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return ("settle",)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind it."""
        return lambda: None


def settle_launch(region: LogicalRegion, whole: Rect, launches: Sequence[Launch]) -> Launch:
    """Give the launch that has contributions folded by those who made them, a part each; or by one of them all.

    Args:
        region: what was added to.
        whole: what of it there is.
        launches: those that added last.
    """
    parts: dict[IndexSpace, Point] = {}
    for launch in launches:
        for need in launch.requirements:
            if need.region is region and not need.privilege.reads:
                for point, rect in zip(launch.points, need.rects, strict=True):
                    if not rect.is_empty:
                        parts.setdefault(rect, point)
    if union(list(parts)).volume != whole.volume:
        parts = {whole: next(iter(parts.values()))}
    return Launch(
        f"{region.name}.settle",
        tuple(parts.values()),
        (Requirement(region, READ, tuple(parts)),),
        SettleBinder(),
        kind="settle",
    )


def version_update(launch: Launch, before: LogicalRegion) -> Launch:
    """The update of a weight whose versions take turns.

    Args:
        launch: the update in place of the version that is written.
        before: the newest version until then.
    """
    written, *others = launch.requirements
    value = replace(written, privilege=WRITE_DISCARD)
    requirements = (value, *others, Requirement(before, READ, written.rects))
    binder = launch.binder
    if not isinstance(binder, UpdateBinder):
        msg = f"{launch.name} is no update"
        raise TypeError(msg)
    return replace(launch, requirements=requirements, binder=VersionBinder(binder))


def predict_launch(
    weight: Weight,
    value: LogicalRegion,
    predicted: LogicalRegion,
    numbers: LogicalRegion,
    binder: PredictBinder,
    kind: str,
) -> Launch:
    """Give the launch that predicts a parameter at its home.

    Args:
        weight: the parameter.
        value: its newest version.
        predicted: what is written.
        numbers: of the next update.
        binder: how.
        kind: the pass that reads it.
    """
    requirements = (
        Requirement(predicted, WRITE_DISCARD, weight.rects),
        Requirement(value, READ, weight.rects),
        *(Requirement(state, READ, weight.rects) for state in weight.states),
        Requirement(numbers, READ, (numbers.bounds,) * len(weight.points)),
    )
    flops = tuple(float((2 + binder.optimizer.flops) * rect.volume) for rect in weight.rects)
    return Launch(f"{weight.name}.predict_{kind}", weight.points, requirements, binder, flops, "predict")


def relay_launch(name: str, processor: int, source: LogicalRegion, target: LogicalRegion, lag: int) -> Launch:
    """Give the launch that brings the loss one stage further, in turn: after the stage's passes.

    Args:
        name: of what is relayed.
        processor: of the stage.
        source: where it is.
        target: where it goes.
        lag: of the stage.
    """
    requirements = Requirement(target, WRITE_DISCARD, (target.bounds,)), Requirement(source, READ, (source.bounds,))
    return Launch(f"{name}.relay", (Point((lag,), processor),), requirements, RelayBinder(), in_turn=True, lag=lag)
