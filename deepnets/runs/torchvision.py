"""Torchvision's residual networks, and what it, and timm with it, calls the weights of deepnets' ones."""

import re
from collections.abc import Iterable

from torch import nn

from deepnets.models.resnet import ResNet


def torchvision_network(model: ResNet) -> nn.Module:
    """Torchvision's network with as many units, freshly initialised.

    Raises ValueError where it has none: with other than 4 stages, or other than 2 or 3 convolutions in a branch.
    """
    from torchvision.models import resnet  # takes half a second, which only this waits for

    kernels = sum(isinstance(layer, nn.Conv2d) for layer in model.units[0].branch)
    units = [len(list(stage.children())) for stage in model.stages]
    if len(units) != 4 or kernels not in (2, 3):
        raise ValueError(f"it has 4 stages of units with 2 or 3 convolutions, this one {len(units)} with {kernels}")
    block = resnet.BasicBlock if kernels == 2 else resnet.Bottleneck
    return resnet.ResNet(block, units, num_classes=model.head.out_features)


def torchvision_names(names: Iterable[str]) -> dict[str, str]:
    """By the name of each weight of a ResNet with the original ordering, torchvision's name of it."""

    def renamed(name: str) -> str:
        name = re.sub(r"(?<=\d)\.bn\.", ".", name)  # ghost batch normalisation holds one of torch's
        name = re.sub(r"^stem\.([01])", lambda found: ("conv1", "bn1")[int(found[1])], name)
        name = re.sub(r"^head", "fc", name)
        name = re.sub(r"^stages\.(\d+)", lambda found: f"layer{int(found[1]) + 1}", name)
        name = name.replace("shortcut.resize", "downsample")
        return re.sub(r"branch\.(\d+)", lambda found: _in_branch(int(found[1])), name)

    return {name: renamed(name) for name in names}


def _in_branch(place: int) -> str:
    """The layers of a branch are conv, bn, relu, conv, ..."""
    return f"{('conv', 'bn', 'relu')[place % 3]}{place // 3 + 1}"
