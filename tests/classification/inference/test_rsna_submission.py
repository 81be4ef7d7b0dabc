"""RSNA submissions: their rows, and what is refused before anything is predicted."""

from pathlib import Path

import numpy as np

from tpudet.classification.inference.rsna_submission import read_sample, write_submission
from tpudet.classification.preparation.rsna_labels import CLASSES, image_id_of
from tpudet.cli import main


def write_sample(path: Path, images: list[str]) -> list[str]:
    rows = [f"{image}_{entry.name}" for image in images for entry in CLASSES]
    path.write_text("ID,Label\n" + "".join(f"{row},0.5\n" for row in rows))
    return rows


def test_a_small_probability_keeps_its_digits(tmp_path: Path) -> None:
    """Of a positive with 4e-7 the log loss is 14.7; rounded to six decimals it would be 34.5."""
    write_sample(tmp_path / "sample.csv", ["ID_a"])
    probabilities = np.array([4e-7, 0.25, 1 - 1e-6, 0, 0, 1], np.float32)
    output = str(tmp_path / "submission.csv")
    sample = read_sample(str(tmp_path / "sample.csv"))
    write_submission(output, {"ID_a": probabilities}, sample=sample, force=False)
    _, *rows = Path(output).read_text().splitlines()
    written = np.array([float(row.split(",")[1]) for row in rows], np.float32)
    np.testing.assert_array_equal(written, probabilities)


def test_what_cannot_be_written_is_said_before_the_run_is_opened(tmp_path: Path, capsys) -> None:
    write_sample(tmp_path / "sample.csv", ["ID_a"])
    output = tmp_path / "submission.csv"
    command = ["gen_rsna_sub", str(output), "--model_dir", str(tmp_path / "no_run")]
    assert main([*command, "--sample_submission", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    output.write_text("ID,Label\n")
    assert main([*command, "--sample_submission", str(tmp_path / "sample.csv")]) == 2
    assert f"{output} exists: --force replaces it" in capsys.readouterr().err


def test_the_id_of_an_image_is_its_name_without_the_ending_of_either_case() -> None:
    names = ["ID_a.dcm", "ID_b.DCM", "ID_c", "1.2.840"]
    assert [image_id_of(name) for name in names] == ["ID_a", "ID_b", "ID_c", "1.2.840"]
