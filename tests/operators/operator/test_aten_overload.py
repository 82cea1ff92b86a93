"""Operators by name: a graph's file may name what makes tensors, and nothing else that torch or Python has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import maniple as mp
from maniple.operators.operator.aten_overload import calculation
from maniple.process.error import RequestError
from maniple.runtime.schedule.failure import TaskFailed


@pytest.mark.parametrize("name", ["gelu", "sum.dim_IntList", "__and__.Tensor", "einsum", "full", "meshgrid.indexing"])
def test_what_makes_tensors_may_be_called(name: str) -> None:
    assert callable(calculation(name))


@pytest.mark.parametrize(
    "name", ["no_such_operator", "__class__.mro", "__setattr__.__call__", "gelu.__reduce__", "sum.x"]
)
def test_what_is_no_operator_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"has no operator aten\."):
        calculation(name)


@pytest.mark.parametrize(
    "name", ["add_.Tensor", "copy_", "from_file", "save", "set_data", "manual_seed", "size", "_print"]
)
def test_what_does_more_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=rf"aten\.{name}: expected an operator that makes tensors"):
        calculation(name)


HOSTILE = (
    "from_file({made!r}, True, 4)",
    "__setattr__.__call__('known', __getattr__.__getattribute__('__globals__'))",
)


@pytest.mark.parametrize("inner", HOSTILE)
def test_a_graph_from_a_file_does_nothing_else(tmp_path: Path, inner: str) -> None:
    """``from_file`` would make the file; names that Python gives to a name space lead to all of Python."""
    module, made, path = (
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softsign()),
        tmp_path / "made",
        tmp_path / "g",
    )
    target = torch.zeros(4, 4)
    mp.from_torch(module, (torch.zeros(4, 3),), loss=torch.nn.functional.mse_loss, targets=(target,)).save(path)
    text = path.read_text()
    call = json.loads(text)["nodes"][1]["attributes"]["call"]
    assert text.count(json.dumps(call)) == 1
    path.write_text(text.replace(json.dumps(call), json.dumps(f"add.Tensor(x0, {inner.format(made=str(made))})")))
    graph = mp.Graph.load(path)
    plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
    with (
        mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer,
        pytest.raises(TaskFailed, match=r"opens no file|no operator aten\.__"),
    ):
        trainer.step(torch.ones(4, 3), target)
    assert not made.exists()
    assert not hasattr(torch.ops.aten, "known")
