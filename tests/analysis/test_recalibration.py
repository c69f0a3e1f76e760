"""Batch statistics of a fresh network."""

import pytest
import torch
from torch import nn

from deepnets.analysis.recalibration import recalibrate_batchnorm
from deepnets.run import build_model


@pytest.mark.parametrize("images", ["null", "4"])
def test_a_settled_net_evaluates_images_as_training_mode_does(images: str) -> None:
    model = build_model(["model.depth=14", "model.widths=[4,4,4]", f"model.batchnorm_images={images}"]).eval()
    torch.manual_seed(0)
    x = torch.randn(64, 1, 8, 8)
    unsettled = model(x)
    recalibrate_batchnorm(model, x)
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not any(module.training for module in model.modules())
    assert {layer.momentum for layer in layers} == {0.1}
    first = model.stem[0](x)
    torch.testing.assert_close(layers[0].running_mean, first.mean((0, 2, 3)))
    torch.testing.assert_close(layers[0].running_var, first.var((0, 2, 3)))
    settled = model(x)
    for layer in layers:
        layer.train()
    torch.testing.assert_close(settled, model(x), rtol=1e-2, atol=1e-2)  # running variances are the unbiased ones
    assert (unsettled - settled).abs().max() > 0.1
