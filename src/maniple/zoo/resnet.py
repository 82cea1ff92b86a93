"""Residual networks.

He et al., Deep Residual Learning for Image Recognition (2016), table 1, with the stride of a bottleneck in its 3 x 3
convolution; Xie et al., Aggregated Residual Transformations (2017), for ResNeXt; Zagoruyko and Komodakis, Wide Residual
Networks (2016), for the wide one.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from maniple.zoo.convolution_parts import SMALL_IMAGE
from maniple.zoo.model import ImageClassifier


class Block(nn.Module):
    """A residual block: convolutions beside a shortcut, which is a projection where shapes change.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        width: Channels in between; 0: two 3 x 3 convolutions instead of a bottleneck.
        stride: Of one 3 x 3 convolution and of the shortcut.
        groups: Of the bottleneck's 3 x 3 convolution.
    """

    def __init__(self, inputs: int, outputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        if width:
            self.residual = nn.Sequential(
                *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
                nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False),
                *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
                *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
            )
        else:
            self.residual = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                *(nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)),
                *(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)),
            )
        self.shortcut = nn.Sequential()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The rectified sum of both ways."""
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet(ImageClassifier):
    """A residual network of four stages.

    Args:
        blocks: Of every stage.
        bottleneck: Whether blocks are bottlenecks, with four times the channels outside.
        groups: Of the bottlenecks' 3 x 3 convolutions.
        group_width: Channels of a group in the first stage.
        image: Rows and columns; a small image has a 3 x 3 stem without stride and pool.
        classes: How many there are.
        shrink: Divides all channels.
    """

    def __init__(
        self,
        blocks: tuple[int, int, int, int],
        *,
        bottleneck: bool = True,
        groups: int = 1,
        group_width: int = 64,
        image: int = 224,
        classes: int = 1000,
        shrink: int = 1,
    ) -> None:
        super().__init__(image, classes)
        channels = 64 // shrink
        if image < SMALL_IMAGE:
            stem = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        else:
            stem = [nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)]
        self.stem = nn.Sequential(*stem, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        if image >= SMALL_IMAGE:
            self.stem.append(nn.MaxPool2d(3, 2, padding=1))
        self.stages = nn.Sequential()
        for stage, count in enumerate(blocks):
            outputs = (256 if bottleneck else 64) * 2**stage // shrink
            width = groups * group_width * 2**stage // shrink if bottleneck else 0
            for block in range(count):
                stride = 2 if stage and not block else 1
                self.stages.append(Block(channels, outputs, width, stride, groups))
                channels = outputs
        self.classifier = nn.Linear(channels, classes)

    def logits(self, images: Tensor) -> Tensor:
        """See ``ImageClassifier.logits``."""
        scores: Tensor = self.classifier(self.stages(self.stem(images)).mean((2, 3)))
        return scores
