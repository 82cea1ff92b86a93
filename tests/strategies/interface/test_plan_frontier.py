"""A frontier of plans: its questions, what it keeps of two, and its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.operators.plan.plan import OperatorPlan, Plan, Predicted, StagePlan, WeightPlan
from maniple.strategies.interface.plan_frontier import GIB, Frontier, FrontierPoint, undominated

# (devices, step in ms, GiB): the table of the docstring.
TABLE = [(8, 10.1, 6.0), (8, 14.0, 3.1), (4, 18.2, 6.1), (4, 29.5, 3.4)]


def graph_of(width: int = 3) -> mp.Graph:
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, width), y))
    return graph


def point(devices: int, milliseconds: float, gib: float, width: int = 3) -> FrontierPoint:
    plan = mp.search(graph_of(width), mp.Machine.cpu(devices))
    return FrontierPoint(milliseconds / 1e3, int(gib * GIB), milliseconds / 1e3, int(gib * GIB), devices, plan)


def frontier(points: list[FrontierPoint], **figures: object) -> Frontier:
    known = {"exact": True, "epsilon": 0.0, "model_points": 99, "simulated": 64, "inexact": ()}
    known |= {"time_correlation": 1.0, "memory_correlation": None}
    return Frontier(undominated(points), **{**known, "capacity_bytes": 5 * GIB, **figures})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Frontier:
    return frontier([point(*row) for row in TABLE])


def figures(some: Frontier) -> list[tuple[int, float, float]]:
    return [(devices, round(1e3 * step, 3), round(memory / GIB, 3)) for devices, step, memory, _, _ in some.table()]


def step_of(some: Frontier, plan: mp.Plan) -> float:
    return next(round(1e3 * one.step_s, 3) for one in some if one.plan is plan)


def test_it_is_in_order_and_answers_as_the_docstring_says(found: Frontier) -> None:
    assert figures(found) == [(4, 29.5, 3.4), (4, 18.2, 6.1), (8, 14.0, 3.1), (8, 10.1, 6.0)]
    assert len(found) == 4
    assert step_of(found, found.best(4 * GIB)) == 14.0
    assert step_of(found, found.best(memory=7 * GIB)) == 10.1
    assert step_of(found, found.best()) == 14.0
    assert step_of(found, found.fewest(memory=4 * GIB)) == 29.5
    assert step_of(found, found.fewest(memory=int(3.2 * GIB))) == 14.0
    assert figures(found.at(devices=4)) == [(4, 29.5, 3.4), (4, 18.2, 6.1)]
    assert step_of(found.at(4), found.at(5).best(7 * GIB)) == 18.2


def test_what_nothing_answers_is_refused_with_what_there_is(found: Frontier) -> None:
    with pytest.raises(mp.RequestError, match=r"the least that any needs is 3328599654 bytes \(3.1 GiB\)"):
        found.best(3 * GIB)
    with pytest.raises(mp.RequestError, match="the least that any needs"):
        found.fewest(GIB)
    with pytest.raises(mp.RequestError, match="expected 4 or more"):
        found.at(devices=2)
    with pytest.raises(mp.RequestError, match="at least one plan"):
        frontier([])


def test_what_is_beaten_goes_but_for_its_fewer_devices() -> None:
    rows = [(4, 10.0, 4.0), (4, 10.0, 4.0), (4, 11.0, 4.0), (8, 10.0, 4.0), (8, 12.0, 5.0), (8, 9.0, 4.0)]
    assert figures(frontier([point(*row) for row in rows])) == [(4, 10.0, 4.0), (8, 9.0, 4.0)]


def test_the_knee_is_farthest_from_the_line() -> None:
    rows = [(2, 100.0, 1.0), (2, 30.0, 1.5), (2, 20.0, 3.0), (2, 10.0, 11.0)]
    some = frontier([point(*row) for row in rows])
    assert step_of(some, some.knee()) == 30.0
    alone = frontier([point(2, 5.0, 1.0)])
    assert step_of(alone, alone.knee()) == 5.0


def test_two_frontiers_of_one_graph_are_one(found: Frontier) -> None:
    both = frontier([point(*row) for row in TABLE[:2]], epsilon=0.01) | frontier(
        [point(*row) for row in TABLE[2:]], exact=False, inexact=("linear",), time_correlation=0.5, capacity_bytes=GIB
    )
    assert figures(both) == figures(found)
    assert (both.exact, both.epsilon, both.inexact, both.capacity_bytes) == (False, 0.01, ("linear",), GIB)
    assert (both.time_correlation, both.model_points, both.simulated) == (0.5, 198, 128)
    with pytest.raises(mp.RequestError, match="different graphs"):
        _ = found | frontier([point(2, 1.0, 1.0, width=5)])
    with pytest.raises(mp.RequestError, match="different graphs"):
        frontier([point(2, 1.0, 1.0, width=5), point(4, 0.5, 1.0)])


def test_what_was_searched_otherwise_is_not_put_together(found: Frontier) -> None:
    for told, others in ((("costs", "measured"), "costs: default and measured"), (("optimizer", "adam"), "adam")):
        other = found.with_terms((told,))
        assert (other | other).points == other.points
        with pytest.raises(mp.RequestError, match=others):
            _ = found | other


def test_a_file_gives_it_back(found: Frontier, tmp_path: Path) -> None:
    found.save(tmp_path / "frontier.json")
    assert mp.Frontier.load(tmp_path / "frontier.json") == found
    assert mp.Frontier.parse(found.text()) == found
    document = json.loads(found.text())
    assert len(document["configurations"]) == len({plan for p in found for _, plan in p.plan.operators})
    noted = found.with_terms((("model", "small"),))
    assert dict(dict(noted.points[0].plan.explanation)[""])["model"] == "small"


texts = st.sampled_from(["", "a", "b", "linear.weight", "\u00fc"])
seconds = st.floats(0.0, 1e9, allow_nan=False)
counts = st.integers(0, 2**53)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plans of one graph: they agree neither in which operators and weights there are nor in their order."""
    operators, weights = (draw(st.lists(texts, unique=True)) for _ in range(2))
    replicas = draw(st.integers(1, 2))
    return Plan(
        graph="graph",
        machine=draw(texts),
        operators=tuple(
            (name, OperatorPlan((), tuple(draw(st.permutations(range(replicas)))), replicas)) for name in operators
        ),
        weights=tuple((name, WeightPlan((1,), (draw(st.integers(0, 2)),))) for name in weights),
        strategy=draw(texts),
        seed=draw(st.none() | counts),
        semantics=tuple(draw(st.dictionaries(texts, texts, max_size=2)).items()),
        stages=tuple(StagePlan(tuple(names)) for names in draw(st.lists(st.lists(texts, max_size=2), max_size=2))),
        explanation=((draw(texts), (("term", draw(texts | counts | seconds | st.booleans() | st.none())),)),),
        predicted=Predicted(*draw(st.tuples(*(st.none() | some for some in (seconds, counts, counts, seconds))))),
    )


