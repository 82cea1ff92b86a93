"""The strategies by name: built-ins and other packages' alike are entry points, loaded when they are asked for."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import TYPE_CHECKING, Any

from maniple.regions.error import RequestError, nearest
from maniple.strategies.interface.strategy import AbstractStrategy

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__: list[str] = []

GROUP = "maniple.strategies"
"""The entry-point group in which packages announce strategies."""

_MODULES = {
    "antichain": "segmentation.antichain:Antichain",
    "auto": "soap.auto:Auto",
    "bapipe": "segmentation.bapipe:BaPipe",
    "data_parallel": "named.data_parallel:DataParallel",
    "exhaustive": "exhaustive.exhaustive:Exhaustive",
    "exhaustive_layers": "exhaustive.exhaustive:ExhaustiveLayers",
    "expert": "named.expert:Expert",
    "hill_climb": "soap.hill_climb:HillClimb",
    "model_parallel": "named.model_parallel:ModelParallel",
    "optcnn": "optcnn.optcnn:OptCNN",
    "random": "named.random_plan:RandomPlan",
    "reinforce": "soap.reinforce:Reinforce",
    "soap": "soap.soap:Soap",
    "spatial": "named.spatial:Spatial",
}
BUILT_IN = tuple(EntryPoint(name, f"maniple.strategies.{value}", GROUP) for name, value in _MODULES.items())
"""The strategies of this package, as its metadata announces them too."""

# A strategy's state is its own business; whoever drives it only hands it back.
AnyStrategy = AbstractStrategy[Any]


class Registry:
    """Strategies by name.

    Args:
        points: the entry points; equal ones may be there several times, as when a package is installed twice.

    Raises:
        RequestError: two different entry points have one name.
    """

    def __init__(self, points: Iterable[EntryPoint]) -> None:
        self._points: dict[str, EntryPoint] = {}
        self._registered: dict[str, type[AnyStrategy]] = {}
        for point in points:
            other = self._points.setdefault(point.name, point)
            if other.value != point.value:
                raise RequestError(
                    f"strategy {point.name!r} is announced twice, as {other.value} and as {point.value}; "
                    "uninstall one of the two packages"
                )

    def names(self) -> tuple[str, ...]:
        """The names of all strategies, sorted."""
        return tuple(sorted({*self._points, *self._registered}))

    def register(self, name: str, strategy: type[AnyStrategy]) -> None:
        """Add a strategy of the program's own; a class of the same qualified name is replaced.

        Raises:
            RequestError: it is no strategy, or the name belongs to another one.
        """
        _check(name, strategy)
        other = self._registered.get(name)
        taken = self._points[name].value if name in self._points else _qualified(other) if other else ""
        if taken and taken != _qualified(strategy):
            raise RequestError(f"strategy {name!r}: the name belongs to {taken}; register under another name")
        self._registered[name] = strategy

    def lookup(self, name: str) -> type[AnyStrategy]:
        """The strategy of a name, loaded now if it was not yet.

        Raises:
            RequestError: there is none, or what its entry point names is no strategy.
        """
        if not isinstance(name, str):
            raise RequestError(
                f"strategy: expected a name, got {name!r}; register a class of your own, and give its name"
            )
        if name in self._registered:
            return self._registered[name]
        if name not in self._points:
            raise RequestError(f"strategy {name!r}: there is no such strategy{nearest(name, self.names())}")
        point = self._points[name]
        try:
            loaded: object = point.load()
        except (ImportError, AttributeError) as error:
            raise RequestError(f"strategy {name!r}: {point.value} cannot be loaded ({error})") from error
        return _check(name, loaded)


_installed: list[Registry] = []


def installed() -> Registry:
    """The registry of this process; the packages' metadata are read at the first call."""
    if not _installed:
        _installed.append(Registry((*BUILT_IN, *entry_points(group=GROUP))))
    return _installed[0]


def register_strategy(name: str, strategy: type[AnyStrategy]) -> None:
    """Add a strategy of the program's own under a name; running a notebook's cell again replaces it.

    Raises:
        RequestError: it is no strategy, or the name belongs to another one.
    """
    installed().register(name, strategy)


def lookup(name: str) -> type[AnyStrategy]:
    """The strategy of a name.

    Raises:
        RequestError: there is none; the message names the nearest.
    """
    return installed().lookup(name)


def strategy_names() -> tuple[str, ...]:
    """The names of all strategies that can be asked for, sorted."""
    return installed().names()


def _check(name: str, strategy: object) -> type[AnyStrategy]:
    wanted = f"strategy {name!r}: expected a class that completes AbstractStrategy, got {strategy!r}"
    if not (isinstance(strategy, type) and issubclass(strategy, AbstractStrategy)):
        if isinstance(strategy, AbstractStrategy):
            raise RequestError(f"{wanted}; give the class itself, {type(strategy).__name__}: each search makes its own")
        raise RequestError(
            f"{wanted}; derive it from maniple.strategies.AbstractDirectStrategy and define name and plan(problem), "
            "or from maniple.strategies.AbstractStrategy (docs/how-to/strategy.md)"
        )
    missing = sorted(strategy.__abstractmethods__) if isabstract(strategy) else []
    missing += [key for key in ("name", "needs_budget") if not hasattr(strategy, key)]
    if missing:
        raise RequestError(f"{wanted}, which lacks {', '.join(missing)} (docs/how-to/strategy.md)")
    return strategy


def _qualified(strategy: type[AnyStrategy]) -> str:
    return f"{strategy.__module__}:{strategy.__qualname__}"
