"""tpudet: object detection from raw boxes to a ranked submission, on TPU, GPU or CPU."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpudet.detection.inspection.interactive import LoadedDetector
    from tpudet.trainkit.training.find_devices import FoundDevices


def get_devices() -> "FoundDevices":
    """Finds the TPU, else the GPUs, else the CPU, prints what was found, and leaves it free.

    Raises:
        UserError: neither TensorFlow nor JAX can be imported.
    """
    from tpudet.trainkit.training import find_devices

    return find_devices.get_devices()


def load(path: str | os.PathLike[str]) -> "LoadedDetector":
    """Loads an exported detector, for three lines in a notebook.

        detections = tpudet.load("output/final/demo-sample-160").predict("images")
        plt.imshow(detections.draw())
        detections.to_pandas()

    Args:
        path: of a SavedModel, or of a folder with some, whose newest is taken.

    Raises:
        UserError: there is none, or it is damaged.
    """
    # Late: `import tpudet` is light, and TensorFlow takes seconds.
    from tpudet.detection.inspection.interactive import LoadedDetector

    return LoadedDetector(path)
