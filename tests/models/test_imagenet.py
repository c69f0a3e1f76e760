"""ImageNet nets: torchvision's own weights give torchvision's logits, and pre-activation starts behind the pooling."""

from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d, relu

from deepnets.models.resnet import ResNet


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_torchvisions_weights_give_torchvisions_logits(network: Callable[..., ResNet], depth: int) -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(f"resnet{depth}", weights=None).eval()
    for bn in (module for module in theirs.modules() if isinstance(module, nn.BatchNorm2d)):
        for tensor in (bn.weight, bn.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)
        for tensor in (bn.bias, bn.running_mean):
            nn.init.normal_(tensor, std=0.1)
    strided = ["model.strided_kernel=1"] if depth >= 50 else []
    ours = network(f"imagenet_resnet{depth}", *strided, shape=(3, 64, 64), classes=1000).eval()
    names, tensors = ours.state_dict().keys(), theirs.state_dict().values()
    ours.load_state_dict(dict(zip(names, tensors, strict=True)))
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected, logits = theirs(images), ours(images)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits / expected.std(), expected / expected.std(), rtol=1e-4, atol=1e-4)


def test_vgg19_has_torchvisions_layers_in_order(network: Callable[..., nn.Module]) -> None:
    with torch.device("meta"):
        theirs, ours = torchvision.models.vgg19(), network("imagenet_vgg19", shape=(3, 224, 224), classes=1000)
        assert ours(torch.empty(1, 3, 224, 224)).shape == (1, 1000)

    def kinds(model: nn.Module) -> list[tuple[str, int]]:  # its fully connected layers are convolutions here
        kept = nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d
        modules = (module for module in model.modules() if isinstance(module, kept))
        counted = ((type(module).__name__, sum(p.numel() for p in module.parameters())) for module in modules)
        return [(name.replace("Linear", "Conv2d"), numbers) for name, numbers in counted]

    assert kinds(ours) == kinds(theirs)


def test_a_preactivation_net_activates_its_stem_once(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    chosen = ["model.units=[1,1]", "model.widths=[4,8]"]
    model = network("imagenet_preact200", *chosen, shape=(3, 32, 32)).eval()
    for bn in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(bn.running_mean)

    def activated(x: torch.Tensor, bn: nn.BatchNorm2d) -> torch.Tensor:
        return relu(batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias))

    def norms(module: nn.Module) -> list[nn.BatchNorm2d]:
        return [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]

    images = torch.randn(2, 3, 32, 32)
    x = activated(conv2d(images, model.stem[0].weight, stride=2, padding=3), model.stem[1])
    x = max_pool2d(x, 3, stride=2, padding=1)
    assert [len(norms(unit)) for unit in model.units] == [2, 3]
    for unit, stride in zip(model.units, (1, 2), strict=True):
        first, second, third, projection = [layer for layer in unit.modules() if isinstance(layer, nn.Conv2d)]
        x = x if stride == 1 else activated(x, norms(unit)[0])
        h = conv2d(x, projection.weight, stride=stride)
        r = conv2d(x, first.weight, stride=stride)
        r = conv2d(activated(r, norms(unit)[-2]), second.weight, padding=1)
        x = h + conv2d(activated(r, norms(unit)[-1]), third.weight)
    x = activated(x, model.tail[0])
    assert x.shape == (2, 32, 4, 4)
    torch.testing.assert_close(model(images), model.head(x.mean((2, 3))))
