"""The usual PyTorch script for CIFAR: torchvision's transforms image by image, a loader, and a loop."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from deepnets.data.source import Split


class PlainImages(Dataset):
    """CIFAR-10 as the usual script has it: an array in memory, each image through PIL and torchvision's transforms."""

    def __init__(self, images: Tensor, labels: Tensor, mean: list[float], std: list[float]) -> None:
        from torchvision import transforms

        self.images, self.labels = images.numpy(), labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean, std),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def plain_loader(split: Split, batch_size: int, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches from torchvision's loader with as many worker processes."""
    images = split.images.cpu().float().div(255)
    mean, std = images.mean((0, 1, 2)).tolist(), images.std((0, 1, 2)).tolist()
    data = PlainImages(split.images.cpu(), split.labels.cpu(), mean, std)
    loader = DataLoader(data, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    while True:
        yield from loader


def plain_training(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> Iterator[None]:
    """The usual loop: float32, NCHW, one loss read an iteration left out."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    model.to(device).train()
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()
        yield
