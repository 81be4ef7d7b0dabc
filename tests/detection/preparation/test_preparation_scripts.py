"""The scripts call the commands that they are named after."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.mark.parametrize(
    "name",
    [
        *("filter_dataset", "build_leaf_classes_list", "split_classes"),
        *("build_validation", "gen_coco_val_json", "kfold_split", "add_pseudo_labels"),
    ],
)
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for variable in ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"):
        monkeypatch.setenv(variable, "2")  # restored afterwards; the script leaves what is set
    script = SCRIPTS / f"{name}.py"
    assert script.stat().st_mode & 0o111
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert out.startswith(f"usage: {name}.py")
    assert f"scripts/{name}.py" in out  # the example
    assert "exit status: 0 done or up to date, 2 wrong arguments" in out
