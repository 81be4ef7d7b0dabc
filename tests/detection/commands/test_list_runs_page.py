"""The page that compares runs, opened in a browser."""

import json
import re
from pathlib import Path

import pytest

from tpudet.detection.commands import list_runs


def write_run(model_dir: Path, peak: float, values: dict[int, float]) -> None:
    model_dir.mkdir(parents=True)
    lines = [
        {"kind": "train", "step": step, "time": 0.0, "loss": 1 / step} for step in range(1, 30)
    ]
    lines += [{"kind": "eval", "step": k, "time": 0.0, "AP": v} for k, v in values.items()]
    (model_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = f"train: {{total_steps: 30, learning_rate: {{kind: cosine, peak: {peak}}}}}\n"
    (model_dir / "config.yaml").write_text(config)


def test_runs_are_compared_by_curves_and_settings(tmp_path: Path, browse, capsys) -> None:
    write_run(tmp_path / "saved/a/run", 0.01, {10: 0.2, 20: 0.31})
    write_run(tmp_path / "saved/b/run", 0.02, {10: 0.3, 20: 0.42})
    write_run(tmp_path / "saved/b/<i>", 0.01, {})
    page = tmp_path / "runs.html"
    assert list_runs.main([f"{tmp_path}/saved", "--metric", "AP", "--page", str(page)]) == 0
    assert f"{page}: the page" in capsys.readouterr().out
    visit = browse(page, width=500)
    assert visit.console == ""
    assert visit.data == {"images": 0, "loaded": 0, "overflow": 0}
    assert "<i>" not in visit.dom
    evaluated, trained = re.findall(r"<svg.*?</svg>", visit.dom, flags=re.DOTALL)
    assert [name in evaluated for name in ("a/run", "b/run", "b/&lt;i&gt;")] == [True, True, False]
    assert all(name in trained for name in ("a/run", "b/run", "b/&lt;i&gt;"))
    rows = re.findall(r"<tr>(.*?)</tr>", visit.dom)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    names = [row[0] for row in cells[1:4]]
    assert names == ["b/run", "a/run", "b/&lt;i&gt;"]  # the best first
    assert ["train.learning_rate.peak", "0.02", "0.01", "0.01"] in cells
    assert not any(row[0] == "train.total_steps" for row in cells)


def test_a_page_replaces_a_page_of_its_own_only(tmp_path: Path, capsys) -> None:
    write_run(tmp_path / "saved/a", 0.01, {10: 0.2})
    page = tmp_path / "thesis.html"
    command = [f"{tmp_path}/saved", "--metric", "AP", "--page", str(page)]
    assert [list_runs.main(command) for _ in range(2)] == [0, 0]
    page.write_text("<!DOCTYPE html>\n<html><body>my thesis</body></html>\n")
    with pytest.raises(SystemExit):
        list_runs.main(command)
    assert "thesis.html exists and is not a page of tpudet" in capsys.readouterr().err
    assert "my thesis" in page.read_text()


@pytest.mark.parametrize("other", [["--compare"], ["--goodput"], ["--watch", "9"]])
def test_a_page_is_written_once_and_of_something(other: list[str], tmp_path: Path, capsys) -> None:
    page = ["--page", f"{tmp_path}/runs.html"]
    assert list_runs.main([str(tmp_path), *page]) == 2
    assert "no runs below" in capsys.readouterr().err
    write_run(tmp_path / "a", 0.01, {})
    assert list_runs.main([str(tmp_path), *page, *other]) == 2
    assert "--page" in capsys.readouterr().err
    assert not (tmp_path / "runs.html").exists()
