"""From the config of the resizing to the function that `trainkit.images.canvas` takes."""

import functools

from tpudet.detection.data.config import FitConfig, ResizeConfig, ShortSideConfig, StretchConfig
from tpudet.trainkit.images.canvas import Resize, fit, fit_short_side, stretch


def build_resize(resize: ResizeConfig) -> Resize:
    """Returns the function from the sizes of an image and the canvas to its scale."""
    match resize:
        case FitConfig():
            return fit
        case StretchConfig():
            return stretch
        case ShortSideConfig():
            return functools.partial(
                fit_short_side, short_side=resize.short_side, long_side=resize.long_side
            )
