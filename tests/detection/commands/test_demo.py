"""Of several exported resolutions the demo takes the one that it has just written."""

import os
from pathlib import Path

from tpudet.detection.commands import demo


def test_the_saved_model_written_last(tmp_path: Path) -> None:
    for age, size in ((100, 256), (0, 128), (50, 320)):
        model = tmp_path / f"final/demo-sample-{size}/saved_model.pb"
        model.parent.mkdir(parents=True)
        model.touch()
        os.utime(model, (1e9 - age, 1e9 - age))
    (tmp_path / "final/demo-sample-64.replaced.temporary").mkdir()
    assert demo._saved_model(str(tmp_path), "demo-sample") == f"{tmp_path}/final/demo-sample-128"
