"""The registry: one door for everything that a third party may add."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from maniple.process.error import RequestError
from maniple.process.registry import Registry, class_check, group


class Kettle(ABC):
    """What plug-ins of this test complete."""

    @abstractmethod
    def boil(self) -> str:
        """Boil."""


class Copper(Kettle):
    """A whole one."""

    def boil(self) -> str:
        """Boil."""
        return "copper"


class Cracked(Kettle):
    """One without its method."""


NOT_A_KETTLE = "tea"
HERE = __name__


def registry(*values: tuple[str, str]) -> Registry[type[Kettle]]:
    points = [EntryPoint(name, value, group("kettle")) for name, value in values]
    return Registry("kettle", class_check("kettle", Kettle, "derive it from Kettle"), lambda: points)


def test_who_asks_while_another_does_finds_all_names() -> None:
    asked: list[tuple[str, ...]] = []

    def points() -> Iterator[EntryPoint]:
        yield EntryPoint("copper", f"{HERE}:Copper", group("kettle"))
        if not asked:  # as another thread would, half way through
            asked.append(("asks",))
            asked.append(made.names())
        yield EntryPoint("tin", f"{HERE}:Copper", group("kettle"))

    made = Registry("kettle", class_check("kettle", Kettle, "derive it from Kettle"), points)
    assert made.names() == ("copper", "tin")
    assert asked[1] == ("copper", "tin")


def test_the_group_is_the_plural_of_the_kind() -> None:
    assert [group(kind) for kind in ("strategy", "mapper", "device")] == [
        "maniple.strategies",
        "maniple.mappers",
        "maniple.devices",
    ]


def test_an_entry_point_and_a_registered_class_are_found_alike() -> None:
    kettles = registry(("order", "collections:OrderedDict"))
    kettles.register("copper", Copper)
    assert kettles.names() == ("copper", "order")
    assert kettles.lookup("copper") is Copper
    assert kettles.origin("order") == "collections:OrderedDict"


def test_names_load_nothing() -> None:
    assert registry(("broken", "no.such.module:Kettle")).names() == ("broken",)


def test_entry_points_are_read_when_a_name_is_asked_for() -> None:
    def fail() -> list[EntryPoint]:
        pytest.fail("entry points were read before a name was asked for")

    Registry("kettle", class_check("kettle", Kettle, "derive it from Kettle"), fail)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no.such.module:Kettle", "cannot be loaded"),
        ("collections:NoSuchThing", "cannot be loaded"),
        ("collections:OrderedDict", "expected a class that completes Kettle.*derive it from Kettle"),
        ("math:pi", "expected a class that completes Kettle"),
    ],
)
def test_what_is_announced_must_be_a_plugin(value: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"kettle 'odd'.*{message}"):
        registry(("odd", value)).lookup("odd")


def test_an_unknown_name_gets_the_nearest() -> None:
    kettles = registry(("copper", "x:Y"))
    with pytest.raises(RequestError, match=r"there is no such kettle.*copper"):
        kettles.lookup("coper")


def test_a_name_that_two_packages_announce_is_refused_when_it_is_asked_for() -> None:
    kettles = registry(("both", "first:Kettle"), ("both", "second:Kettle"), ("order", "collections:OrderedDict"))
    assert kettles.names() == ("both", "order")
    with pytest.raises(RequestError, match="announced twice, as first:Kettle and second:Kettle"):
        kettles.lookup("both")


def test_a_package_that_is_installed_twice_is_one() -> None:
    kettles = registry(("order", "collections:OrderedDict"), ("order", "collections:OrderedDict"))
    with pytest.raises(RequestError, match="expected a class"):  # loaded: not refused as announced twice
        kettles.lookup("order")


def test_what_lacks_a_method_or_is_an_instance_is_refused() -> None:
    kettles = registry()
    with pytest.raises(RequestError, match="lacks boil"):
        kettles.register("cracked", Cracked)
    with pytest.raises(RequestError, match="give the class itself, Copper"):
        kettles.register("copper", Copper())  # type: ignore[arg-type]


def test_a_name_belongs_to_one_plugin_and_the_same_class_defined_again_replaces_it() -> None:
    kettles = registry(("taken", "some.package:Kettle"))
    kettles.register("copper", Copper)
    again = type("Copper", (Copper,), {"__module__": HERE, "__qualname__": "Copper"})
    kettles.register("copper", again)
    assert kettles.lookup("copper") is again
    other = type("Other", (Copper,), {"__module__": HERE, "__qualname__": "Other"})
    with pytest.raises(RequestError, match=r"belongs to .*:Copper; register .*:Other under another name$"):
        kettles.register("copper", other)
    with pytest.raises(RequestError, match=r"belongs to some\.package:Kettle; register .* under another name, or"):
        kettles.register("taken", Copper)
    assert kettles.lookup("copper") is again


def test_a_name_must_be_a_string() -> None:
    with pytest.raises(RequestError, match="expected a name, got <class"):
        registry().lookup(Copper)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["package.kettles:Own", "package:Own"])
def test_a_package_may_register_what_it_announces(place: str) -> None:
    """As a module does that is imported because its entry point is loaded."""
    kettles = registry(("taken", place))
    own = type("Own", (Copper,), {"__module__": "package.kettles", "__qualname__": "Own"})
    kettles.register("taken", own)
    kettles.register("taken", own)
    assert kettles.lookup("taken") is own


@pytest.mark.parametrize("module", ["acme.two", "acme.one.inner", "acme.one"])
def test_what_shares_no_more_than_a_package_with_the_owner_of_a_name_is_refused(module: str) -> None:
    """As two packages of one namespace, which need not know of each other."""
    kettles = registry(("taken", "acme.one:Kettle"))
    other = type("Other", (Copper,), {"__module__": module, "__qualname__": "Other"})
    with pytest.raises(
        RequestError,
        match=rf"acme\.one:Kettle; register {module}:Other under another name, or have its package announce that",
    ):
        kettles.register("taken", other)
    kettles.register("free", other)
    with pytest.raises(RequestError, match=rf"belongs to {module}:Other; register .*:Copper under another name$"):
        kettles.register("free", Copper)


def test_messages_call_a_base_class_as_plugins_do() -> None:
    class AbstractPot:
        pass

    with pytest.raises(RequestError, match="expected a class that completes Pot, got"):
        class_check("pot", AbstractPot, "derive it")("mine", 3)
