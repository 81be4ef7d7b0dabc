import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

SMALL_RETINANET = Path(__file__).with_name("small_retinanet.py")


@pytest.fixture(scope="session")
def small():
    """The functions of small_retinanet.py, which is also a command for the other backend."""
    return SimpleNamespace(path=SMALL_RETINANET, **runpy.run_path(str(SMALL_RETINANET)))
