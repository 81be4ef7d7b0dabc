"""The head of a classifier."""

import keras
import numpy as np

from tpudet.classification.modeling.classifier import ClassifierHead


def test_dropout_changes_no_prediction_in_low_precision() -> None:
    """Its layer had the policy's precision, and rounded the mean that is taken in float32."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    features = np.random.default_rng(1).normal(size=[2, 7, 7, 64]).astype(np.float32)
    with_dropout, without = (
        np.asarray(ClassifierHead(num_classes=3, top=None, dropout=dropout, seed=4)(features))
        for dropout in (0.2, 0.0)
    )
    np.testing.assert_array_equal(with_dropout, without)
