"""Language models of transformers, small and random, trained as people do: AdamW by groups, warm-up, clipping.

In plain torch, and under a plan with a checkpoint in the middle of an epoch, from which another trainer goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

WORDS, LENGTH, SAMPLES, BATCH = 37, 8, 20, 4
STEPS, WARM_UP = 12, 4
"""Five steps are an epoch."""
UNDECAYED = {"gpt2": "*.bias|*.ln_*", "llama": "*norm.weight"}
"""Of each model what gets no decay, as in transformers' trainer: biases, and the weights of norms."""


def model(kind: str) -> torch.nn.Module:
    """A model as transformers makes it, the same one each time."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers  # type: ignore[import-untyped, unused-ignore]

    given: dict[str, Any] = {"vocab_size": WORDS, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    if kind == "gpt2":
        still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        config = transformers.GPT2Config(n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, **still, **given)
        return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        **given,
    )
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def texts() -> dict[str, torch.Tensor]:
    """The samples: words that repeat, so that there is something to learn."""
    chance = torch.Generator().manual_seed(5)
    words = torch.randint(WORDS, (SAMPLES, LENGTH // 2), generator=chance).repeat(1, 2)
    return {"input_ids": words, "labels": words}


@cache
def graph_of(kind: str) -> mp.Graph:
    """The imported model."""
    return mp.from_torch(model(kind), {name: column[:BATCH] for name, column in texts().items()})


def schedule(optimizer: torch.optim.Optimizer) -> Any:
    """Transformers' warm-up and decay."""
    import transformers

    return transformers.get_cosine_schedule_with_warmup(optimizer, WARM_UP, STEPS)


def loader(start: Any = None) -> mp.data.Loader:
    """The batches of an epoch, from a place in it on."""
    return mp.data.Loader(texts(), batch=BATCH, seed=3, start=start)


def rows() -> Iterator[list[int]]:
    """The numbers of the samples of each step."""
    found = loader()
    while True:
        for batch in found:
            yield list(batch.numbers)


def by_torch(kind: str, *, autocast: bool = False, begun: tuple[int, Any, dict[str, Any]] | None = None) -> list[float]:
    """Losses by plain torch.

    Args:
        kind: of the model.
        autocast: whether forward is under torch.autocast.
        begun: the number of the first step, and the states of the model and the optimizer before it.
    """
    module, columns = model(kind), texts()
    named = list(module.named_parameters())
    plain = [any(fnmatchcase(name, each) for each in UNDECAYED[kind].split("|")) for name, _ in named]
    groups = [
        {"params": [value for (_, value), bare in zip(named, plain, strict=True) if not bare]},
        {"params": [value for (_, value), bare in zip(named, plain, strict=True) if bare], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    scheduler, losses = schedule(optimizer), []
    first, state, kept = begun or (0, None, None)
    for _ in range(first):
        optimizer.step()  # of no gradients: it changes nothing
        scheduler.step()
    if kept is not None:
        module.load_state_dict(state)
        optimizer.load_state_dict(kept)
    for step, chosen in zip(range(STEPS), rows(), strict=False):
        if step < first:
            continue
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            loss = module(**{name: column[chosen] for name, column in columns.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def optimizer_of(kind: str) -> mp.optim.AdamW:
    """The same for a plan."""
    return mp.optim.AdamW(lr=0.01, weight_decay=0.1, clip_norm=1.0, groups={UNDECAYED[kind]: {"weight_decay": 0.0}})


def trained(
    world: World, kind: str, folder: Path, last: int, *, strategy: str, precision: str, every: int = STEPS
) -> tuple[list[float], dict[str, torch.Tensor], dict[str, Any]]:
    """Losses up to a step, parameters, and the optimizer's state as torch's; from a checkpoint on if there is one.

    Args:
        world: the ranks.
        kind: of the model.
        folder: of checkpoints.
        last: the number of the step before which it ends.
        strategy: that makes the plan.
        precision: of the plan.
        every: how many steps lie between checkpoints.
    """
    graph, optimizer = graph_of(kind), optimizer_of(kind)
    plan = mp.search(
        graph, host_machine(world), strategy=strategy, seed=2, optimizer=optimizer, semantics={"precision": precision}
    )
    losses = []
    with mp.Trainer.resume(folder, graph, plan, optimizer=optimizer, world=world, begin=True) as trainer:
        batches, rates = loader(trainer.position), trainer.torch_optimizer()
        kept = {"scheduler": schedule(rates), "rates": rates}
        for name, state in trainer.scalars.items():
            kept[name].load_state_dict(state)
        step = int(trainer.optimizer_state()["step"])
        while step < last:
            for batch in batches:
                losses.append(trainer.step(batch))
                kept["scheduler"].step()
                step += 1
                if step % every == 0:
                    states = {name: each.state_dict() for name, each in kept.items()}
                    trainer.save(folder, data=batches, scalars=states)
                if step == last:
                    break
        names = [name for name, _ in model(kind).named_parameters()]
        return losses, trainer.state_dict(), trainer.torch_optimizer_state(names=names)
