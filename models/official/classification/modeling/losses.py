"""Losses of class logits, per image."""

from collections.abc import Sequence

import numpy as np

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def softmax_loss(logits: Tensor, targets: Tensor, *, label_smoothing: float) -> Tensor:
    """Returns the cross-entropy of the softmax with the targets, [B].

    An image without a label has the loss 0.

    Args:
        logits: [B, C] float32.
        targets: [B, C], shares of the classes.
        label_smoothing: 0..1, part of each label that is spread evenly over all classes (Szegedy
            et al., arXiv 1512.00567, section 7).
    """
    labelled = ops.sum(targets, axis=-1, keepdims=True)
    even = labelled * (label_smoothing / logits.shape[-1])
    smoothed = targets * (1.0 - label_smoothing) + even
    return -ops.sum(smoothed * ops.log_softmax(logits, axis=-1), axis=-1)


def sigmoid_loss(logits: Tensor, targets: Tensor, *, class_weights: Sequence[float]) -> Tensor:
    """Returns the weighted mean over classes of the binary cross-entropies, [B].

    Args:
        logits: [B, C] float32.
        targets: [B, C] in 0..1.
        class_weights: C weights; empty: all classes count alike.
    """
    weights = np.asarray(class_weights or np.ones(logits.shape[-1]), np.float32)
    # log(1 + e^-|x|) + max(x, 0) - x t, which overflows nowhere
    losses = ops.softplus(-ops.abs(logits)) + ops.relu(logits) - logits * targets
    return ops.sum(losses * (weights / weights.sum()), axis=-1)
