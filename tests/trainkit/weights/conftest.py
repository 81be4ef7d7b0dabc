import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def networks():
    """The functions of random_networks.py, which a Python with torch imports too."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("random_networks.py"))))
