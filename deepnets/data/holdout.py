"""Which training images are held out for validation."""

import numpy as np
import torch
from torch import Tensor

from deepnets.errors import UserError


def hold_out(labels: Tensor, count: int, classes: int) -> tuple[Tensor, Tensor]:
    """(training, validation) indices, both ascending, of `labels` (N,): `count` held out, in the classes' proportions.

    Shares are rounded by the largest remainder. No seed: every run of a table is selected by the same images. A class
    that would lose all its training images is a `UserError`.
    """
    of_class = labels.cpu().numpy()
    sizes = np.bincount(of_class, minlength=classes)
    shares, remainders = np.divmod(sizes * count, len(labels))
    shares[np.argsort(-remainders, kind="stable")[: count - shares.sum()]] += 1
    if (lost := np.flatnonzero(shares >= sizes)).size:
        raise UserError(
            f"validation={count} of {len(labels)} images would leave none to train on in class {lost[0]} "
            f"({sizes[lost[0]]} images): hold out fewer"
        )
    generator = np.random.default_rng(0)
    held = np.sort(
        np.concatenate([generator.permutation(np.flatnonzero(of_class == c))[:n] for c, n in enumerate(shares)])
    )
    return torch.from_numpy(np.setdiff1d(np.arange(len(labels)), held)), torch.from_numpy(held)
