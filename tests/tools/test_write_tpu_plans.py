"""docs/tpu_plans.md is what docs/tpu_plans.json says, and names what is missing."""

import json
from pathlib import Path

import pytest
from tools.write_tpu_plans import CONFIGS, DOCS, TPUS, main, write_page

from tpudet.trainkit.config.find import find_config
from tpudet.trainkit.training.tpu_machines import find_machine

FITS = {
    "step": "train", "batch_size": 64, "compile_seconds": 211.0, "flops": 4.58e12,
    "moved_bytes": 25_000_000_000, "cycles": {"head": 117_000_000}, "argument_bytes": 1 << 30,
    "output_bytes": 1 << 30, "aliased_bytes": 1 << 30, "temporary_bytes": 4 << 30,
    "code_bytes": 0, "waiting_bytes": 0, "tpu": "v5e-8",
}  # fmt: skip
TOO_LARGE = {
    "step": "train", "batch_size": 64, "kind": "memory", "message": "", "needed_bytes": 20 << 30,
    "layer": "", "tpu": "v5e-8",
}  # fmt: skip


def test_there_are_twenty_experiments_on_two_machines() -> None:
    assert len(set(CONFIGS)) >= 20
    assert all(find_config(name.partition("@")[0]) for name in CONFIGS)
    assert [find_machine(name).num_devices for name in TPUS] == [8, 8]


def test_the_page_is_current(tmp_path: Path) -> None:
    for name in ("tpu_plans.json", "tpu_plans.md"):
        (tmp_path / name).write_text((DOCS / name).read_text())
    before = (tmp_path / "tpu_plans.md").read_text().splitlines()
    assert main(["--no_compile", "--docs", str(tmp_path)]) == 0
    after = (tmp_path / "tpu_plans.md").read_text().splitlines()
    assert before[-4:] == after[-4:]


def test_a_row_holds_the_roofline_and_missing_plans_are_named() -> None:
    wanted = [("r50_fpn_640@64", "v5e-8"), ("r101_fpn_1024", "v5e-8"), ("quickstart", "v3-8")]
    plans = {"r50_fpn_640@64 v5e-8": [FITS], "r101_fpn_1024 v5e-8": [TOO_LARGE]}
    text = write_page(json.loads(json.dumps(plans)), wanted)
    row = "| r50_fpn_640 | v5e-8 | train | 64 | 5.00 of 15.75 GiB | 4.580 | 25.00 | 30.5 | "
    assert row + "memory traffic | 2097 | 78.0 | 821 |" in text
    assert "| r101_fpn_1024 | v5e-8 | train | 64 | does not fit, 20.0 GiB | - |" in text
    assert "Not compiled yet, for lack of time: quickstart on v3-8." in text


def test_an_old_libtpu_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tpudet.trainkit.training import tpu_compiler

    monkeypatch.setattr(tpu_compiler, "version", lambda package: "0.0.17")
    assert main(["--docs", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())
