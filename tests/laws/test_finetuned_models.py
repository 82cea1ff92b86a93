"""Language models of transformers, trained as people do, under plans: torch's losses, whatever stops in the middle.

AdamW by groups, warm-up and decay by transformers' schedule, clipping by norm, a loader, a checkpoint within an epoch:

    steps       0 .. 6                  7 .. 11
    unbroken    two ranks, samples cut  the same
    resumed     the same, saved         two ranks, the same plan: the same bits
    elsewhere                           one rank of three processors, a random plan: but for the order of sums
    by torch                            transformers' model and torch's optimizer, from our state
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shutil import copytree

import pytest
import torch
from finetuned_models import BATCH, STEPS, by_torch, graph_of, model, optimizer_of, texts, trained
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.runtime.control.world import World

SAVED = 7
TOLERANCE = {"float32": 2e-5, "bf16": 5e-3}
"""Of losses of about 3.5; autocast rounds gradients of weights, and our plans do not."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("kind", "precision"), [("llama", "float32"), ("gpt2", "bf16")])
def test_torchs_losses_with_a_resume_in_the_middle(tmp_path: Path, kind: str, precision: str) -> None:
    pytest.importorskip("transformers")
    graph_of(kind)  # before ranks as threads use it
    autocast, bound = precision == "bf16", TOLERANCE[precision]
    wanted = by_torch(kind, autocast=autocast)
    body = partial(trained, kind=kind, strategy="data_parallel", precision=precision)
    whole, parameters, kept = run_on_ranks(2, partial(body, folder=tmp_path / "whole", last=STEPS))[0]
    assert whole == pytest.approx(wanted, rel=0, abs=bound)
    assert min(whole) < whole[0] - 0.2, "there is something to learn"

    first, state, held = run_on_ranks(2, partial(body, folder=tmp_path / "saved", last=SAVED, every=SAVED))[0]
    copytree(tmp_path / "saved", tmp_path / "elsewhere")
    again, others, told = run_on_ranks(2, partial(body, folder=tmp_path / "saved", last=STEPS))[0]
    assert [*first, *again] == whole
    assert all(torch.equal(parameters[name], others[name]) for name in parameters)
    assert told["param_groups"] == kept["param_groups"]
    elsewhere = partial(body, folder=tmp_path / "elsewhere", last=STEPS, strategy="random")
    assert run_on_ranks(1, elsewhere, processors=3)[0][0] == pytest.approx(whole[SAVED:], rel=0, abs=bound)
    theirs = by_torch(kind, autocast=autocast, begun=(SAVED, state, held))
    assert theirs == pytest.approx(whole[SAVED:], rel=0, abs=bound)


def test_files_of_transformers_come_in_and_go_out(tmp_path: Path) -> None:
    """What `save_pretrained` wrote is trained, and `from_pretrained` takes what is written then."""
    pytest.importorskip("transformers")
    graph, module = graph_of("gpt2"), model("gpt2")
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(1.5)
    module.save_pretrained(tmp_path)  # type: ignore[operator]
    batch = {name: column[:BATCH] for name, column in texts().items()}
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="random", seed=1)
    with mp.Trainer(graph, plan, optimizer=optimizer_of("gpt2"), world=World.solo(2, 1)) as trainer:
        trainer.load_weights(tmp_path)
        assert trainer.step(**batch) == pytest.approx(module(**batch).loss.item(), abs=1e-5)
        trainer.save_weights(tmp_path / "model.safetensors")
        loss = trainer.step(**batch)
    found = type(module).from_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert found(**batch).loss.item() == pytest.approx(loss, abs=1e-5)
