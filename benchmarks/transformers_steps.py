"""Steps of models of Hugging Face's transformers, small and random, raced against torch's eager mode on one processor.

    python benchmarks/transformers_steps.py                          all four; writes the table into docs/performance.md
    python benchmarks/transformers_steps.py --print --samples 2 vit  one with small steps, its rows printed alone

Each side trains the same module, imported or as it is, on the same batch; sides take turns in one process of one
thread, and every figure is a median over rounds. What transformers chooses itself (its attention) is the same on both
sides.
"""

from __future__ import annotations

import os
import statistics
from functools import partial
from pathlib import Path

import click
import torch
from page_table import write_table
from torch import Tensor, nn
from training import torch_modes
from training.models import Race

import maniple as mp
from maniple.runtime.control.world import World

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/transformers_steps.py: begin -->", "<!-- benchmarks/transformers_steps.py: end -->"
HEAD = "| model | samples | side | ms per step | speed, of torch's best |\n|---|---|---|---|---|"
WORDS, PLACES, WIDTH, LAYERS, HEADS, CLASSES = 1000, 128, 256, 4, 8, 10


class Loss(nn.Module):
    """A model of transformers as a module whose forward gives its loss."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss that the model computes of its labels."""
        loss: Tensor = self.model(**{self.name: x, "labels": y}).loss
        return loss


def model_of(kind: str) -> Loss:
    """Make a model: 4 layers, 256 wide, 8 heads, and 128 places or images of 32 by 32 in patches of 4 by 4."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    wide = {"intermediate_size": 4 * WIDTH}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind == "gpt2":
        made = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=WORDS,
                n_positions=PLACES,
                n_embd=WIDTH,
                n_layer=LAYERS,
                n_head=HEADS,
                bos_token_id=0,
                eos_token_id=0,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
            )
        )
    elif kind == "llama":
        made = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=WORDS,
                num_key_value_heads=HEADS // 2,
                max_position_embeddings=PLACES,
                use_cache=False,
                **sizes,
                **wide,
            )
        )
    elif kind == "bert":
        made = transformers.BertForSequenceClassification(
            transformers.BertConfig(
                vocab_size=WORDS, max_position_embeddings=PLACES, num_labels=CLASSES, **sizes, **wide, **quiet
            )
        )
    else:
        made = transformers.ViTForImageClassification(
            transformers.ViTConfig(image_size=32, patch_size=4, num_labels=CLASSES, **sizes, **wide, **quiet)
        )
    return Loss(made, "pixel_values" if kind == "vit" else "input_ids")


def race_of(kind: str, sample: tuple[int, ...], labels: tuple[int, ...], words: int, classes: int, batch: int) -> Race:
    """A model and its batches; none of these is cut into stages."""
    return Race(partial(model_of, kind), sample, labels, words, classes, batch, {})  # type: ignore[arg-type]


RACES = {
    "gpt2": race_of("gpt2", (PLACES,), (PLACES,), WORDS, WORDS, 16),
    "bert": race_of("bert", (PLACES,), (), WORDS, CLASSES, 16),
    "llama": race_of("llama", (PLACES,), (PLACES,), WORDS, WORDS, 16),
    "vit": race_of("vit", (3, 32, 32), (), 0, CLASSES, 32),
}


def race(kind: str, samples: int, rounds: int, seconds: float) -> list[str]:
    """Race one model; give a row for each side."""
    raced = RACES[kind]
    x, y = raced.data(samples)
    graph = mp.from_torch(raced.module(), (x, y))
    plan = mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")
    optimizer = mp.optim.AdamW(lr=torch_modes.RATE / 10)
    with mp.Trainer(graph, plan, optimizer=optimizer, world=World.solo(cores=1)) as trainer:
        sides = {
            "torch": torch_modes.eager(raced, samples, "adamw", fused=False),
            "torch, fused": torch_modes.eager(raced, samples, "adamw", fused=True),
            "Maniple": lambda: trainer.step(x, y),
        }
        times = torch_modes.race_of(sides, rounds, seconds, lambda number: number)
    medians = {side: statistics.median(values) for side, values in times.items()}
    best = min((side for side in times if side != "Maniple"), key=medians.__getitem__)
    lines = []
    for side, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(times[best], values, strict=True))
        lines.append(f"| {kind} | {samples} | {side} | {medians[side]:.2f} | {ratio:.2f} |")
    return lines


@click.command()
@click.argument("kinds", nargs=-1, type=click.Choice([*RACES]))
@click.option("--samples", default=0, help="samples of a step; by default the model's own number")
@click.option("--rounds", default=7, show_default=True, help="figures are medians over them")
@click.option("--seconds", default=1.0, show_default=True, help="how long a turn takes at least")
@click.option("--print", "alone", is_flag=True, help="print the rows and leave the page as it is")
def main(kinds: tuple[str, ...], samples: int, rounds: int, seconds: float, *, alone: bool) -> None:
    """Measure, and write the table between its marks on the page."""
    torch.set_num_threads(1)
    lines = [HEAD]
    print(HEAD)
    for kind in kinds or RACES:
        made = race(kind, samples or RACES[kind].batch, rounds, seconds)
        print("\n".join(made), flush=True)
        lines += made
    if not alone and not kinds:
        write_table(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
