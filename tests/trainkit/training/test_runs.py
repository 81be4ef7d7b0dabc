"""The table of runs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tpudet.detection.commands import list_runs
from tpudet.trainkit.training import runs
from tpudet.trainkit.training.run_log import FILE_NAME

NOW = 1_700_000_000.0


def write_run(model_dir: str, lines: list[dict[str, Any]], config: str | None = None) -> None:
    tf.io.gfile.makedirs(f"{model_dir}/best")
    with tf.io.gfile.GFile(f"{model_dir}/{FILE_NAME}", "w") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    if config is not None:
        with tf.io.gfile.GFile(f"{model_dir}/config.yaml", "w") as file:
            file.write(config)


def state_line(state: str, step: int, age: float = 60, **more: Any) -> dict[str, Any]:
    return {"kind": "state", "step": step, "time": NOW - age, "state": state, **more}


TRAINED = {
    "kind": "train",
    "step": 300,
    "time": NOW - 200,
    "images_per_second": 41.26,
    "input_wait_share": 0.034,
}


def test_every_column_of_a_run(ram_dir: str) -> None:
    model_dir = f"{ram_dir}/saved/2.3.1_effnet-part_4-fold_0"
    evaluations = [
        {"kind": "eval", "step": step, "time": NOW - 150, "AP50": value, "AP": 0.1}
        for step, value in ((100, 0.5), (200, 0.7123), (250, "nan"), (300, 0.69))
    ]
    running = state_line("running", 0, 500, total_steps=1000, reason="")
    write_run(model_dir, [running, TRAINED, *evaluations], "train: {total_steps: 7}")
    found = runs.summarize_run(model_dir, metric="AP50", now=NOW, silent_after_minutes=15)
    assert found == runs.RunSummary(
        version="2.3.1_effnet",
        part="part_4-fold_0",
        step=300,
        total_steps=1000,  # the ledger's, not the configuration's
        last=0.69,
        best=0.7123,
        best_step=200,
        images_per_second=41.26,
        input_wait_share=0.034,
        age_seconds=150.0,
        state="running",
    )
    header, row = runs.format_table([found], metric="AP50").splitlines()
    expected = "version part step last AP50 best AP50 at step images/s wait age state"
    assert header.split() == expected.split()
    assert row.split() == [
        *("2.3.1_effnet", "part_4-fold_0", "300/1000", "0.6900", "0.7123", "200", "41.3", "3%"),
        *("2m", "running"),
    ]


@pytest.mark.parametrize(
    ("name", "version", "part"),
    [
        ("lite0-512_fpn-bccd", "lite0-512_fpn", "bccd"),
        ("mask-r50_fpn_1024-seg_seg-fold_4", "mask-r50_fpn_1024", "seg_seg-fold_4"),
        ("quickstart-fold_0", "quickstart", "fold_0"),
        ("cats", "cats", ""),
    ],
)
def test_names_of_versions_may_have_hyphens(
    tmp_path: Path, name: str, version: str, part: str
) -> None:
    found = runs.summarize_run(str(tmp_path / name), metric="AP", now=NOW, silent_after_minutes=15)
    assert (found.version, found.part) == (version, part)


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (state_line("running", 0, 899), "running"),
        (state_line("running", 0, 901), "silent (was running)"),
        (state_line("finished", 9, 10**6, reason=""), "finished"),
        (state_line("stopped", 9, reason="SIGTERM"), "stopped: SIGTERM"),
        (
            state_line("failed", 9, reason="NonfiniteLossError: nan\nat"),
            "failed: NonfiniteLossErro",
        ),
    ],
)
def test_states(ram_dir: str, line: dict[str, Any], state: str) -> None:
    write_run(f"{ram_dir}/1-a", [line], "train: {total_steps: 7}")
    found = runs.summarize_run(f"{ram_dir}/1-a", metric="AP50", now=NOW, silent_after_minutes=15)
    assert found.state.startswith(state)
    assert found.total_steps == 7  # from the configuration where the ledger does not say
    assert found.best is None


def test_the_step_is_that_of_the_trainer_not_of_an_evaluator_that_lags_behind(ram_dir: str) -> None:
    late = {"kind": "eval", "step": 4, "time": NOW - 30, "AP50": 0.5}
    write_run(f"{ram_dir}/1-a", [state_line("running", 0), state_line("finished", 10), late])
    found = runs.summarize_run(f"{ram_dir}/1-a", metric="AP50", now=NOW, silent_after_minutes=15)
    assert (found.step, found.state) == (10, "finished")


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ('{"kind": "eval", "step": 1e999}', "no line yet"),
        ('{"kind": "state", "step": 5, "state": "running", "time": null}', "running"),
        ('{"kind": "state", "step": 5, "state": "failed", "reason": 7, "time": 1}', "failed: 7"),
        ('{"kind": "state", "step": 5, "state": 7, "time": "nan"}', "7"),
    ],
)
def test_damaged_lines_are_shown_as_far_as_they_go(tmp_path: Path, line: str, state: str) -> None:
    (tmp_path / "1-a").mkdir()
    (tmp_path / "1-a" / FILE_NAME).write_text(line + "\n")
    (tmp_path / "1-a" / "config.yaml").write_text("train: {total_steps: .inf}")
    table = runs.report(str(tmp_path), metric="AP50", silent_after_minutes=15)
    assert table.endswith(f"  {state}")


def test_runs_are_found_at_any_depth_and_columns_are_aligned(ram_dir: str) -> None:
    write_run(f"{ram_dir}/long_name_of_a_version-bccd", [state_line("stopped", 20000)])
    write_run(f"{ram_dir}/folds/1.0-part_1", [TRAINED])
    tf.io.gfile.makedirs(f"{ram_dir}/new-bccd")
    with tf.io.gfile.GFile(f"{ram_dir}/new-bccd/config.yaml", "w") as file:
        file.write("train: [not a mapping")
    table = runs.report(ram_dir, metric="AP50", silent_after_minutes=15).splitlines()
    assert [row.split()[:3] for row in table[1:]] == [
        ["1.0", "part_1", "300/?"],
        ["long_name_of_a_version", "bccd", "20000/?"],
        ["new", "bccd", "0/?"],
    ]
    column = table[0].index("state")
    assert [row[column:] for row in table[1:]] == ["silent (was running)", "stopped", "no line yet"]
    assert all(row[column - 2 : column] == "  " for row in table)


def test_links_that_lead_back_end_and_a_run_has_its_own_name(tmp_path: Path) -> None:
    """Two links of a folder to itself are 2^40 paths."""
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(".")
    write_run(f"{tmp_path}/1-x", [TRAINED])
    write_run(f"{tmp_path}/elsewhere/saved/2-y", [TRAINED])
    (tmp_path / "1-best").symlink_to("1-x")
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "linked").symlink_to(tmp_path / "elsewhere")
    (saved / "back").symlink_to(tmp_path)
    assert list(runs.find_model_dirs(str(tmp_path))) == [
        f"{tmp_path}/1-x",
        f"{tmp_path}/elsewhere/saved/2-y",
    ]
    assert list(runs.find_model_dirs(f"{saved}"))[:1] == [f"{saved}/back/1-x"]


@pytest.mark.parametrize("steps", ["!!int ''", "!!timestamp x", "0x" + "F" * 6000, "9" * 5000])
def test_a_configuration_that_cannot_be_read_does_not_hide_other_runs(
    ram_dir: str, steps: str
) -> None:
    write_run(f"{ram_dir}/1-odd", [TRAINED], f"train: {{total_steps: {steps}}}")
    write_run(f"{ram_dir}/2-sound", [TRAINED], "train: {total_steps: 400}")
    table = runs.report(ram_dir, metric="AP50", silent_after_minutes=15).splitlines()
    assert [row.split()[:3] for row in table[1:]] == [
        ["1", "odd", "300/?"],
        ["2", "sound", "300/400"],
    ]


def test_the_command_says_when_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path))
    assert list_runs.main([]) == 0
    assert capsys.readouterr().out == (
        f"No runs below {tmp_path}/saved: no folder there holds metrics.jsonl.\n"
    )
    with pytest.raises(SystemExit, match="2"):
        list_runs.main(["--watch", "0"])
    assert "--watch: `0` is not a number above 0" in capsys.readouterr().err


def test_a_folder_that_is_named_and_missing_is_an_error(
    ram_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (f"{tmp_path}/nosuch", f"{ram_dir}/nosuch"):
        assert list_runs.main([folder]) == 2
        assert capsys.readouterr().err == f"tpudet list_runs: there is no folder {folder}\n"


def test_watching_ends_when_nobody_reads_it(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "has_reader", False, raising=False)
    assert list_runs.main([ram_dir, "--watch", "600"]) == 0
    assert capsys.readouterr().out.count("No runs below") == 1


def test_watching_refreshes_until_interrupted(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            write_run(f"{ram_dir}/1-a", [TRAINED])
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.time, "sleep", sleep)
    assert list_runs.main([ram_dir, "--watch", "5", "--metric", "AP"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("No runs below ram://")
    assert "last AP " in output[1]
    assert slept == [5.0, 5.0]
