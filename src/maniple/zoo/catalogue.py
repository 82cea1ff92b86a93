"""The catalogue: every model of the zoo by name, with its batch, its published size, and a reduced form for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError, nearest
from maniple.zoo.alexnet import AlexNet
from maniple.zoo.densenet import DenseNet121
from maniple.zoo.gpt import GPT
from maniple.zoo.inception_v3 import InceptionV3
from maniple.zoo.inception_v4 import InceptionV4
from maniple.zoo.lenet import LeNet
from maniple.zoo.nmt import NMT
from maniple.zoo.perceptron import MLP, SNN
from maniple.zoo.resnet import ResNet
from maniple.zoo.squeezenet import SqueezeNet
from maniple.zoo.transformer import Transformer
from maniple.zoo.unrolled_lstm import RNNLM, RNNTC, ResidualLSTM
from maniple.zoo.vgg import VGG16

if TYPE_CHECKING:
    from maniple.zoo.model import ZooModel

_SMALL_IMAGE = {"image": 32, "classes": 10}


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the zoo.

    Args:
        name: Its id.
        make: Builds the module; its keyword arguments are the model's sizes.
        batch: Samples of a step by default: over all processors, not for each.
        parameters: Elements of all parameters at full size, each counted once.
        published: Whether others give that number too (paper, or torchvision's table of weights).
        reduced: Arguments of a form that is small enough for a test, of the same depth where that is the point.
    """

    name: str
    make: Callable[..., ZooModel]
    batch: int
    parameters: int
    published: bool
    reduced: Mapping[str, int]


def _image(name: str, make: Callable[..., ZooModel], parameters: int, batch: int = 64, **reduced: int) -> Entry:
    """A classifier of images whose parameter count is published."""
    return Entry(name, make, batch, parameters, published=True, reduced={**_SMALL_IMAGE, **reduced})


def _other(name: str, make: Callable[..., ZooModel], parameters: int, batch: int = 64, **reduced: int) -> Entry:
    """A model whose exact parameter count nobody else gives."""
    return Entry(name, make, batch, parameters, published=False, reduced=reduced)


_TEXT = {"words": 11, "steps": 4, "width": 8, "chunk": 2}
_GROUPS = {"groups": 4, "group_width": 8, "shrink": 8}

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("lenet", LeNet, 64, 61_706, published=True, reduced={"image": 16}),
        _image("alexnet", AlexNet, 61_100_840, 256, shrink=32),
        _image("vgg16", VGG16, 138_357_544, shrink=16),
        _image("resnet18", partial(ResNet, (2, 2, 2, 2), bottleneck=False), 11_689_512, shrink=16),
        _image("resnet50", partial(ResNet, (3, 4, 6, 3)), 25_557_032, shrink=16),
        _image("resnet101", partial(ResNet, (3, 4, 23, 3)), 44_549_160, shrink=16),
        _image("resnet152", partial(ResNet, (3, 8, 36, 3)), 60_192_808, shrink=16),
        _image("resnext50", partial(ResNet, (3, 4, 6, 3), groups=32, group_width=4), 25_028_904, **_GROUPS),
        _image("resnext101", partial(ResNet, (3, 4, 23, 3), groups=32, group_width=4), 44_177_704, **_GROUPS),
        _image("wide_resnet", partial(ResNet, (3, 4, 6, 3), group_width=128), 68_883_240, shrink=16),
        _image("inception_v3", InceptionV3, 23_834_568, shrink=16),
        _image("inception_v4", InceptionV4, 42_679_816, shrink=16),
        _image("densenet121", DenseNet121, 7_978_856, shrink=16),
        _image("squeezenet1_0", SqueezeNet, 1_248_424, shrink=8),
        _other("rnntc", RNNTC, 54_069_250, **_TEXT),
        _other("rnnlm", RNNLM, 108_111_632, **_TEXT),
        _other("nmt", NMT, 134_020_352, **_TEXT),
        _other("residual_lstm", ResidualLSTM, 27_051_010, **_TEXT, layers=3),
        _other("snn", SNN, 136_400_906, 128, width=8, inputs=12),
        _other("transformer", Transformer, 63_082_496, words=13, steps=5, width=8, heads=2, inner=12, layers=2),
        Entry(
            *("gpt", GPT, 8, 124_439_808),
            published=True,
            reduced={"words": 13, "steps": 5, "width": 8, "heads": 2, "layers": 2},
        ),
        _other("mlp", MLP, 5_824_522, 256, inputs=12, width=8),
    )
}
"""Every model by name.

ResNeXt has 32 groups of 4; the wide ResNet has 50 layers and bottlenecks of twice the width. The published counts
are torchvision's for AlexNet, VGG-16 and the residual, dense and squeezed networks, and for Inception-v3 without its
auxiliary head; timm's for Inception-v4; and those of GPT-2 124M with tied embeddings.
"""


def entry(name: str) -> Entry:
    """The model of that name.

    Raises:
        RequestError: There is none; lists the nearest.
    """
    if name not in ENTRIES:
        raise RequestError(f"there is no model {name!r}{nearest(name, sorted(ENTRIES))}")
    return ENTRIES[name]
