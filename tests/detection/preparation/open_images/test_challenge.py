"""The list of human parts: that of $DATA, or the one in the package."""

from pathlib import Path

import pytest

from tpudet.detection.preparation.open_images.challenge import HUMAN_PARTS, human_parts_path


def test_thirteen_human_parts_ship_and_a_list_in_data_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path))
    labels = Path(human_parts_path()).read_text().split()
    assert len(set(labels)) == 13
    assert {"/m/02p0tk3", "/m/04rky"} < set(labels)  # Human body and Mammal, parents of the others
    (tmp_path / HUMAN_PARTS).write_text("/m/014sv8\n")
    assert human_parts_path() == str(tmp_path / HUMAN_PARTS)
