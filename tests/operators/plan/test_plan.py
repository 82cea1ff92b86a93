"""Plans: their file form, every refusal, and what they print."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_plans import GRAPH, MACHINE, cut, single, with_operator

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import OperatorPlan, Plan, Predicted, StagePlan, WeightPlan
from maniple.operators.rules.task_placement import processors_by_point
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path


def with_weight(name: str, weight: WeightPlan) -> Plan:
    """The plan with another home of one weight."""
    plan = single()
    return replace(plan, weights=tuple((key, weight if key == name else old) for key, old in plan.weights))


def rich() -> Plan:
    """A plan in which every key says something."""
    plan = with_operator("conv2d", cut(GRAPH, "conv2d", (0, 1, 2, 3), replicas=2, b=2))
    return replace(
        plan,
        strategy="by hand",
        seed=7,
        semantics=(("weights", "asynchronous"),),
        stages=(StagePlan(tuple(name for name, _ in plan.operators)),),
        explanation=(("conv2d", (("chosen", "b=2"), ("runner up, s", 0.25), ("bytes", 3))), ("", (("best", None),))),
        predicted=Predicted(0.5, 100, 12, 0.25),
    )


@pytest.mark.parametrize("plan", [single(), rich()])
def test_the_file_gives_the_plan_back(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "my-plan.json"
    plan.save(path)
    again = Plan.load(path)
    assert again == plan
    assert hash(again) == hash(plan)
    again.save(tmp_path / "again.json")
    assert path.read_bytes() == (tmp_path / "again.json").read_bytes()


def test_every_key_is_in_the_file_and_a_changed_operator_is_one_changed_line(tmp_path: Path) -> None:
    single().save(tmp_path / "a.json")
    with_operator("relu", cut(GRAPH, "relu", (0, 1), b=2)).save(tmp_path / "b.json")
    a, b = ((tmp_path / name).read_text(encoding="utf-8").splitlines() for name in ("a.json", "b.json"))
    assert len(a) == len(b)
    assert sum(old != new for old, new in zip(a, b, strict=True)) == 1
    assert list(json.loads("\n".join(a))) == [
        *("version", "graph", "machine", "strategy", "seed", "semantics", "operators"),
        *("weights", "stages", "pipeline", "explanation", "predicted"),
    ]


def test_saving_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    single().save(path)
    before = path.read_bytes()
    broken = replace(single(), explanation=(("", (("cost", float("nan")),)),))
    with pytest.raises(RequestError, match="this plan cannot be written"):
        broken.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(RequestError, match=r"cannot be written .*choose a folder that exists"):
        single().save(tmp_path / "none" / "plan.json")
    (tmp_path / "held").mkdir()
    with pytest.raises(RequestError, match=r"cannot be written .*choose another place"):
        single().save(tmp_path / "held")


def _edit(document: dict[str, object], path: str, value: object) -> None:
    """Set the entry at a path (keys joined by slashes); delete it where the value is `...`."""
    *parents, last = path.split("/")
    place: object = document
    for key in parents:
        assert isinstance(place, dict | list)
        place = place[int(key)] if isinstance(place, list) else place[key]
    assert isinstance(place, dict)
    if value is ...:
        del place[last]
    else:
        place[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("operators/conv2d/degrees/b", "two", "operators.conv2d.degrees.b: expected an integer >= 1, got 'two'"),
        ("operators/conv2d/degrees/b", 0, "operators.conv2d.degrees.b: expected an integer >= 1, got 0"),
        ("operators/conv2d/degrees/b", True, "operators.conv2d.degrees.b: expected an integer >= 1, got True"),
        ("operators/conv2d/degrees/b", 1.0, "operators.conv2d.degrees.b: expected an integer >= 1, got 1.0"),
        ("operators/conv2d/degrees/b", 3, "operators.conv2d.processors: expected 6 processors (the product of"),
        ("operators/conv2d/degrees", [], "operators.conv2d.degrees: expected a table of named entries, got []"),
        ("operators/conv2d/processors", [0, -1, 0, 0], "operators.conv2d.processors[1]: expected an integer >= 0"),
        ("operators/conv2d/processors", 4, "operators.conv2d.processors: expected a list, got 4"),
        ("operators/conv2d/replica", 1, "operators.conv2d.replica: unknown key; did you mean 'replicas'?"),
        ("operators/conv2d/replicas", ..., "operators.conv2d.replicas: this key is missing"),
        ("operators/conv2d/replicas", 0, "operators.conv2d.replicas: expected an integer >= 1, got 0"),
        ("operators", 3, "operators: expected a table of named entries, got 3"),
        ("weights/conv2d.weight/degrees", [1, 1, "a", 1], "weights.conv2d.weight.degrees[2]: expected an integer"),
        ("weights/conv2d.weight/home", 3, "weights.conv2d.weight.home: unknown key"),
        ("stages/0/operators", [3], "stages[0].operators[0]: expected a string, got 3"),
        ("predicted/step_s", "fast", "predicted.step_s: expected a number >= 0, got 'fast'"),
        ("predicted/bytes", 1.5, "predicted.bytes: expected an integer >= 0, got 1.5"),
        ("explanation/conv2d/chosen", [1], "explanation.conv2d.chosen: expected a string, a number"),
        ("semantics/weights", 3, "semantics.weights: expected a string, got 3"),
        ("seed", -1, "seed: expected an integer >= 0, got -1"),
        ("seed", ..., "seed: this key is missing"),
        ("sed", 1, "sed: unknown key; did you mean 'seed'?"),
        ("graph", None, "graph: expected a string, got None"),
        ("version", ..., "version: this key is missing"),
        ("version", 5, "version: expected 4, got 5; this plan was written by a newer maniple"),
        ("version", 2, "version: expected 4, got 2; this plan was written by an older maniple"),
        ("pipeline", {"order": "1f1b", "micro_batches": 0}, "pipeline.micro_batches: expected an integer >= 1, got 0"),
        ("pipeline", {"order": "1f1b"}, "pipeline.micro_batches: this key is missing"),
        ("pipeline", ..., "pipeline: this key is missing"),
        ("operators/conv2d/recompute", 1, "operators.conv2d.recompute: expected true or false, got 1"),
        ("version", "1", "version: expected an integer >= 1, got '1'"),
    ],
)
def test_wrong_entries_are_named_by_path(tmp_path: Path, path: str, value: object, message: str) -> None:
    document = json.loads(json.dumps(rich().to_json()))
    _edit(document, path, value)
    file = tmp_path / "my-plan.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        Plan.load(file)
    assert str(caught.value).startswith(f"{file}: {message}")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    rich().save(path)
    text = path.read_text(encoding="utf-8")
    end = data.draw(st.integers(0, len(text.rstrip()) - 1))
    path.write_text(text[:end], encoding="utf-8")
    with pytest.raises(RequestError, match="not a whole JSON document"):
        Plan.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 1, "version": 1}', "appears twice"),
        ('{"version": NaN}', "NaN is no number"),
        ("[" * 100_000, "not a"),
        ("[]", "expected a table"),
        ("3", "expected a table"),
        ("\ud800", "not a"),
    ],
)
def test_files_that_are_no_plans(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RequestError, match=message):
        Plan.load(path)
    with pytest.raises(RequestError, match="cannot be read"):
        Plan.load(tmp_path / "none.json")


CONV = "operators.conv2d"

REFUSALS = {
    "another graph": (replace(single(), graph="0" * 32), "plan: graph: the plan is for the graph '0000"),
    "a missing operator": (replace(single(), operators=single().operators[1:]), "operators.conv2d: missing"),
    "an unknown operator": (
        replace(single(), operators=(*single().operators, ("conv2", cut(GRAPH, "relu", (0,))))),
        "operators.conv2: the graph has no such name; did you mean 'conv2d'?",
    ),
    "an operator twice": (None, "plan: operator relu is there twice"),
    "a missing weight": (replace(single(), weights=single().weights[1:]), "weights.conv2d.weight: missing"),
    "an unknown weight": (
        replace(single(), weights=(*single().weights, ("conv2d.wait", WeightPlan((1,), (0,))))),
        "weights.conv2d.wait: the graph has no such name; did you mean 'conv2d.weight'?",
    ),
    "an unknown factor": (
        with_operator("relu", OperatorPlan((*cut(GRAPH, "relu", (0,)).degrees, ("q", 1)), (0,))),
        "operators.relu.degrees.q: the graph has no such name",
    ),
    "a missing factor": (
        with_operator("relu", OperatorPlan(cut(GRAPH, "relu", (0,)).degrees[1:], (0,))),
        "operators.relu.degrees.b: missing",
    ),
    "another order of factors": (
        with_operator("relu", OperatorPlan(cut(GRAPH, "relu", (0,)).degrees[::-1], (0,))),
        "operators.relu.degrees: expected the order ['b', ",
    ),
    "a degree above the extent": (
        with_operator("conv2d", cut(GRAPH, "conv2d", (0,) * 7, b=7)),
        f"{CONV}.degrees.b: expected a degree of at most 6 (the extent of factor b), got 7",
    ),
    "a split of a whole factor": (
        with_operator("conv2d", cut(GRAPH, "conv2d", (0, 1), u=2)),
        f"{CONV}.degrees.u: factor u stays whole: expected 1, got 2",
    ),
    "a processor that does not exist": (
        with_operator("conv2d", cut(GRAPH, "conv2d", (0, 7), b=2)),
        f"{CONV}.processors[1]: processor 7 does not exist; the machine has 4: 0..3",
    ),
    "replicas on one processor": (
        with_operator("conv2d", cut(GRAPH, "conv2d", (0, 1, 2, 2), replicas=2, b=2)),
        f"{CONV}.processors[2]: expected the 2 replicas of one point on distinct processors, got [2, 2]",
    ),
    "a home of another rank": (
        with_weight("conv2d.weight", WeightPlan((1,), (0,))),
        "weights.conv2d.weight.degrees: expected 4 degrees for the shape (4, 1, 3, 3), got [1]",
    ),
    "a home of too many blocks": (
        with_weight("conv2d.weight", WeightPlan((1, 2, 1, 1), (0, 1))),
        "weights.conv2d.weight.degrees[1]: expected a degree of at most 1 (the extent of dimension 1), got 2",
    ),
    "a home that does not exist": (
        with_weight("conv2d.bias", WeightPlan((1,), (4,))),
        "weights.conv2d.bias.processors[0]: processor 4 does not exist; the machine has 4: 0..3",
    ),
    "two replicas of a home in one place": (
        with_weight("conv2d.bias", WeightPlan((1,), (1, 1), replicas=2)),
        "weights.conv2d.bias.processors[0]: expected the 2 replicas of one point on distinct processors",
    ),
    "semantics": (
        replace(single(), semantics=(("gradients", "late"),)),
        "semantics.gradients: expected batch_norm=local_stats or precision=float32 or precision=bf16 or ",
    ),
    "an operator in no stage": (
        replace(single(), stages=(StagePlan(("conv2d",)),)),
        "stages.relu: missing",
    ),
    "an operator in two stages": (None, "stages.relu: expected every operator in one stage"),
}


def _late(case: str) -> Plan:
    """The plans of the table that need the names of all operators, or that no one can even make."""
    names = tuple(node.name for node in GRAPH.nodes)
    stages = {
        "an operator in two stages": (StagePlan(names), StagePlan(("relu",))),
    }
    if case in stages:
        return replace(single(), stages=stages[case])
    return replace(single(), operators=(*single().operators, ("relu", cut(GRAPH, "relu", (0,)))))


@pytest.mark.parametrize("case", list(REFUSALS))
def test_every_refusal_names_its_entry(case: str) -> None:
    plan, message = REFUSALS[case]
    with pytest.raises(RequestError) as caught:
        (plan or _late(case)).validate(GRAPH, MACHINE)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("degrees", "processors", "replicas"),
    [((("b", 2),), (0,), 1), ((("b", 2),), (0, 1), 2), ((("b", 0),), (), 1), ((("b", 1),), (), 0)],
)
def test_configurations_of_the_wrong_length(
    degrees: tuple[tuple[str, int], ...], processors: tuple[int, ...], replicas: int
) -> None:
    with pytest.raises(RequestError, match="expected"):
        OperatorPlan(degrees, processors, replicas)
    with pytest.raises(RequestError, match="expected"):
        WeightPlan(tuple(degree for _, degree in degrees), processors, replicas)


def test_a_legal_plan_runs_on_any_machine_with_its_processors() -> None:
    plan = with_operator("conv2d", cut(GRAPH, "conv2d", (0, 1), b=2))
    plan.validate(GRAPH, MACHINE)
    plan.validate(GRAPH, Machine.preset("cpu:2x1"))
    with pytest.raises(RequestError, match="processor 1 does not exist; the machine has 1: 0"):
        plan.validate(GRAPH, Machine.preset("cpu:1"))


def test_the_plan_of_a_smaller_batch_may_have_empty_tiles() -> None:
    plan = with_operator("conv2d", cut(GRAPH, "conv2d", (0, 1, 2), b=3))
    smaller = GRAPH.with_batch(2)
    again = plan.for_graph(smaller)
    again.validate(smaller, MACHINE, strict=False)
    assert again.operators == plan.operators
    with pytest.raises(RequestError, match="expected a degree of at most 2"):
        again.validate(smaller, MACHINE)
    with pytest.raises(RequestError, match="the plan is for the graph"):
        plan.validate(smaller, MACHINE, strict=False)
    other = Graph("other")
    other.loss(other.cross_entropy(other.linear(other.input("x", (2, 3)), 4), other.input("y", (2,), dtype="int64")))
    with pytest.raises(RequestError, match="the graph has no such name"):
        plan.for_graph(other)


def test_points_are_row_major_with_replicas_next_to_each_other() -> None:
    plan = OperatorPlan((("b", 2), ("n", 1)), (0, 1, 2, 3), replicas=2)
    assert [plan.of_point(point) for point in range(plan.points)] == [(0, 1), (2, 3)]
    assert plan.degree("b") == 2
    home = WeightPlan((2, 1), (3, 2, 1, 0), replicas=2)
    assert processors_by_point(home).tolist() == [[3, 2], [1, 0]]


def test_the_table_and_the_explanation() -> None:
    plan = replace(rich(), semantics=())
    assert plan.table()[:2] == (("conv2d", "b=2", "2", "0 1 2 3"), ("relu", "whole", "1", "0"))
    assert plan.processors_used() == (0, 1, 2, 3)
    assert plan.explain("conv2d").splitlines() == [
        "conv2d: b=2 x2 replicas on processors 0-3",
        "  chosen: b=2",
        "  runner up, s: 0.25",
        "  bytes: 3",
    ]
    lines = plan.explain().splitlines()
    assert lines[0] == "plan by by hand, seed 7; semantics: exact"
    assert lines[-1] == "best: None"
    assert len(lines) == 1 + len(plan.operators) + 3 + 1
    with pytest.raises(RequestError, match="did you mean 'conv2d'"):
        plan.explain("conv2")


def test_lookups_name_the_nearest() -> None:
    assert single().operator("relu").processors == (0,)
    assert single().weight("linear.bias").degrees == (1,)
    with pytest.raises(RequestError, match=r"did you mean 'linear.bias'"):
        single().weight("linear.bas")
