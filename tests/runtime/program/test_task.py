"""Tasks: signatures, variants, versions."""

from __future__ import annotations

import pytest
import torch

import maniple as mp
from maniple.process.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.runtime.program.task import Parameter
from maniple.runtime.session.session import Session


@mp.task
def scale(a: float, color: mp.Color, x: mp.Read, y: mp.ReadWrite, plain: object) -> float:
    y += a * x
    return float(y.sum())


def test_parameters_say_how_regions_are_used() -> None:
    assert scale.parameters == (
        Parameter("a", None),
        Parameter("color", None, is_color=True),
        Parameter("x", READ),
        Parameter("y", READ_WRITE),
        Parameter("plain", None),
    )
    assert scale.name.endswith("test_task.scale")
    assert str(scale) == f"{scale.name}(a, color, x: read, y: read-write, plain)"


def test_every_annotation_has_its_privilege() -> None:
    @mp.task(name="all")
    def every(
        a: mp.Read, b: mp.WriteDiscard, c: mp.ReduceSum, d: mp.ReduceProduct, e: mp.ReduceMin, f: mp.ReduceMax
    ) -> None: ...

    wanted = [READ, WRITE_DISCARD, reduce("+"), reduce("*"), reduce("min"), reduce("max")]
    assert [parameter.privilege for parameter in every.parameters] == wanted
    assert every.name == "all"


def test_a_task_can_be_called_like_the_function_it_is() -> None:
    y = torch.ones(2)
    assert scale(2.0, (0,), torch.ones(2), y, None) == 6.0
    assert y.tolist() == [3.0, 3.0]


def test_variadic_parameters_are_refused() -> None:
    with pytest.raises(RequestError, match=r"parameter \*xs: .* is variadic"):

        @mp.task
        def many(*xs: mp.Read) -> None: ...

    with pytest.raises(RequestError, match=r"parameter \*\*xs: .* is variadic"):

        @mp.task
        def named(**xs: mp.Read) -> None: ...


def test_variants_take_the_parameters_of_the_task() -> None:
    @mp.task
    def twice(x: mp.ReadWrite) -> None:
        x *= 2

    before = twice.version

    @twice.variant("cpu", name="shift")
    def shift(x: torch.Tensor) -> None:
        x += x

    assert list(twice.variants) == ["cpu", "shift"]
    assert twice.variants["shift"].function is shift
    assert twice.version != before
    with pytest.raises(RequestError, match=r"variant 'bad' of task .*twice has parameters \('y',\)"):

        @twice.variant("cpu", name="bad")
        def bad(y: torch.Tensor) -> None: ...

    with pytest.raises(RequestError, match=r"there are no variants for 'numpy'.*did you mean 'numba'"):
        twice.variant("numpy")(shift)


def test_the_version_is_that_of_the_source() -> None:
    def made(text: str) -> str:
        space: dict[str, object] = {"__name__": "cell"}
        exec(text, space)
        found = space["f"]
        assert isinstance(found, mp.Task)
        return found.version

    first = "import maniple as mp\n@mp.task\ndef f(a: float) -> float:\n    return a + 1\n"
    assert made(first) == made(first)
    assert made(first) != made(first.replace("a + 1", "a * 2"))


def test_defaults_stand_for_arguments_that_a_launch_leaves_out(session: Session) -> None:
    @mp.task
    def filled(x: mp.WriteDiscard, value: float = 3.0, more: float = 0.5) -> None:
        x.fill_(value + more)

    @mp.task
    def pair(x: mp.WriteDiscard, value: float) -> None: ...

    x = session.region((4,), name="x")
    for args, expected in (((), 3.5), ((1.0,), 1.5), ((1.0, 2.0), 3.0)):
        for _ in range(3):  # recorded, then replayed
            with session.trace(f"{len(args)} given"):
                session.launch(filled, x, *args)
        assert x.read().tolist() == [expected] * 4
    with pytest.raises(RequestError, match="takes 2 arguments at launch, got 1"):
        session.launch(pair, x)
    with pytest.raises(RequestError, match="takes 3 arguments at launch, got 0"):
        session.launch(filled)


def test_the_representation_is_the_signature() -> None:
    assert repr(scale) == f"<task {scale}>"
