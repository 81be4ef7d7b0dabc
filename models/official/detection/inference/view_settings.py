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
    kinds: str | None,
    *,
    scales: Sequence[float] | None,
    method: str | None,
    iou: float | None,
) -> ViewSettings | None:
    """Checks the arguments of the command, each None where it is not given.

    Args:
        kinds: `flip`, `scales` or both, with a comma.
        scales: for `kinds` with scales; DEFAULT_SCALES by default. 1 is always a view.
        method: one of METHODS.
        iou: in 0..1.

    Returns:
        None without kinds.

    Raises:
        UserError: lists all mistakes, such as a setting that these kinds do not use.
    """
    names = [name.strip() for name in kinds.split(",")] if kinds else []
    mistakes = [f"--tta {n!r} is not flip or scales" for n in names if n not in ("flip", "scales")]
    mistakes += [
        f"scale {scale:g} must be in {MIN_SCALE:g}..{MAX_SCALE:g}"
        for scale in scales or ()
        if not MIN_SCALE <= scale <= MAX_SCALE
    ]
    others = sorted({float(scale) for scale in scales or DEFAULT_SCALES} - {1.0})
    if scales is not None and "scales" not in names:
        mistakes.append("--tta_scales is for --tta scales or --tta flip,scales")
    elif not others:
        mistakes.append("--tta_scales 1 adds no view, as 1 always is one; name another scale")
    if not names and (method is not None or iou is not None):
        mistakes.append("--tta_method and --tta_iou merge the views of --tta, which is not given")
    if method is not None and method not in METHODS:
        mistakes.append(f"method {method!r} is not one of {', '.join(METHODS)}")
    if iou is not None and not 0 <= iou <= 1:
        mistakes.append(f"overlap {iou:g} must be in 0..1")
    if mistakes:
        raise UserError("; ".join(mistakes))
    if not names:
        return None
    default = ViewSettings()
    return ViewSettings(
        "flip" in names,
        tuple(others) if "scales" in names else (),
        default.method if method is None else method,
        default.iou if iou is None else iou,
    )
