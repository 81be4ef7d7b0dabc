"""Folds of DICOM files: one division in a folder, and each patient on one side of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.data.pipeline import read_names
from tpudet.classification.data.splits import find_joined_split
from tpudet.classification.preparation.rsna_labels import CLASSES
from tpudet.cli import main
from tpudet.trainkit.errors import UserError

PIXELS = np.full((8, 8), 1000, np.int16)


def convert(source: Path, output: Path, *more: str) -> int:
    command = ["dicom_to_tfrecords", str(source / "dcm"), "--labels", str(source / "labels.csv")]
    return main([*command, "--output", str(output), "--workers", "1", "--num_shards", "1", *more])


def write_source(folder: Path, files: dict[str, bytes]) -> Path:
    (folder / "dcm").mkdir(parents=True)
    rows = ["ID,Label"]
    for image, content in files.items():
        (folder / f"dcm/{image}.dcm").write_bytes(content)
        rows += [f"{image}_{entry.name},1" for entry in CLASSES]
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def source(make_dicom, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve patients of one slice each."""
    files = {f"ID_{k:02}": make_dicom(PIXELS, PatientID=f"P{k}") for k in range(12)}
    return write_source(tmp_path_factory.mktemp("folds") / "source", files)


@pytest.fixture(scope="module")
def four_folds(source: Path) -> Path:
    assert convert(source, source.parent / "four/ct", "--folds", "4") == 0
    return source.parent / "four/ct"


def test_folds_beyond_a_smaller_number_are_refused_before_anything_is_written(
    source: Path, four_folds: Path, capsys
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in four_folds.iterdir()}
    assert convert(source, four_folds, "--folds", "2", "--overwrite") == 2
    assert "has fold_2, fold_3 of an earlier division" in capsys.readouterr().err
    assert {path.name: path.stat().st_mtime_ns for path in four_folds.iterdir()} == before


def test_folds_of_two_divisions_are_not_read_together(
    source: Path, four_folds: Path, tmp_path: Path, capsys
) -> None:
    """Fold 0 of two has six images; of four, three in each."""
    mixed = tmp_path / "ct"
    shutil.copytree(four_folds, mixed)
    assert convert(source, tmp_path / "two/ct", "--folds", "2") == 0
    for path in mixed.glob("fold_0_*"):
        path.unlink()
    for path in (tmp_path / "two/ct").glob("fold_0_*"):
        shutil.copy(path, mixed)
    names = {
        splits: read_names(find_joined_split(str(mixed), splits, CLASSES).shards)
        for splits in ("fold_0", "fold_1+fold_2+fold_3")
    }
    assert [len(found) for found in names.values()] == [6, 9]
    assert len(set.intersection(*map(set, names.values()))) >= 3  # of twelve images in all
    message = r"fold_0 is one of 2 \(division \w{8}\), fold_1 is one of 4 "
    with pytest.raises(UserError, match=message):
        find_joined_split(str(mixed), "fold_0+fold_1", CLASSES)
    command = ["train", "--config", "rsna-r50_448", "--model_dir", str(tmp_path / "run")]
    splits = ["data.train_split=fold_1+fold_2+fold_3", "data.eval_split=fold_0"]
    sets = [f"--set={text}" for text in (f"data.directory={mixed}", *splits)]
    assert main([*command, *sets]) == 2
    assert "fold_1 is one of 4" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_folds_of_two_seeds_are_not_read_together(
    source: Path, four_folds: Path, tmp_path: Path
) -> None:
    """As a division anew leaves them that is killed after its first fold."""
    mixed, other = tmp_path / "ct", tmp_path / "other/ct"
    shutil.copytree(four_folds, mixed)
    assert convert(source, other, "--folds", "4", "--seed", "1") == 0
    for path in other.glob("fold_0_*"):
        shutil.copy(path, mixed)
    images = [
        {
            name
            for k in folds
            for name in read_names(find_joined_split(str(part), k, CLASSES).shards)
        }
        for part, folds in ((other, ["fold_0"]), (four_folds, ["fold_1", "fold_2", "fold_3"]))
    ]
    assert images[0] & images[1]
    with pytest.raises(
        UserError, match=r"fold_0 is one of 4 \(division (\w{8})\), .* \(division (?!\1)"
    ):
        find_joined_split(str(mixed), "fold_0+fold_1", CLASSES)


def test_two_files_of_one_image_are_refused(make_dicom, tmp_path: Path, capsys) -> None:
    files = {f"ID_{k}": make_dicom(PIXELS, PatientID=f"P{k}") for k in range(4)}
    source = write_source(tmp_path / "source", files)
    (source / "dcm/ID_0.DCM").write_bytes(files["ID_1"])
    assert convert(source, tmp_path / "ct", "--folds", "2") == 2
    assert "has images twice, as .dcm and .DCM: ID_0." in capsys.readouterr().err


def test_one_fold_is_none(source: Path, tmp_path: Path, capsys) -> None:
    assert convert(source, tmp_path / "ct", "--folds", "1") == 2
    assert "--folds 1: 2 or more" in capsys.readouterr().err


def test_a_patient_far_into_the_header_is_found_and_one_without_is_counted(
    make_dicom, tmp_path: Path, capsys
) -> None:
    """Of 200,000 bytes before the patient a first look of 65,536 sees nothing."""
    far = {f"ID_{k}": make_dicom(PIXELS, PatientID="P", before_patient=200_000) for k in range(4)}
    near = {f"ID_n{k}": make_dicom(PIXELS, PatientID=f"N{k}") for k in range(3)}
    source = write_source(tmp_path / "source", {**far, **near, "ID_x": make_dicom(PIXELS)})
    assert convert(source, tmp_path / "ct", "--folds", "2") == 0
    assert "1 images have no patient in their header" in capsys.readouterr().out
    folds = [
        set(read_names(find_joined_split(str(tmp_path / "ct"), f"fold_{k}", CLASSES).shards))
        for k in (0, 1)
    ]
    assert {len(found & {f"{image}.dcm" for image in far}) for found in folds} == {0, 4}


def test_wrapped_slices_are_repaired_and_listed(make_dicom, tmp_path: Path) -> None:
    air = np.full((8, 8), 4096 - 1000, np.uint16)
    wrapped = make_dicom(air, PatientID="A", BitsStored=12, RescaleIntercept=0)
    files = {"ID_a": wrapped, "ID_b": make_dicom(PIXELS, PatientID="B")}
    source = write_source(tmp_path / "source", files)
    assert convert(source, tmp_path / "ct", "--folds", "2") == 0
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("ct/fold_*.manifest.json")]
    repaired = [entry["file"] for manifest in manifests for entry in manifest["repaired"]]
    assert repaired == ["ID_a.dcm"]
    (record,) = (
        tf.train.Example.FromString(text).features.feature
        for path in tmp_path.glob("ct/fold_*.tfrecord")
        for text in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
        if b"ID_a" in text
    )
    pixels = tf.io.decode_png(record["image/encoded"].bytes_list.value[0], dtype=tf.uint16)
    assert set(pixels.numpy().ravel().tolist()) == {32768 - 1000}
