"""Which architectures of Hugging Face's transformers are imported, and whether any of them is trained wrong.

    python benchmarks/transformers_coverage.py            all of them; writes the table into docs/how-to/import.md
    python benchmarks/transformers_coverage.py llama t5   prints the rows of some

Each is made small, random and in float64, with what its configuration says by default but for dropout, imported by
`mp.from_torch`, and trained three steps by SGD under a random plan for two processors and by plain torch. Losses that
differ by more than 1e-10 of their size are wrong: sums of some thousand products, added up in other orders. Many
compute a softmax or the loss in float32 all the same; of these 1e-6.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

import maniple as mp
from maniple.process.error import ManipleError

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "import.md"
BEGIN, END = "<!-- benchmarks/transformers_coverage.py: begin -->", "<!-- benchmarks/transformers_coverage.py: end -->"
STEPS, RATE, SEED = 3, 0.1, 3
BOUND = {False: 1e-10, True: 1e-6}
"""By whether anything is computed in float32."""
WORDS, SAMPLES, PLACES = 100, 4, 16
PLAIN: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN: dict[str, Any] = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
PAIR = {
    **OWN,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 1,
}
IMAGE = {"num_labels": 10}


@dataclass(frozen=True)
class Case:
    """An architecture.

    Args:
        name: its class, of which `Config` in place of what follows `For`, or `config`, is that of its configuration.
        sizes: of the configuration.
        kind: what it is given: `words`, `sentences` (a label each), `images` of so many places, or `sound`.
        config: the configuration's class where its name is another.
    """

    name: str
    sizes: dict[str, Any] = field(default_factory=dict)
    kind: str = "words"
    config: str = ""


CASES = {
    "gpt2": Case(
        "GPT2LMHeadModel", {**OWN, "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 32}, config="GPT2Config"
    ),
    "llama": Case("LlamaForCausalLM", PLAIN),
    "mistral": Case("MistralForCausalLM", GROUPED),
    "qwen2": Case("Qwen2ForCausalLM", GROUPED),
    "qwen3": Case("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    "gemma": Case("GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    "gemma2": Case("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}),
    "phi": Case("PhiForCausalLM", PLAIN),
    "phi3": Case("Phi3ForCausalLM", PLAIN),
    "olmo": Case("OlmoForCausalLM", PLAIN),
    "stablelm": Case("StableLmForCausalLM", {**GROUPED, "num_key_value_heads": 4}),
    "falcon": Case("FalconForCausalLM", PLAIN),
    "gpt_neox": Case("GPTNeoXForCausalLM", PLAIN),
    "opt": Case(
        "OPTForCausalLM",
        {**PLAIN, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "bloom": Case("BloomForCausalLM", {**OWN, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mamba": Case("MambaForCausalLM", {**OWN, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "mixtral": Case("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "bert": Case("BertForMaskedLM", PLAIN),
    "bert, sentences": Case("BertForSequenceClassification", PLAIN, "sentences"),
    "roberta": Case("RobertaForMaskedLM", PLAIN),
    "electra": Case("ElectraForMaskedLM", {**PLAIN, "embedding_size": 16}),
    "albert": Case("AlbertForMaskedLM", {**PLAIN, "embedding_size": 16}),
    "deberta_v2": Case("DebertaV2ForMaskedLM", PLAIN),
    "distilbert": Case(
        "DistilBertForMaskedLM",
        {**OWN, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 32},
    ),
    "modernbert": Case("ModernBertForMaskedLM", {**PLAIN, "cls_token_id": 1, "sep_token_id": 2}),
    "t5": Case(
        "T5ForConditionalGeneration",
        {**OWN, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "bart": Case("BartForConditionalGeneration", {**PAIR, "max_position_embeddings": 32}),
    "whisper": Case(
        "WhisperForConditionalGeneration",
        {**PAIR, "max_source_positions": 16, "max_target_positions": 32, "num_mel_bins": 8},
        "sound",
    ),
    "vit": Case("ViTForImageClassification", {**PLAIN, **IMAGE, "image_size": 32, "patch_size": 8}, "images"),
    "deit": Case("DeiTForImageClassification", {**PLAIN, **IMAGE, "image_size": 32, "patch_size": 8}, "images"),
    "swin": Case(
        "SwinForImageClassification",
        {**IMAGE, "image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        "images",
    ),
    "convnext": Case(
        "ConvNextForImageClassification",
        {**IMAGE, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        "images",
    ),
    "resnet": Case(
        "ResNetForImageClassification",
        {**IMAGE, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "images",
    ),
}


def made(case: Case) -> torch.nn.Module:
    """Make a small architecture without dropout."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    torch.manual_seed(SEED)
    config = getattr(transformers, case.config or f"{case.name.partition('For')[0]}Config")(**case.sizes)
    for name, value in list(config.to_dict().items()):
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    module: torch.nn.Module = getattr(transformers, case.name)(config).double().train()
    return module


def given(kind: str) -> dict[str, torch.Tensor]:
    """Give a batch."""
    chance = torch.Generator().manual_seed(SEED)
    words = torch.randint(3, WORDS, (SAMPLES, PLACES), generator=chance)
    if kind == "words":
        return {"input_ids": words, "labels": words}
    if kind == "sentences":
        return {"input_ids": words, "labels": words[:, 0] % 2}
    if kind == "sound":
        sound = torch.randn(SAMPLES, 8, 2 * PLACES, generator=chance, dtype=torch.float64)
        return {"input_features": sound, "labels": words}
    pictures = torch.randn(SAMPLES, 3, 32, 32, generator=chance, dtype=torch.float64)
    return {"pixel_values": pictures, "labels": words[:, 0] % 10}


def ours(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[list[float], int, bool]:
    """The losses under a random plan for two, how many operators there are, and whether any is in float32."""
    graph = mp.from_torch(module, batch)
    single = any(tensor.dtype == "float32" for tensor in graph.tensors)
    (world,) = mp.testing.local_worlds(1, processors=2)
    plan = mp.search(graph, mp.Machine.preset("cpu:1x2"), strategy="random", seed=SEED)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE), world=world) as trainer:
        return [trainer.step(**batch) for _ in range(STEPS)], len(graph.nodes), single


def theirs(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[float]:
    """The losses of plain torch."""
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def row_of(name: str, case: Case) -> str:
    """Give what became of an architecture."""
    batch, head = given(case.kind), f"| {name} | `{case.name}` |"
    module = made(case)
    try:
        found, operators, single = ours(module, batch)
    except ManipleError as error:
        return f"{head} refused | {' '.join(str(error).replace('|', '/').split())} |"
    wanted = theirs(made(case), batch)
    most = max(abs(one - other) / abs(other) for one, other in zip(found, wanted, strict=True))
    verdict, some = "equal" if most <= BOUND[single] else "**wrong**", ", some in float32" if single else ""
    return f"{head} {verdict} | {operators} operators{some}; losses within {most:.0e} |"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(CASES)))
def main(names: tuple[str, ...]) -> None:
    """Import and train."""
    import transformers

    lines = ["| | class | | |", "|---|---|---|---|"]
    for name in names or CASES:
        print(row := row_of(name, CASES[name]), file=sys.stderr, flush=True)
        lines.append(row.replace(str(Path(transformers.__file__).parent), "transformers"))
    told = "\n".join(
        [f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}.", "", *lines]
    )
    if names:
        print(told)
        return
    page = PAGE.read_text()
    first, last = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:first]}\n{told}\n{page[last:]}")


if __name__ == "__main__":
    main()
