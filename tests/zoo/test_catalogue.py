"""The zoo: the published sizes, and modules that are plain torch."""

from __future__ import annotations

import pytest
import torch

from maniple.models import model
from maniple.process.error import RequestError
from maniple.zoo.catalogue import ENTRIES, entry

IDS = (
    *("lenet", "alexnet", "vgg16", "resnet18", "resnet50", "resnet101"),
    *("resnet152", "resnext50", "resnext101", "inception_v3", "inception_v4", "densenet121"),
    *("squeezenet1_0", "rnntc", "rnnlm", "nmt", "snn", "transformer"),
    *("residual_lstm", "wide_resnet", "gpt", "mlp"),
)

# From torchvision's table of weights, timm's (inception_v4), and GPT-2's paper and released weights; LeNet-5 is
# 156 + 2,416 + 48,120 + 10,164 + 850.
PUBLISHED = {
    "lenet": 61_706,
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50": 25_028_904,
    "resnext101": 44_177_704,
    "wide_resnet": 68_883_240,
    "inception_v3": 23_834_568,
    "inception_v4": 42_679_816,
    "densenet121": 7_978_856,
    "squeezenet1_0": 1_248_424,
    "gpt": 124_439_808,
}


def test_the_zoo_has_the_models_that_it_should_have() -> None:
    assert sorted(ENTRIES) == sorted(IDS)


def test_the_published_counts_are_the_catalogue_s() -> None:
    assert {name: found.parameters for name, found in ENTRIES.items() if found.published} == PUBLISHED


@pytest.mark.parametrize("name", IDS)
def test_a_model_at_full_size_has_its_parameters_and_gives_a_loss(name: str) -> None:
    with torch.device("meta"):
        module = entry(name).make()
    assert sum(parameter.numel() for parameter in module.parameters()) == entry(name).parameters
    loss = module(*(sample.meta(2) for sample in module.samples().values()))
    assert loss.shape == ()


@pytest.mark.parametrize("name", IDS)
def test_a_reduced_model_learns(name: str) -> None:
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    module = entry(name).make(**entry(name).reduced)
    batch = {key: sample.draw(3, chance) for key, sample in module.samples().items()}
    loss = module(**batch)
    loss.backward()
    assert torch.isfinite(loss)
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
    assert sum(parameter.numel() for parameter in module.parameters()) < 400_000


def test_the_images_of_cifar_fit_every_convolutional_network() -> None:
    for name, found in ENTRIES.items():
        if "image" in found.reduced:
            with torch.device("meta"):
                module = found.make(image=32, classes=10)
            assert module(*(sample.meta(2) for sample in module.samples().values())).shape == (), name


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean 'resnet152'"):
        entry("resnet125")


def test_a_module_is_no_name_and_is_told_where_to_go() -> None:
    with pytest.raises(RequestError, match=r"got a Linear; mp.from_torch\(module, example_inputs\) imports a module"):
        model(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
