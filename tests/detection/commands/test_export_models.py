"""Refusals of export_models."""

from pathlib import Path

import pytest

from tpudet.detection.commands import export_models


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models.yml", "--step", "5000"], "--step 5000 is for --all_folds"),
        (["models.yml", "--all_folds"], "give either LIST or --all_folds"),
        ([], "give either LIST or --all_folds"),
    ],
)
def test_arguments_that_would_be_ignored(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_models.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_entries_of_a_list_that_cannot_be_read_are_all_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.yml"
    path.write_text("- {dataset: part, version: v1, step: 100}\n- {dataset: part, stepp: 5}\n")
    assert export_models.main([str(path)]) == 2
    message = capsys.readouterr().err
    for mistake in ("resolution", "version", "stepp"):
        assert mistake in message


def test_no_fold_to_export_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders that are not folds do not count."""
    monkeypatch.setenv("STORAGE", str(tmp_path))
    (tmp_path / "saved/v1-part").mkdir(parents=True)
    assert export_models.main(["--all_folds"]) == 2
    assert f"no fold below {tmp_path}/saved" in capsys.readouterr().err
