"""Rounds numbers as printing does: equal texts are equal integers."""

import numpy as np


def printed_units(values: np.ndarray, decimals: int = 5) -> np.ndarray:
    """Rounds as printing does, to multiples of 10**-decimals.

    Args:
        values: float64 of any shape, at most 1e6 in magnitude.
        decimals: 0 to 7 places behind the point.

    Returns:
        int64 of the same shape: 0.12345 is 12345. Printing is exact, so a half goes to the even
        neighbour only where the binary value is exactly one; 0.000015, a little above, is 2.
    """
    scale = 10.0**decimals
    scaled = values * scale
    units = np.rint(scaled)
    halves = np.abs(scaled - units) == 0.5
    if halves.any():
        units[halves] = _round_half(np.asarray(values)[halves], scale)
    return units.astype(np.int64)


def _round_half(values: np.ndarray, scale: float) -> np.ndarray:
    """Rounds where the product, itself rounded, looks like a half: its error decides."""
    magnitudes = np.abs(values)
    scaled = magnitudes * scale
    split = magnitudes * 134217729.0  # 2**27 + 1: upper and lower half of the digits (Dekker)
    upper = split - (split - magnitudes)
    error = (upper * scale - scaled) + (magnitudes - upper) * scale
    below = np.floor(scaled)
    up = (error > 0) | ((error == 0) & (below % 2 == 1))
    return np.copysign(below + up, values)
