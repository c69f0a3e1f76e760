"""The loss that training minimises. Evaluation always reports plain cross-entropy.

A loss maps logits (N, classes) float32 and targets to one number, a tensor without dimensions. It is the sum over the N
images, so that processes may divide a batch. Targets are labels (N,) int64 or, if an augmentation may mix images,
probabilities (N, classes).
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy

from deepnets.system.settings import Rate

Loss = Callable[[Tensor, Tensor], Tensor]


class CrossEntropy:
    """Cross-entropy in nats; the share `smoothing` of each target is spread evenly over all classes.

    Szegedy et al. 2016, "Rethinking the Inception architecture", section 7.
    """

    def __init__(self, smoothing: Rate) -> None:
        self.smoothing = smoothing

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets, reduction="sum", label_smoothing=self.smoothing)


PLAIN = CrossEntropy(0.0)
