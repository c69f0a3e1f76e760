"""A published net beside the same net in plain PyTorch, on real images: same seed, same steps, same curve."""

import os
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from tests.command import row

REAL = Path(os.environ.get("DEEPNETS_TEST_DATA", "/nonexistent"))
ITERATIONS = 10


class Block(nn.Module):
    """Fleuret's course, 6.5: two convolutions of 16 channels at full resolution, an addition, then ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()


@pytest.mark.nightly
@pytest.mark.skipif(not (REAL / "MNIST").is_dir(), reason="DEEPNETS_TEST_DATA holds no MNIST/raw")
@pytest.mark.parametrize("seed", range(3))
def test_fleurets_net_trains_as_in_plain_pytorch(seed: int) -> None:
    changes = ["model=mnist_resnet52", "dataset=mnist", f"dataset.root={REAL}", f"seed={seed}", "batch_size=16"]
    changes += ["epochs=null", f"iterations={ITERATIONS}", "schedule=constant", "model.batchnorm_images=null"]
    ours = prepare(row(Path("unused"), *changes).config, torch.device("cpu"), torch.float32)
    plain = nn.Sequential(
        nn.Conv2d(1, 16, 1), nn.ReLU(), *(Block() for _ in range(25)), nn.AvgPool2d(28), nn.Flatten(), nn.Linear(16, 10)
    )
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), ours.model.parameters(), strict=True):
            mine.copy_(theirs)
    batches = list(islice(ours.batches.epoch(0), ITERATIONS))
    # In float64 up to the logits, so that rounding does not grow to a difference.
    ours.model.double().register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    losses = [state.loss.item() for state in islice(fit(ours), ITERATIONS)]

    plain.double()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    expected = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = cross_entropy(plain(images.double()).float(), labels)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert expected[-1] < expected[0]
    assert losses == pytest.approx(expected, rel=1e-5)
