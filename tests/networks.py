"""Small networks as if trained for a while: fresh ones whose batch statistics and affine maps are not neutral.

And a unit as a network of the user's own may have it.
"""

import torch
from torch import Tensor, nn

from deepnets.models.unit import Unit
from deepnets.run import build_model


def small_network(*overrides: str) -> nn.Module:
    """Build a ResNet for the digits, 4 channels wide, or another `model=`, in float64 and evaluation mode."""
    given = overrides if any(word.startswith("model=") for word in overrides) else ("model.widths=[4,4,4]", *overrides)
    model = build_model(list(given)).double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight, module.running_var):
                values.copy_(0.5 + torch.rand(len(values), generator=generator))
            for values in (module.bias, module.running_mean):
                values.copy_(0.2 * torch.randn(len(values), generator=generator))
    return model


def small_batch(images: int = 12, shape: tuple[int, int, int] = (1, 8, 8)) -> tuple[Tensor, Tensor]:
    """Draw noise in the shape of digits, and labels."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(images, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(10, (images,), generator=generator)


class Sum(nn.Module):
    """A shortcut of a user's own: y = x + r."""

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return x + r


def own_unit() -> Unit:
    """Make a unit of 4 channels as a user's own network has it."""
    branch = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    return Unit(before=nn.Identity(), branch=branch, shortcut=Sum(), after=nn.Identity(), channels=4)
