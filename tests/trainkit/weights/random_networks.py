"""Random values for every variable of a network, under which its features stay near 1."""

import numpy as np

SPREADS = ("running_var", "moving_variance", "gamma", "weight")


def draw(name, shape, rng):
    """A value for a variable of this name: PyTorch's names have dots, kernels are its layout."""
    if len(shape) < 2:
        if name.endswith(SPREADS):
            return rng.uniform(0.5, 1.5, shape).astype(np.float32)
        return rng.normal(0, 0.3, shape).astype(np.float32)
    depthwise = "depthwise" in name or "dwconv" in name
    inputs = shape[1:] if "." in name else shape[:2] if depthwise else shape[:-1]
    return rng.normal(0, 1 / np.sqrt(np.prod(inputs)), shape).astype(np.float32)


def images(height=64, width=96):
    """Two random images, not square, as a backbone takes them: [2, height, width, 3]."""
    return np.random.default_rng(1).normal(size=(2, height, width, 3)).astype(np.float32)


def assert_same_features(found, expected):
    """Compares {level: [B, H, W, C]} with the same to 1e-4 of the largest value."""
    assert sorted(found) == sorted(expected) == [2, 3, 4, 5]
    for level, features in expected.items():
        assert np.std(features) > 0.01
        largest = max(1.0, np.abs(features).max())
        np.testing.assert_allclose(np.array(found[level]), features, atol=1e-4 * largest, rtol=0)
