"""The settings of test-time augmentation, see `inference.views`."""

from collections.abc import Sequence
from typing import NamedTuple

from tpudet.detection.submission.fusion.settings import METHODS
from tpudet.trainkit.errors import UserError

DEFAULT_SCALES = (0.75, 1.5)
MIN_SCALE, MAX_SCALE = 0.25, 4.0


class ViewSettings(NamedTuple):
    """The views of an image, and how their detections are merged."""

    flip: bool = False
    scales: tuple[float, ...] = ()  # besides 1
    method: str = "nmw"  # one of METHODS
    iou: float = 0.55  # overlap above which boxes show one object


def parse_views(
    kinds: str, scales: Sequence[float] = DEFAULT_SCALES, *, method: str, iou: float
) -> ViewSettings:
    """Checks the arguments of the command.

    Args:
        kinds: `flip`, `scales` or both, with a comma.
        scales: used if `kinds` names scales; 1 is always a view.
        method: one of METHODS.
        iou: in 0..1.

    Raises:
        UserError: lists all mistakes.
    """
    names = [name.strip() for name in kinds.split(",")]
    mistakes = [f"--tta {n!r} is not flip or scales" for n in names if n not in ("flip", "scales")]
    mistakes += [
        f"scale {scale:g} must be in {MIN_SCALE:g}..{MAX_SCALE:g}"
        for scale in scales
        if not MIN_SCALE <= scale <= MAX_SCALE
    ]
    if method not in METHODS:
        mistakes.append(f"method {method!r} is not one of {', '.join(METHODS)}")
    if not 0 <= iou <= 1:
        mistakes.append(f"overlap {iou:g} must be in 0..1")
    if mistakes:
        raise UserError("; ".join(mistakes))
    others = sorted({float(scale) for scale in scales} - {1.0}) if "scales" in names else ()
    return ViewSettings("flip" in names, tuple(others), method, iou)
