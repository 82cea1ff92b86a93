"""What goes to torch and to others and comes from them: by torch's names, the same bits, nothing half taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from continued_training import OPTIMIZERS, batch, everything, new, on_ranks, train
from failing_files import FailingFiles
from safetensors.torch import load_file, save_file

import maniple as mp
from maniple.process.error import RequestError, RunError
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine


class Tied(torch.nn.Module):
    """Two names for one weight, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(6)
        self.register_buffer("scale", torch.full((6,), 0.5), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.norm(self.second(self.first(x) * self.scale)), y)


def tied() -> tuple[Tied, mp.Graph]:
    torch.manual_seed(3)
    module = Tied()
    inputs = torch.randn(8, 6), torch.randn(8, 6)
    return module, mp.from_torch(module, inputs)


def tied_trainer(world: World, graph: mp.Graph, seed: int = 1) -> mp.Trainer:
    plan = mp.search(graph, host_machine(world), strategy="random", seed=seed)
    return mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), world=world)


def test_weights_go_to_a_module_and_come_back(tmp_path: Path) -> None:
    path, graph = tmp_path / "model.safetensors", tied()[1]

    def write(world: World) -> dict[str, torch.Tensor]:
        with tied_trainer(world, graph) as trainer:
            trainer.step(torch.ones(8, 6), torch.zeros(8, 6))
            trainer.save_weights(path)
            return trainer.state_dict()

    expected = on_ranks(2, write)[0]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    held = load_file(path)
    assert {name: value.shape for name, value in held.items()} == {n: v.shape for n, v in expected.items()}
    assert all(torch.equal(held[name], expected[name]) for name in expected)
    Tied().load_state_dict(held, strict=True)

    def read(world: World) -> dict[str, torch.Tensor]:
        with tied_trainer(world, graph, seed=9) as trainer:
            trainer.load_weights(path if world.size > 1 else tmp_path)
            return trainer.state_dict()

    for ranks in (1, 3):
        for found in on_ranks(ranks, read):
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_files_as_hugging_face_has_them_are_taken(tmp_path: Path) -> None:
    """Several files with an index, a tie under one of its names alone, and halves where that is said."""
    module, graph = tied()
    state = {name: value.clone() for name, value in module.state_dict().items() if name != "first.weight"}
    parts = [dict(list(state.items())[::2]), dict(list(state.items())[1::2])]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, tmp_path / name)
    weight_map = {key: name for name, part in zip(names, parts, strict=True) for key in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    with tied_trainer(World.solo(2, 1), graph) as trainer:
        trainer.step(torch.ones(8, 6), torch.zeros(8, 6))
        trainer.load_weights(tmp_path)
        assert all(torch.equal(value, state[name]) for name, value in trainer.state_dict().items() if name in state)
        halves = tmp_path / "halves.safetensors"
        save_file(
            {name: value.bfloat16() if value.is_floating_point() else value for name, value in state.items()}, halves
        )
        with pytest.raises(RequestError, match="expected float32, got bfloat16"):
            trainer.load_weights(halves)
        trainer.load_weights(halves, cast=True)
        weight = trainer.state_dict()["second.weight"]
        assert torch.equal(weight, state["second.weight"].bfloat16().float())


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    module, graph = tied()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    path = tmp_path / "model.safetensors"
    with tied_trainer(World.solo(2, 1), graph) as trainer:
        trainer.step(torch.ones(8, 6), torch.zeros(8, 6))
        before = everything(trainer)
        for name, value, problem in [
            ("first.bios", torch.zeros(6), "no such tensor; did you mean 'first.bias'"),
            ("first.bias", torch.zeros(7), r"expected \(6,\), got \(7,\)"),
            ("first.bias", torch.zeros(6, dtype=torch.int64), "expected float32, got int64"),
            ("first.bias", None, "1 of .* tensors are missing, the first is 'first.bias'"),
        ]:
            changed = {key: each for key, each in state.items() if (key, value) != (name, None)}
            save_file({**changed, **({} if value is None else {name: value})}, path)
            with pytest.raises(RequestError, match=problem):
                trainer.load_weights(path, cast=value is None)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(RequestError, match="cannot be read"):
            trainer.load_weights(path)
        with pytest.raises(RequestError, match="cannot be read"):
            trainer.load_weights(tmp_path / "nowhere.safetensors")
        for index, problem in [
            ({}, "weight_map: this key is missing"),
            ({"weight_map": {"first.bias": "../x"}}, "files of the same folder"),
        ]:
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
            with pytest.raises(RequestError, match=problem):
                trainer.load_weights(tmp_path)
        with pytest.raises(RequestError, match="there is no folder"):
            trainer.save_weights(tmp_path / "no" / "file")
        after = everything(trainer)
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_full_disk_leaves_no_file_of_weights(tmp_path: Path) -> None:
    """At whatever operation: there is no file then, or a whole one that may not last."""
    path = tmp_path / "w.safetensors"
    with new(World.solo(2, 1)) as trainer:
        trainer._files = files = FailingFiles(-1)
        trainer.save_weights(path)
        whole, count = path.read_bytes(), files.done
        assert count > 10
        for at in range(count - 1):  # the last one removes what is not needed any more
            path.unlink(missing_ok=True)
            trainer._files = files = FailingFiles(at, "full")
            with pytest.raises(RunError, match=r"was not written: .*No space left on device"):
                trainer.save_weights(path)
            assert not path.exists() or path.read_bytes() == whole
            files.free()
            trainer.save_weights(path)
            assert [file.name for file in tmp_path.iterdir()] == [path.name]
        assert torch.equal(load_file(path)["linear.bias"], trainer.parameters()["linear.bias"])


def twin(trainer: mp.Trainer, kind: str, options: dict[str, Any], groups: dict[str, Any]) -> Any:
    """Torch's optimizer of the trainer's parameters."""
    rows: list[list[torch.nn.Parameter]] = [[] for _ in range(1 + len(groups))]
    for name, value in trainer.parameters().items():
        rows[trainer.optimizer.row_of(name)].append(torch.nn.Parameter(value))
    extras = [{}, *groups.values()]
    made = [{"params": row, **extra} for row, extra in zip(rows, extras, strict=True)]
    return getattr(torch.optim, kind)(made, **options), [value for row in rows for value in row]


GROUPS = {"*.bias": {"weight_decay": 0.0}}


@pytest.mark.parametrize(
    ("optimizer", "kind", "options", "groups"),
    [
        (mp.SGD(lr=0.1, momentum=0.9, weight_decay=0.1), "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}, {}),
        (mp.optim.AdamW(lr=0.01, groups=GROUPS), "AdamW", {"lr": 0.01}, GROUPS),
        (mp.optim.Adam(lr=0.01, amsgrad=True), "Adam", {"lr": 0.01, "amsgrad": True}, {}),
        (mp.optim.by_torch(torch.optim.RMSprop, lr=0.01), "RMSprop", {"lr": 0.01}, {}),
    ],
    ids=["SGD", "AdamW", "Adam", "RMSprop"],
)
def test_torchs_optimizer_goes_on_where_ours_was_and_ours_where_it_was(
    optimizer: Any, kind: str, options: dict[str, Any], groups: dict[str, Any]
) -> None:
    with new(World.solo(2, 1), optimizer) as trainer:
        train(trainer, 0, 3)
        trainer.hyper["lr"] = 0.02
        state = trainer.torch_optimizer_state()
        torchs, parameters = twin(trainer, kind, options, groups)
        torchs.load_state_dict(state)
        chance = torch.Generator().manual_seed(5)
        for value in parameters:  # a step of gradients of torch's own
            value.grad = torch.randn(value.shape, generator=chance, dtype=value.dtype)
        torchs.step()
        moved = {
            name: value
            for row in state["param_groups"]
            for name, value in zip(row["param_names"], row["params"], strict=True)
        }
        trainer.load_torch_optimizer_state(torchs.state_dict())
        ours = trainer.torch_optimizer_state()
        assert ours["param_groups"] == state["param_groups"]
        for place in moved.values():
            for key, value in torchs.state_dict()["state"][place].items():
                if key == "step" and kind == "SGD":
                    continue
                assert torch.equal(torch.as_tensor(ours["state"][place][key]), torch.as_tensor(value)), key
        assert trainer.hyper["lr"] == 0.02


def test_torchs_step_from_our_state_is_ours() -> None:
    """The state that ours gives is what torch's update reads: the next step of both is the same."""
    with new(World.solo(1, 1), OPTIMIZERS[3]) as trainer:
        train(trainer, 0, 3)
        state = trainer.torch_optimizer_state()
        torchs, parameters = twin(trainer, "Adam", {"lr": 0.01, "amsgrad": True}, {})
        torchs.load_state_dict(state)
        names = state["param_groups"][0]["param_names"]
        before = trainer.optimizer_state()
        trainer.step(**batch(3))
        after = trainer.optimizer_state()
        for name, value in zip(names, parameters, strict=True):  # the gradient, from the change of its mean
            value.grad = (after[f"{name}.exp_avg"] - 0.9 * before[f"{name}.exp_avg"]) / 0.1
        torchs.step()
        for name, value in zip(names, parameters, strict=True):
            torch.testing.assert_close(value.detach(), trainer.parameters()[name], rtol=1e-9, atol=1e-12)
