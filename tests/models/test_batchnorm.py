"""Batch normalisation of narrow maps: the folded kernel against float64 and against torch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from deepnets.config.compose import compose
from deepnets.config.schema import BatchNormKernel
from deepnets.models.batchnorm import BatchNorm, GhostBatchNorm, let_fold
from deepnets.models.parallel import named_statistics, statistics_of
from deepnets.training.assembly import prepare

CPU = torch.device("cpu")
ROUNDED = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def outcome(norm: nn.Module, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """Output, gradients and running statistics of a training step of `norm`."""
    x = x.clone().requires_grad_()
    y = norm.train()(x)
    dx, *of_parameters = torch.autograd.grad(y, [x, *norm.parameters()], dy)
    running = [buffer for buffer in norm.buffers() if buffer.is_floating_point()]
    names = ["y", "dx", "weight", "bias", "mean", "variance"]
    return dict(zip(names, [y, dx, *of_parameters, *running], strict=True))


@pytest.mark.parametrize("precision", ROUNDED, ids=str)
@pytest.mark.parametrize(("channels", "images", "group"), [(4, 32, 32), (4, 32, 16), (3, 16, 8), (7, 16, 4), (1, 8, 8)])
def test_folded_values_and_gradients_are_those_of_float64(
    precision: torch.dtype, channels: int, images: int, group: int
) -> None:
    torch.manual_seed(0)
    norm = GhostBatchNorm(channels, images=group)
    nn.init.normal_(norm.bn.weight)
    nn.init.normal_(norm.bn.bias)
    x, dy = (torch.randn(images, channels, 8, 8).to(precision) for _ in range(2))
    x = (x + 3).contiguous(memory_format=torch.channels_last)  # a mean far from 0, which cancels
    exact = outcome(copy.deepcopy(norm).double(), x.double(), dy.double())
    let_fold(norm, True)
    assert norm.bn.folds(x, images // group)
    found = outcome(norm, x, dy)
    for name, value in found.items():
        scale = exact[name].abs().max()
        assert (value.double() - exact[name]).abs().max() <= ROUNDED[precision] * scale, name
    assert found["y"].dtype == found["dx"].dtype == precision
    assert found["y"].is_contiguous(memory_format=torch.channels_last)
    assert norm.bn.num_batches_tracked == 1


def test_folding_rounds_less_than_torchs_kernel() -> None:
    torch.manual_seed(0)
    x, dy = (torch.randn(128, 4, 16, 16).contiguous(memory_format=torch.channels_last) for _ in range(2))
    exact = outcome(BatchNorm(4).double(), x.double(), dy.double())
    errors = {}
    for may_fold in (True, False):
        norm = BatchNorm(4)
        let_fold(norm, may_fold)
        found = outcome(norm, x, dy)
        errors[may_fold] = [(found[name].double() - exact[name]).abs().max().item() for name in ("y", "dx")]
    for folded, of_torch in zip(errors[True], errors[False], strict=True):
        assert 2 * folded < of_torch


def test_torch_computes_what_folding_does_not_suit() -> None:
    maps = torch.randn(6, 4, 4, 4)
    last = maps.contiguous(memory_format=torch.channels_last)
    norm = BatchNorm(4)
    assert not norm.folds(last)  # before `let_fold`
    let_fold(norm, True)
    assert norm.folds(last)
    assert not norm.folds(maps)  # NCHW
    assert not norm.folds(last, groups=4)  # six images make no four equal groups
    assert not norm.folds(last[:, :, :1, :1].contiguous(memory_format=torch.channels_last))  # too few pixels for a row
    assert not norm.folds(last.double())
    wide = BatchNorm(8)
    let_fold(wide, True)
    assert not wide.folds(torch.randn(6, 8, 4, 4).contiguous(memory_format=torch.channels_last))
    with torch.no_grad():
        assert torch.equal(norm.eval()(last), nn.BatchNorm2d(4).eval()(last))


def test_a_second_derivative_of_the_folded_kernel_is_refused() -> None:
    norm = BatchNorm(4)
    let_fold(norm, True)
    x = torch.randn(4, 4, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    (dx,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("kernel", BatchNormKernel)
def test_a_run_normalises_by_the_kernel_that_it_names(kernel: BatchNormKernel) -> None:
    words = ["model.depth=8", "model.widths=[4,4,4]", "device=cpu", f"batchnorm_kernel={kernel}"]
    training = prepare(compose(words).config, CPU, torch.float32)
    x, _ = next(training.batches.epoch(0))
    (norm, *_) = (module for module in training.model.train().modules() if isinstance(module, BatchNorm))
    assert norm.may_fold is (kernel is BatchNormKernel.auto)
    assert ("Folded" in str(norm(training.model.stem[0](x)).grad_fn)) is norm.may_fold


def test_statistics_keep_their_types_when_they_travel_together() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).double())
    named = named_statistics(model, statistics_of(model))
    assert {name: tensor.dtype for name, tensor in named.items()} == {
        "0.running_mean": torch.float32,
        "0.running_var": torch.float32,
        "1.running_mean": torch.float64,
        "1.running_var": torch.float64,
    }
