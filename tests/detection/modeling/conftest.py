import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

SMALL_RETINANET = Path(__file__).with_name("small_retinanet.py")
SMALL_MASK_RCNN = Path(__file__).with_name("small_mask_rcnn.py")


@pytest.fixture(scope="session")
def small():
    """The functions of small_retinanet.py, which is also a command for the other backend."""
    return SimpleNamespace(path=SMALL_RETINANET, **runpy.run_path(str(SMALL_RETINANET)))


@pytest.fixture(scope="session")
def small_mask():
    """The functions of small_mask_rcnn.py, which is also a command for the other backend."""
    return SimpleNamespace(path=SMALL_MASK_RCNN, **runpy.run_path(str(SMALL_MASK_RCNN)))
