"""Frontiers of plans: of the plans that a search simulated those of which none beats another, as one value.

    devices   step      memory per device     a plan of 8 devices is beaten only by others of at most 8
    8         10.1 ms   6.0 GiB
    8         14.0 ms   3.1 GiB     <- best(memory=4 GiB): the fastest of these that fits
    4         18.2 ms   6.1 GiB
    4         29.5 ms   3.4 GiB     <- fewest(memory=4 GiB): the fewest devices on which something fits

(The questions of Z. Cai et al., TensorOpt, arXiv 2004.10856, section 5: mini-time, mini-parallelism, profiling.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan, Term
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

GIB = 2**30
SEARCHED_WITH = ("costs", "optimizer")
"""What plans may say of the search that found them, besides why; not said of the default."""


@final
@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan of a frontier.

    Args:
        step_s: simulated seconds of a step.
        peak_memory_bytes: the most bytes that one memory holds at once.
        model_s: what the additive model says of the seconds.
        model_bytes: what it says of the bytes.
        devices: how many processors the plan uses.
        plan: the plan.
    """

    step_s: float
    peak_memory_bytes: int
    model_s: float
    model_bytes: int
    devices: int
    plan: Plan

    def to_json(self) -> dict[str, object]:
        """The point as plain data."""
        return {
            "step_s": self.step_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "model_s": self.model_s,
            "model_bytes": self.model_bytes,
            "devices": self.devices,
            "plan": self.plan.to_json(),
        }


