"""The policies of AutoAugment for detection (arXiv 1906.11172) as tables.

v0 is the one of the paper; v1 holds it and fifteen more sub-policies; v2 and v3 came with the
authors' code. `test` has one sub-policy, whose steps are always applied.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Step(NamedTuple):
    """One operation of a sub-policy."""

    name: str  # a key of scene_operations.CHANGES
    probability: float  # of a step in boxes a third of it, for each box by itself
    level: int  # 0..10; `autoaugment.amount_of` says what it means
    in_boxes: bool = False  # change what lies within boxes instead of the picture


SubPolicy = tuple[Step, ...]
PolicyName = Literal["v0", "v1", "v2", "v3", "test"]


def _only(name: str, probability: float, level: int) -> Step:
    return Step(name, probability, level, in_boxes=True)


_V0: tuple[SubPolicy, ...] = (
    (Step("translate_x", 0.6, 4), Step("equalize", 0.8, 10)),
    (_only("translate_y", 0.2, 2), Step("cutout", 0.8, 8)),
    (Step("sharpness", 0.0, 8), Step("shear_x", 0.4, 0)),
    (Step("shear_y", 1.0, 2), _only("translate_y", 0.6, 6)),
    (Step("rotate", 0.6, 10), Step("color", 1.0, 6)),
)

_V1: tuple[SubPolicy, ...] = (
    *_V0,
    (Step("color", 0.0, 0), _only("shear_x", 0.8, 4)),
    (_only("shear_y", 0.8, 2), _only("flip", 0.0, 10)),
    (Step("equalize", 0.6, 10), Step("translate_x", 0.2, 2)),
    (Step("color", 1.0, 10), _only("translate_y", 0.4, 6)),
    (Step("rotate", 0.8, 10), Step("contrast", 0.0, 10)),
    (Step("cutout", 0.2, 2), Step("brightness", 0.8, 10)),
    (Step("color", 1.0, 6), Step("equalize", 1.0, 2)),
    (_only("cutout", 0.4, 6), _only("translate_y", 0.8, 2)),
    (Step("color", 0.2, 8), Step("rotate", 0.8, 10)),
    (Step("sharpness", 0.4, 4), _only("translate_y", 0.0, 4)),
    (Step("sharpness", 1.0, 4), Step("solarize_add", 0.4, 4)),
    (Step("rotate", 1.0, 8), Step("sharpness", 0.2, 8)),
    (Step("shear_y", 0.6, 10), _only("equalize", 0.6, 8)),
    (Step("shear_x", 0.2, 6), _only("translate_y", 0.2, 10)),
    (Step("solarize_add", 0.6, 8), Step("brightness", 0.8, 10)),
)

_V2: tuple[SubPolicy, ...] = (
    (Step("color", 0.0, 6), Step("cutout", 0.6, 8), Step("sharpness", 0.4, 8)),
    (Step("rotate", 0.4, 8), Step("sharpness", 0.4, 2), Step("rotate", 0.8, 10)),
    (Step("translate_y", 1.0, 8), Step("auto_contrast", 0.8, 2)),
    (Step("auto_contrast", 0.4, 6), Step("shear_x", 0.8, 8), Step("brightness", 0.0, 10)),
    (Step("solarize_add", 0.2, 6), Step("contrast", 0.0, 10), Step("auto_contrast", 0.6, 0)),
    (Step("cutout", 0.2, 0), Step("solarize", 0.8, 8), Step("color", 1.0, 4)),
    (Step("translate_y", 0.0, 4), Step("equalize", 0.6, 8), Step("solarize", 0.0, 10)),
    (Step("translate_y", 0.2, 2), Step("shear_y", 0.8, 8), Step("rotate", 0.8, 8)),
    (Step("cutout", 0.8, 8), Step("brightness", 0.8, 8), Step("cutout", 0.2, 2)),
    (Step("color", 0.8, 4), Step("translate_y", 1.0, 6), Step("rotate", 0.6, 6)),
    (Step("rotate", 0.6, 10), Step("box_cutout", 1.0, 4), Step("cutout", 0.2, 8)),
    (Step("rotate", 0.0, 0), Step("equalize", 0.6, 6), Step("shear_y", 0.6, 8)),
    (Step("brightness", 0.8, 8), Step("auto_contrast", 0.4, 2), Step("brightness", 0.2, 2)),
    (Step("translate_y", 0.4, 8), Step("solarize", 0.4, 6), Step("solarize_add", 0.2, 10)),
    (Step("contrast", 1.0, 10), Step("solarize_add", 0.2, 8), Step("equalize", 0.2, 4)),
)

_V3: tuple[SubPolicy, ...] = (
    (Step("posterize", 0.8, 2), Step("translate_x", 1.0, 8)),
    (Step("box_cutout", 0.2, 10), Step("sharpness", 1.0, 8)),
    (Step("rotate", 0.6, 8), Step("rotate", 0.8, 10)),
    (Step("equalize", 0.8, 10), Step("auto_contrast", 0.2, 10)),
    (Step("solarize_add", 0.2, 2), Step("translate_y", 0.2, 8)),
    (Step("sharpness", 0.0, 2), Step("color", 0.4, 8)),
    (Step("equalize", 1.0, 8), Step("translate_y", 1.0, 8)),
    (Step("posterize", 0.6, 2), Step("rotate", 0.0, 10)),
    (Step("auto_contrast", 0.6, 0), Step("rotate", 1.0, 6)),
    (Step("equalize", 0.0, 4), Step("cutout", 0.8, 10)),
    (Step("brightness", 1.0, 2), Step("translate_y", 1.0, 6)),
    (Step("contrast", 0.0, 2), Step("shear_y", 0.8, 0)),
    (Step("auto_contrast", 0.8, 10), Step("contrast", 0.2, 10)),
    (Step("rotate", 1.0, 10), Step("cutout", 1.0, 10)),
    (Step("solarize_add", 0.8, 6), Step("equalize", 0.8, 8)),
)

POLICIES: Mapping[PolicyName, tuple[SubPolicy, ...]] = {
    "v0": _V0,
    "v1": _V1,
    "v2": _V2,
    "v3": _V3,
    "test": ((Step("translate_x", 1.0, 4), Step("equalize", 1.0, 10)),),
}