drawn_frontiers = st.builds(
    Frontier,
    st.lists(st.builds(FrontierPoint, seconds, counts, seconds, counts, st.integers(1, 9), plans()), min_size=1).map(
        tuple
    ),
    exact=st.booleans(),
    epsilon=seconds,
    model_points=st.integers(1, 2000),
    simulated=st.integers(1, 64),
    inexact=st.lists(texts).map(tuple),
    time_correlation=st.none() | st.floats(-1.0, 1.0),
    memory_correlation=st.none() | st.floats(-1.0, 1.0),
    capacity_bytes=counts,
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(drawn_frontiers)
def test_a_file_gives_any_frontier_back(some: Frontier) -> None:
    assert mp.Frontier.parse(some.text()) == some


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"frontier": 9}, "expected version 4, got 9"),
        ({"points": []}, "expected at least one point"),
        ({"graph": 3}, "graph: expected a string"),
        ({"epsilon": -1}, "epsilon: expected a finite number >= 0"),
        ({"homes": []}, "expected a number below 0"),
        ({"names": []}, "expected a number below 0"),
        ({"names": [[], []]}, "expected 1 numbers"),
    ],
)
def test_a_wrong_file_is_refused_by_its_entry(
    found: Frontier, tmp_path: Path, change: dict[str, object], told: str
) -> None:
    path = tmp_path / "frontier.json"
    path.write_text(json.dumps({**json.loads(found.text()), **change}), encoding="utf-8")
    with pytest.raises(mp.RequestError, match=told):
        mp.Frontier.load(path)


def test_a_plan_is_no_frontier(found: Frontier, tmp_path: Path) -> None:
    found.best().save(tmp_path / "plan.json")
    with pytest.raises(mp.RequestError, match="expected the file of a frontier"):
        mp.Frontier.load(tmp_path / "plan.json")


def test_it_is_checked_against_a_graph_and_a_machine(found: Frontier) -> None:
    found.validate(graph_of(), mp.Machine.cpu(8))
    with pytest.raises(mp.RequestError, match="graph"):
        found.validate(graph_of(5), mp.Machine.cpu(8))
    with pytest.raises(mp.RequestError, match="processor"):
        found.validate(graph_of(), mp.Machine.cpu(4))


def test_it_is_drawn(found: Frontier, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "frontier.svg")
    drawn = (tmp_path / "frontier.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    # A line for each number of devices.
    assert drawn.count('id="line2d_') > replace(found, points=found.points[:2]).points[0].devices