@final
@dataclass(frozen=True, slots=True)
class Frontier:
    """Plans of which no other one here needs at most their memory, their time and their devices; each of them runs.

    A search finds the frontier of the additive model, simulates all or some of its points, and keeps of these the ones
    that no other beats in simulation. What is proved (`exact`, `epsilon`) is proved of the model's frontier, by the
    model's figures. Of simulated figures nothing is: a point of the model that was not simulated, or a plan that is no
    point of it, may be better than these.

    Iterating gives the points: by devices, and of those with as many the leanest first.

    Args:
        points: the points.
        exact: whether the frontier of the model is proved: for every plan of the searched space it has a point within
            `epsilon`, by the model's figures; False, too, where the search ended before all points that it would
            simulate were.
        epsilon: by what share a plan of the space may need less memory, and less time, by the additive model than the
            point of the model's frontier that stands for it.
        model_points: how many points the model's frontier has; of several frontiers put together, the sum.
        simulated: how many of them were simulated; of several, the sum.
        inexact: the operators for which a choice was kept that is not proved best, and those whose weights others use.
        time_correlation: Kendall's rank correlation of the additive and the simulated time of all that was simulated;
            1: the same order, None: of one plan.
        memory_correlation: the same of memory.
        capacity_bytes: what the smallest memory of the machine holds.
        gap: where weights are shared, by what share a plan may need less memory, and less time, by the additive model
            than the point that stands for it; None where none is shared, or it is not known.

    Raises:
        RequestError: there is no point, or plans are of different graphs.
    """

    points: tuple[FrontierPoint, ...]
    exact: bool
    epsilon: float
    model_points: int
    simulated: int
    inexact: tuple[str, ...]
    time_correlation: float | None
    memory_correlation: float | None
    capacity_bytes: int
    gap: float | None = None

    def __post_init__(self) -> None:
        """Refuse a frontier without a plan, and plans of different graphs."""
        if not self.points:
            raise RequestError("a frontier has at least one plan; search one with strategy pareto")
        if len({point.plan.graph for point in self.points}) > 1:
            raise RequestError("the plans of a frontier are of different graphs; make a frontier of each graph")

    def __iter__(self) -> Iterator[FrontierPoint]:
        """The points."""
        return iter(self.points)

    def __len__(self) -> int:
        """How many points there are."""
        return len(self.points)

    def __or__(self, other: Frontier) -> Frontier:
        """The frontier of both: that of the same graph on machines of several sizes.

        Raises:
            RequestError: they are of different graphs, or say that they were searched with different costs or for
                different optimizers, so that their seconds or bytes do not compare.
        """
        if self.graph != other.graph:
            raise RequestError("the frontiers are of different graphs; put those of one graph together")
        for term in SEARCHED_WITH:
            mine, others = (dict(dict(some.points[0].plan.explanation).get("", ())).get(term) for some in (self, other))
            if mine != others:
                raise RequestError(
                    f"the frontiers were searched with different {term}: {mine or 'default'} and "
                    f"{others or 'default'}; search both with the same --{term}"
                )
        return Frontier(
            undominated((*self.points, *other.points)),
            exact=self.exact and other.exact,
            epsilon=max(self.epsilon, other.epsilon),
            model_points=self.model_points + other.model_points,
            simulated=self.simulated + other.simulated,
            inexact=tuple(dict.fromkeys((*self.inexact, *other.inexact))),
            time_correlation=_least(self.time_correlation, other.time_correlation),
            memory_correlation=_least(self.memory_correlation, other.memory_correlation),
            capacity_bytes=min(self.capacity_bytes, other.capacity_bytes),
            gap=_most(self.gap, other.gap),
        )

    @property
    def graph(self) -> str:
        """The fingerprint of the graph."""
        return self.points[0].plan.graph

    @property
    def devices(self) -> tuple[int, ...]:
        """The numbers of devices that plans use, ascending."""
        return tuple(sorted({point.devices for point in self.points}))

    def best(self, memory: int | None = None) -> Plan:
        """The fastest plan of this frontier that fits (mini-time).

        Args:
            memory: bytes of each device; by default what the machine's smallest memory holds.

        Raises:
            RequestError: none fits; it says the least that any needs.
        """
        return self.fitting(memory)[0]

    def fitting(self, memory: int | None = None, processors: int | None = None) -> tuple[Plan, ...]:
        """The plans of this frontier that fit, the fastest first.

        Args:
            memory: bytes of each device; by default what the machine's smallest memory holds.
            processors: how many there are, the first ones of a machine; by default as many as any plan names.

        Raises:
            RequestError: none fits; it says the least that any needs.
        """
        limit = self.capacity_bytes if memory is None else memory
        named = {point: 1 + max(point.plan.processors_used()) for point in self.points}
        there = [point for point in self.points if processors is None or named[point] <= processors]
        if not there:
            raise RequestError(
                f"no plan of this frontier runs on processors 0 to {(processors or 0) - 1}: the fewest that any needs "
                f"are {min(named.values())}; search the graph on a machine of fewer and put the frontiers together"
            )
        fitting = [point for point in there if point.peak_memory_bytes <= limit]
        if not fitting:
            least = min(point.peak_memory_bytes for point in there)
            raise RequestError(
                f"no plan fits in {limit} bytes a device: the least that any needs is {least} bytes "
                f"({least / GIB:.3g} GiB); give it that much, search with more devices, or use a smaller batch"
            )
        ordered = sorted(fitting, key=lambda point: (point.step_s, point.devices, point.peak_memory_bytes))
        return tuple(point.plan for point in ordered)

    def at(self, devices: int) -> Frontier:
        """The plans that use at most so many devices.

        Raises:
            RequestError: there is none.
        """
        found = tuple(point for point in self.points if point.devices <= devices)
        if not found:
            raise RequestError(
                f"no plan of this frontier uses at most {devices} devices: expected {self.devices[0]} or more; search "
                "the graph on a machine with as many and put the frontiers together"
            )
        # Of so many devices, fewer are no better.
        return replace(self, points=found)

    def fewest(self, memory: int | None = None) -> Plan:
        """The fastest plan of this frontier of the fewest devices on which one of it fits (mini-parallelism).

        Args:
            memory: bytes of each device; by default what the machine's smallest memory holds.

        Raises:
            RequestError: none fits.
        """
        limit = self.capacity_bytes if memory is None else memory
        for count in self.devices:
            some = self.at(count)
            if min(point.peak_memory_bytes for point in some) <= limit:
                return some.best(limit)
        return self.best(limit)

    def knee(self) -> Plan:
        """The plan farthest from the line between the leanest and the fastest, both axes from 0 to 1 between these.

        (V. Satopaa et al., Finding a "Kneedle" in a Haystack, ICDCS Workshops 2011.)
        """
        lean = min(self.points, key=lambda point: (point.peak_memory_bytes, point.step_s))
        fast = min(self.points, key=lambda point: (point.step_s, point.peak_memory_bytes))
        wide, high = fast.peak_memory_bytes - lean.peak_memory_bytes, lean.step_s - fast.step_s

        def below(point: FrontierPoint) -> float:
            along = (point.peak_memory_bytes - lean.peak_memory_bytes) / wide if wide else 0.0
            return 1.0 - along - ((point.step_s - fast.step_s) / high if high else 0.0)

        return max(self.points, key=below).plan

    def table(self) -> tuple[tuple[int, float, int, float, int], ...]:
        """Rows of (devices, step_s, peak_memory_bytes, model_s, model_bytes), in order (profiling)."""
        return tuple((p.devices, p.step_s, p.peak_memory_bytes, p.model_s, p.model_bytes) for p in self.points)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw step time over memory, a line for each number of devices.

        Args:
            path: a file; its ending says the format.

        Raises:
            RequestError: matplotlib is not installed.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise RequestError("plots need matplotlib; install maniple[plot]") from error
        figure = Figure(figsize=(6, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for count in self.devices:
            own = [point for point in self.points if point.devices == count]
            x = [point.peak_memory_bytes / GIB for point in own]
            axes.plot(x, [1e3 * point.step_s for point in own], marker="o", label=f"{count} devices")
        axes.set_xlabel("memory per device, GiB")
        axes.set_ylabel("step, ms")
        axes.legend()
        figure.savefig(path)

    def with_terms(self, terms: tuple[tuple[str, Term], ...]) -> Frontier:
        """The frontier each of whose plans has more terms at the beginning of its explanation."""

        def noted(plan: Plan) -> Plan:
            told = dict(plan.explanation)
            return replace(plan, explanation=tuple({**told, "": (*terms, *told.get("", ()))}.items()))

        return replace(self, points=tuple(replace(point, plan=noted(point.plan)) for point in self.points))

    def validate(self, graph: Graph, machine: Machine) -> None:
        """Refuse a frontier of another graph, or one whose plans the machine cannot run.

        Raises:
            RequestError: says which.
        """
        for point in self.points:
            point.plan.validate(graph, machine)

    def text(self) -> str:
        """The frontier as the text of its file."""
        from maniple.strategies.interface import frontier_file

        figures = {key: getattr(self, key) for key in frontier_file.FIGURES}
        figures["inexact"] = list(self.inexact)
        measured = [({key: getattr(p, key) for key in frontier_file.MEASURES}, p.plan) for p in self.points]
        return frontier_file.text(figures, measured)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the frontier as JSON, whole or not at all; what plans have in common is written once.

        Raises:
            RequestError: the place cannot be written.
        """
        from maniple.process.file_entry import write_atomically

        write_atomically(path, self.text())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The frontier of a file.

        Raises:
            RequestError: the file or an entry of it is wrong, or of another version; the message names the place.
        """
        from maniple.process.file_entry import read_json
        from maniple.strategies.interface import frontier_file

        points, figures = frontier_file.parts(read_json(path))
        return cls(tuple(FrontierPoint(*point) for point in points), *figures)

    @classmethod
    def parse(cls, text: str, name: str = "frontier") -> Self:
        """The frontier of a file's text, as ``text`` gives it.

        Args:
            text: the text.
            name: what messages call it.

        Raises:
            RequestError: an entry is wrong.
        """
        from maniple.process.file_entry import parse_json
        from maniple.strategies.interface import frontier_file

        points, figures = frontier_file.parts(parse_json(name, text))
        return cls(tuple(FrontierPoint(*point) for point in points), *figures)


def undominated(points: Iterable[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """The points that no other one beats in time, memory and devices; of equals the first one."""
    kept: list[FrontierPoint] = []
    for point in sorted(points, key=lambda one: (one.devices, one.peak_memory_bytes, one.step_s)):
        if not any(o.peak_memory_bytes <= point.peak_memory_bytes and o.step_s <= point.step_s for o in kept):
            kept.append(point)
    return tuple(kept)


def _most(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _least(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)
