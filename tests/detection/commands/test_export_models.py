"""Refusals of export_models."""

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
