"""A registry: what a third party may add under a name, such as a strategy or a transport.

A plug-in comes in by one of two ways, and is then the same:

    way                             known by                      loaded
    entry point of a package        all programs, `maniple list`  when it is first asked for
    ``register`` in the program     this process                  it is there

What this package brings itself is announced in its own metadata, as other packages' plug-ins are in theirs.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import TYPE_CHECKING, Generic, TypeVar, final

from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__: list[str] = []

Plugin = TypeVar("Plugin")


@final
class Registry(Generic[Plugin]):
    """The plug-ins of one kind, by name.

    Args:
        kind: what messages call one of them, such as ``strategy``.
        check: gives what a name stands for as what it must be, or raises `RequestError`.
        points: gives the entry points; by default those of the group ``maniple.KINDs`` of all installed packages. It is
            called when a name is first asked for. Equal ones may be there twice, as when a package is installed twice.
    """

    def __init__(
        self,
        kind: str,
        check: Callable[[str, object], Plugin],
        points: Callable[[], Iterable[EntryPoint]] | None = None,
    ) -> None:
        self._kind, self._check = kind, check
        self._announced = points or (lambda: entry_points(group=group(kind)))
        self._points: dict[str, dict[str, EntryPoint]] | None = None
        self._registered: dict[str, Plugin] = {}

    def names(self) -> tuple[str, ...]:
        """The names of all plug-ins, sorted; none of them is loaded."""
        return tuple(sorted({*self._find_installed(), *self._registered}))

    def origin(self, name: str) -> str:
        """Where the plug-in of a name is from: ``module:attribute``."""
        if name in self._registered:
            return _qualify(self._registered[name])
        return " and ".join(self._find_installed().get(name, ()))

    def packages(self, name: str) -> tuple[str, ...]:
        """The packages that announce a name, as they are installed: none where the program has registered it."""
        points = self._find_installed().get(name, {}).values()
        return tuple(sorted({point.dist.name for point in points if point.dist is not None}))

    def register(self, name: str, plugin: Plugin) -> None:
        """Add a plug-in of the program's own.

        The same definition, of the same module and qualified name, takes its own place: a notebook's cell may run
        again, and a module may register what its package announces.

        Args:
            name: the name.
            plugin: what it stands for.

        Raises:
            RequestError: it is none, or the name belongs to another one.
        """
        checked = self._check(name, plugin)
        own, announced = _qualify(checked), self._find_installed().get(name, ())
        others = [value for value in announced if not _passes_on(value, own)]
        if name in self._registered:
            others += {_qualify(self._registered[name])} - {own, *others}
        if others:
            raise RequestError(
                f"{self._kind} {name!r}: the name belongs to {' and '.join(others)}; register {own} under another name"
                + (", or have its package announce that" if announced else "")
            )
        self._registered[name] = checked

    def lookup(self, name: str) -> Plugin:
        """The plug-in of a name, loaded now if it was not yet.

        Raises:
            RequestError: there is none (names the nearest), two packages announce one, or what is announced is none.
        """
        if not isinstance(name, str):
            raise RequestError(f"{self._kind}: expected a name, got {name!r}; register yours, and give its name")
        if name in self._registered:
            return self._registered[name]
        points = self._find_installed().get(name)
        if points is None:
            raise RequestError(f"{self._kind} {name!r}: there is no such {self._kind}{nearest(name, self.names())}")
        if len(points) > 1:
            raise RequestError(
                f"{self._kind} {name!r} is announced twice, as {self.origin(name)}; uninstall one of the packages"
            )
        ((value, point),) = points.items()
        try:
            loaded: object = point.load()
        except (ImportError, AttributeError) as error:
            raise RequestError(f"{self._kind} {name!r}: {value} cannot be loaded ({error})") from error
        return self._check(name, loaded)

    def _find_installed(self) -> dict[str, dict[str, EntryPoint]]:
        """The entry points by name, and of each name by what they name."""
        if self._points is None:
            found: dict[str, dict[str, EntryPoint]] = {}
            for point in self._announced():
                found.setdefault(point.name, {})[point.value] = point
            self._points = found  # whole: ranks that are threads ask at the same time
        return self._points


def group(kind: str) -> str:
    """The entry-point group of a kind, in which packages announce plug-ins: of ``strategy`` ``maniple.strategies``."""
    return f"maniple.{kind[:-1]}ies" if kind.endswith("y") else f"maniple.{kind}s"


def class_check(
    kind: str, base: type[Plugin], hint: str, needs: tuple[str, ...] = ()
) -> Callable[[str, object], type[Plugin]]:
    """What checks that a plug-in is a class that completes a base class.

    Args:
        kind: as messages call it.
        base: the class that it must derive from; messages name it as ``mp.plugins`` does, without ``Abstract``.
        hint: the next step, for whoever gave something else.
        needs: attributes of the class that must be there beside the abstract methods.
    """
    public = base.__name__.removeprefix("Abstract")

    def check(name: str, found: object) -> type[Plugin]:
        wanted = f"{kind} {name!r}: expected a class that completes {public}, got {found!r}"
        if isinstance(found, base):
            raise RequestError(f"{wanted}; give the class itself, {type(found).__name__}: each use makes its own")
        if not (isinstance(found, type) and issubclass(found, base)):
            raise RequestError(f"{wanted}; {hint}")
        missing = sorted(getattr(found, "__abstractmethods__", ())) if isabstract(found) else []
        missing += [key for key in needs if not hasattr(found, key)]
        if missing:
            raise RequestError(f"{wanted}, which lacks {', '.join(missing)}; {hint}")
        return found

    return check


def _passes_on(value: str, own: str) -> bool:
    """Whether what an entry point names is a definition: in its module, or as a package around that imports it."""
    (module, _, name), (home, _, defined) = value.partition(":"), own.partition(":")
    return name == defined and f"{home}.".startswith(f"{module}.")


def _qualify(plugin: object) -> str:
    return f"{getattr(plugin, '__module__', '')}:{getattr(plugin, '__qualname__', type(plugin).__qualname__)}"
