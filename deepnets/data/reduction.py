"""Smaller images: squares of pixels averaged."""

import torch

from deepnets.data.source import Split

CHUNK = 1000  # images, so that their sums stay in the processor's cache


def reduced(split: Split, factor: int) -> Split:
    """The split with each square of `factor` x `factor` pixels replaced by its mean, rounded to uint8, halves up.

    Images (N, H, W, C) become (N, H / factor, W / factor, C); `factor` divides both sides.
    """
    if factor == 1:
        return split
    pixels = factor * factor
    corners = [(row, column) for row in range(factor) for column in range(factor)]
    means = []
    for images in split.images.split(CHUNK):
        sums = sum(images[:, row::factor, column::factor].to(torch.int32) for row, column in corners)
        means.append(((sums + pixels // 2) // pixels).to(torch.uint8))
    return Split(torch.cat(means), split.labels)
