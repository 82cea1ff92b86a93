"""Routes: the quickest way over switches, memories that pass nothing on, and what cannot be reached."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.runtime.machine.machine_part import Link, Memory, Rate
from maniple.runtime.machine.route import ROUTED_BYTES, Routes


def memories(count: int) -> list[Memory]:
    return [Memory(index, index, 0, 1, 1.0) for index in range(count)]


OWN = Rate(1.0, 1.0)


def test_the_table_of_the_docstring() -> None:
    links = [Link(0, "s", 0.0, 1e9), Link("s", 1, 0.0, 1e9), Link(0, 2, 0.0, 1e9), Link(1, "s", 0.0, 1e9)]
    routes = Routes("m", memories(3), ["s"], links, OWN, OWN)
    names = dict(enumerate("abcd")) | {len(links) + 1 * 3 + 0: "its own"}
    for pair in ((0, 1), (0, 2), (1, 0)):
        told = " ".join(names[link] for link in routes.route(*pair))
        assert f"{pair[0]}, {pair[1]}  {told}" in (Routes.__doc__ or "")
    assert routes.rate(len(links) + 3) == (1.0, 1.0)
    assert routes.name(len(links) + 3) == "1 -> 0"
    assert routes.name(0) == "0 -> s"


def test_what_cannot_be_reached_is_refused() -> None:
    links = [Link(0, "s", 0.0, 1.0), Link("s", 1, 0.0, 1.0), Link(1, "s", 0.0, 1.0)]
    with pytest.raises(RequestError, match=r"machine m: links: no way leads from memory 1 to memory 0; .*within_host"):
        Routes("m", memories(2), ["s"], links, None, None)


def test_a_memory_passes_nothing_on() -> None:
    with pytest.raises(RequestError, match="no way leads from memory 0 to memory 2"):
        Routes("m", memories(3), [], [Link(0, 1, 0.0, 1.0), Link(1, 2, 0.0, 1.0)], None, None)


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[str], list[Link]]:
    count, switches = draw(st.integers(2, 3)), ["s", "t", "u"][: draw(st.integers(0, 3))]
    ends = [*range(count), *switches]
    pairs = draw(st.lists(st.sampled_from(list(itertools.permutations(ends, 2))), unique=True, max_size=10))
    rate = st.sampled_from([1e9, 2e9, 4e9])
    return count, switches, [Link(a, b, draw(st.sampled_from([0.0, 1e-4, 1e-3])), draw(rate)) for a, b in pairs]


@given(networks())
def test_a_route_is_the_cheapest_path_over_switches(network: tuple[int, list[str], list[Link]]) -> None:
    count, switches, links = network
    routes = Routes("m", memories(count), switches, links, OWN, OWN)
    for source, target in itertools.permutations(range(count), 2):
        paths = []
        for length in range(1, len(switches) + 2):
            for chosen in itertools.permutations(range(len(links)), length):
                way = [links[number] for number in chosen]
                joined = all(a.target == b.source and a.target in switches for a, b in itertools.pairwise(way))
                if way[0].source == source and way[-1].target == target and joined:
                    paths.append((sum(link.latency_s + ROUTED_BYTES / link.bandwidth for link in way), chosen))
        route = routes.route(source, target)
        direct = [chosen for _, chosen in paths if len(chosen) == 1]
        if direct:
            assert route == direct[0]
        elif paths:
            cost = sum(links[number].latency_s + ROUTED_BYTES / links[number].bandwidth for number in route)
            assert cost == pytest.approx(min(paths)[0])
            assert any(chosen == route for _, chosen in paths)
        else:
            assert route == (len(links) + source * count + target,)
