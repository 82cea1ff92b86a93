"""Kernels that a user gives: bound in place of the function and of autograd, proved, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.operator.given_kernel import BackwardKernel, ForwardKernel
from maniple.operators.proving.prover import Verdict, prove
from maniple.operators.proving.sample import long_samples, samples
from maniple.operators.proving.user_operator import OperatorFunction
from maniple.process.error import RequestError

SEED = 3


def square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * x * y


def made(name: str) -> OperatorFunction:
    return mp.operator("b n, b n -> b n", name=name)(square)


def forward(x: Any, y: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * x[i, j] * y[i, j]


def backward(gradient: Any, x: Any, y: Any, for_x: Any, for_y: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if for_x is not None:
                for_x[i, j] = 2 * gradient[i, j] * x[i, j] * y[i, j]
            if for_y is not None:
                for_y[i, j] = gradient[i, j] * x[i, j] * x[i, j]


def proved(function: OperatorFunction) -> Verdict:
    definition, operator = function.kind.definition, function.operator()
    return prove(operator, samples(definition, 4, SEED), SEED, long_samples(definition, SEED), operator.plain())


def losses(function: OperatorFunction, seed: int) -> list[float]:
    g = mp.Graph("mine")
    x, y = g.input("x", (6, 5), dtype="float64"), g.input("y", (6,), dtype="int64")
    h = function(g.linear(x, 4), g.linear(x, 4))
    assert isinstance(h, mp.Tensor)
    g.loss(g.cross_entropy(g.linear(h, 3), y))
    chance = torch.Generator().manual_seed(0)
    given = torch.randn(6, 5, generator=chance, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
    plan = mp.search(g, mp.Machine.cpu(3), strategy="random", seed=seed)
    with mp.Trainer(g, plan, optimizer=mp.SGD(lr=0.1), seed=SEED) as trainer:
        return [trainer.step(*given) for _ in range(3)]


@pytest.mark.parametrize("parts", ["forward", "backward", "both"])
def test_kernels_train_as_the_function_does(parts: str) -> None:
    plain, own = made("plain_square"), made("own_square")
    if parts != "backward":
        own.forward("numba")(forward)
    if parts != "forward":
        own.backward("numba")(backward)
    for seed in range(3):
        assert losses(own, seed) == pytest.approx(losses(plain, seed), rel=0, abs=1e-12)


def test_right_kernels_are_proved() -> None:
    own = made("right_square")
    own.forward("numba")(forward)
    own.backward("numba")(backward)
    verdict = proved(own)
    assert verdict.counterexample is None, str(verdict.counterexample)


def test_a_kernel_that_is_wrong_in_the_same_way_whole_and_split_is_found() -> None:
    own = made("wrong_square")

    @own.forward("cpu")
    def wrong(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        torch.mul(x, y, out=out)

    found = proved(own).counterexample
    assert found is not None
    assert found.kernel
    assert found.what == "result 0: the kernel's"
    assert "function " in str(found)


def test_a_backward_that_is_wrong_or_forgets_a_gradient_is_found() -> None:
    own = made("forgetful_square")

    @own.backward("cpu")
    def forgetful(gradient: Any, x: Any, y: Any, for_x: Any, for_y: Any) -> None:
        for_x.copy_(2 * gradient * x * y)

    found = proved(own).counterexample
    assert found is not None
    assert found.what == "gradient of operand 1: the kernel's"


def test_rows_that_a_window_steps_over_have_no_gradient_and_the_body_is_not_shown_them() -> None:
    @mp.operator("b s~ -> b s", halos={"s": mp.Halo(kernel=1, stride=2)})
    def every_other(x: torch.Tensor) -> torch.Tensor:
        return 3 * x[:, ::2]

    @every_other.backward("cpu")
    def tripled(gradient: Any, x: Any, for_x: Any) -> None:
        assert for_x.shape == x.shape
        for_x.zero_()
        for_x[:, ::2] = 3 * gradient

    verdict = proved(every_other)
    assert verdict.counterexample is None, str(verdict.counterexample)


def test_a_body_takes_keyword_arguments_and_the_tile() -> None:
    @mp.operator("b q -> b q")
    def ramp(x: torch.Tensor, *, rate: float = 0.5, tile: Any) -> torch.Tensor:
        return x * rate * torch.arange(*tile.tile.range("q"))

    @ramp.forward("cpu")
    def own(x: Any, out: Any, *, rate: float = 0.5, tile: Any) -> None:
        out.copy_(x * rate * torch.arange(*tile.tile.range("q")))

    verdict = proved(ramp)
    assert verdict.counterexample is None, str(verdict.counterexample)


def test_each_kind_of_processor_has_its_own() -> None:
    own = made("placed_square")
    own.backward("cuda")(backward)
    own.forward("numba")(forward)
    near, far = own.operator().kernels(), own.operator().gpu_kernels()
    assert isinstance(near.bind_forward, ForwardKernel)
    assert not isinstance(near.bind_backward, BackwardKernel)
    assert not isinstance(far.bind_forward, ForwardKernel)
    assert isinstance(far.bind_backward, BackwardKernel)


def test_ranks_and_files_with_other_kernels_are_told_apart(tmp_path: Path) -> None:
    own = made("versioned_square")
    g = mp.Graph("g")
    x = g.input("x", (3, 2))
    g.output("y", own(x, x))  # type: ignore[arg-type]
    g.save(tmp_path / "graph.json")
    own.forward("numba")(forward)
    with pytest.raises(RequestError, match="versioned_square: the graph was made with version"):
        mp.Graph.load(tmp_path / "graph.json")


def few(x: Any, y: Any) -> None:
    """Takes too few."""


@pytest.mark.parametrize(
    ("part", "kind", "message"),
    [
        ("forward", "numbra", "there are no variants for 'numbra'; did you mean 'numba'"),
        ("forward", "cpu", r"takes the operands and then the results: operand 0, .*, result 0; got \(x, y\)"),
        ("backward", "cpu", r"gradient of result 0, operand 0, operand 1, gradient of operand 0, .*; got \(x, y\)"),
    ],
)
def test_what_is_no_kernel_is_refused(part: str, kind: str, message: str) -> None:
    with pytest.raises(
        RequestError, match=rf"operator 'refused_square', {part} \(.*test_user_kernel\.py:\d+\): .*" + message
    ):
        getattr(made("refused_square"), part)(kind)(few)


def test_a_processor_has_one_body_and_giving_it_again_replaces_it() -> None:
    function = made("only_one")
    function.forward("numba")(forward)
    function.forward("numba")(forward)
    with pytest.raises(RequestError, match=r"operator 'only_one', forward .*cpu have a body already, 'numba'"):
        function.forward("cpu")(forward)
