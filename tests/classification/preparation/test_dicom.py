"""CT slices: known pixels of two head CTs, what is undecodable, folds, labels, training on them."""

import csv
import io
import json
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.data.augmentations import move_image
from tpudet.classification.data.config import DataConfig
from tpudet.classification.data.pipeline import eval_dataset
from tpudet.classification.data.samples import decode_windows
from tpudet.classification.inference.classify import _images_of_records
from tpudet.classification.preparation.dicom import DicomError, hounsfield, read_scan
from tpudet.classification.preparation.rsna_labels import assign_folds, read_labels
from tpudet.cli import main
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.crops import Crop

pytest.importorskip("pydicom")
BRAIN, BLOOD, SOFT = (40.0, 80.0), (80.0, 200.0), (40.0, 480.0)
SEED = tf.constant([3, 4], tf.int64)
NAMES = ["any", "epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural"]


@pytest.fixture(scope="module")
def slices(data_dir: Path) -> Path:
    return data_dir / "dicom_ct"


@pytest.mark.parametrize(
    ("name", "place", "units", "pixel"),
    [
        # Stored 1048 with intercept -1024. Brain (24 - 0) / 80, blood (24 + 20) / 200, soft tissue
        # (24 + 200) / 480 of 255.
        ("693_UNCR", (256, 256), 24, (77, 56, 119)),
        ("693_UNCR", (300, 300), 34, (108, 69, 124)),
        ("693_UNCR", (200, 150), 1256, (255, 255, 255)),  # bone
        ("693_J2KR", (256, 256), 24, (77, 56, 119)),  # the same, in lossless JPEG 2000
        ("J2K_pixelrep_mismatch", (256, 256), 27, (86, 60, 121)),
        ("J2K_pixelrep_mismatch", (200, 150), 44, (140, 82, 130)),
    ],
)
def test_windows_of_two_head_cts_at_marked_pixels(
    name: str, place: tuple[int, int], units: float, pixel: tuple, slices: Path
) -> None:
    (found,) = read_scan((slices / f"{name}.dcm").read_bytes()).slices
    assert hounsfield(found)[place] == units
    image = decode_windows(
        tf.constant(found.png),
        tf.constant([found.slope, found.intercept]),
        lambda size: Crop(tf.zeros([2], tf.int32), size),
        512,
        512,
        windows=(BRAIN, BLOOD, SOFT),
    )
    assert tuple(image.numpy()[place]) == pixel


@pytest.mark.parametrize(("stored", "slope"), [(1072, 1.0), (-1072, -1.0)])
def test_what_a_shift_of_the_slice_leaves_empty_is_black_in_every_window(
    stored: int, slope: float
) -> None:
    """A slice of 48 Hounsfield units, moved by less than half of its sides."""
    values = np.full((64, 64), 32768 + stored, np.uint16)
    image = decode_windows(
        tf.constant(cv2.imencode(".png", values)[1].tobytes()),
        tf.constant([slope, -1024.0]),
        lambda size: Crop(tf.zeros([2], tf.int32), size),
        64,
        64,
        windows=(BRAIN, BLOOD, (600, 2800)),
        move=partial(move_image, seed=SEED, rotation=0.0, shift=0.5, scale=0.0),
    ).numpy()
    draws = tf.random.stateless_uniform([4], SEED, -1.0, 1.0, alg="philox").numpy()
    # 48 of 80 above the lower end of the first window, 68 of 200, and 848 of 2800.
    is_inside = (image == [153, 87, 77]).all(axis=-1)
    assert abs(is_inside.mean() - np.prod(1.0 - 0.5 * np.abs(draws[2:]))) < 0.04
    border = (~is_inside & (image > 0).any(axis=-1)).mean()  # a pixel wide
    assert border < 0.04


def test_padding_is_black_in_every_window_and_frames_have_a_rescale_of_their_own(
    slices: Path,
) -> None:
    """Outside the round field of view UNCR stores -2000, its padding."""
    (head,) = read_scan((slices / "693_UNCR.dcm").read_bytes()).slices
    assert hounsfield(head)[0, 0] == hounsfield(head).min() == -1024
    frames = read_scan((slices / "eCT_Supplemental.dcm").read_bytes()).slices
    assert [(frame.slope, frame.intercept) for frame in frames] == [(1.0, -1024.0)] * 2


@pytest.mark.parametrize(
    "name", ["693_UNCI", "693_J2KI", "CT_small", "explicit_VR-UN", "bad_sequence"]
)
def test_other_cts_are_decoded(name: str, slices: Path) -> None:
    (found,) = read_scan((slices / f"{name}.dcm").read_bytes()).slices
    assert hounsfield(found).shape == (found.height, found.width)


def test_a_fractional_slope_is_not_rounded(slices: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    dataset = pydicom.dcmread(slices / "CT_small.dcm")
    dataset.RescaleSlope, dataset.RescaleIntercept = "0.25", "-1000.5"
    buffer = io.BytesIO()
    dataset.save_as(buffer)
    (found,) = read_scan(buffer.getvalue()).slices
    stored = int(dataset.pixel_array[5, 7])
    assert hounsfield(found)[5, 7] == stored * 0.25 - 1000.5


def test_unsigned_values_of_sixteen_bits_are_not_clipped(make_dicom) -> None:
    """Stored 20480 * 0.05 - 1024 = 0 and 40000 * 0.05 - 1024 = 976 Hounsfield units."""
    stored = np.array([[20480, 40000], [0, 65535]], np.uint16)
    content = make_dicom(stored, RescaleSlope="0.05")
    (found,) = read_scan(content).slices
    np.testing.assert_allclose(hounsfield(found), stored * 0.05 - 1024, atol=1e-9)
    image = decode_windows(
        tf.constant(found.png),
        tf.constant([found.slope, found.intercept]),
        lambda size: Crop(tf.zeros([2], tf.int32), size),
        2,
        2,
        windows=((976.0, 100.0),),
    )
    assert image.numpy()[..., 0].tolist() == [[0, 128], [0, 255]]


@pytest.mark.parametrize(
    ("intercept", "message"),
    [
        (b"-102,4  ", "has a header that cannot be used: .*-102,4"),
        (b"-1\\-10  ", "has a header that cannot be used"),
        (b"nan     ", r"that are not finite: \(1.0, nan\)"),
        (b"-inf    ", r"that are not finite: \(1.0, -inf\)"),
    ],
)
def test_a_header_that_cannot_be_used_is_an_error_of_its_file(
    intercept: bytes, message: str, make_dicom
) -> None:
    """A decimal comma, two values, and none that is a number; -1024 is in their place."""
    content = make_dicom(np.array([[40, 1100]], np.uint16))
    sound = b"-1024.0 "
    assert content.count(sound) == 1
    assert hounsfield(read_scan(content).slices[0]).tolist() == [[-984, 76]]
    with pytest.raises(DicomError, match=message):
        read_scan(content.replace(sound, intercept))


@pytest.mark.parametrize("value", [[1, 2], b"\x30\xf8"])
def test_a_padding_that_is_no_number_is_an_error_of_its_file(value: object, make_dicom) -> None:
    pydicom = pytest.importorskip("pydicom")
    dataset = pydicom.dcmread(io.BytesIO(make_dicom(np.array([[40, 1100]], np.uint16))))
    kind = "OW" if isinstance(value, bytes) else "US"
    dataset[0x00280120] = pydicom.dataelem.DataElement(0x00280120, kind, value)
    buffer = io.BytesIO()
    dataset.save_as(buffer)
    with pytest.raises(DicomError, match="has a header that cannot be used"):
        read_scan(buffer.getvalue())


@pytest.mark.parametrize(
    ("bits", "intercept", "is_wrapped"), [(12, 0, True), (12, -1024, False), (16, 0, False)]
)
def test_negative_values_in_twelve_unsigned_bits_are_put_right(
    bits: int, intercept: int, is_wrapped: bool, make_dicom
) -> None:
    """Air, -1000, is stored as 3096; 3095 is the largest value that stands for itself."""
    stored = np.array([[3096, 4095, 0, 40, 3095]], np.uint16)
    scan = read_scan(make_dicom(stored, BitsStored=bits, RescaleIntercept=intercept))
    expected = [-1000, -1, 0, 40, 3095] if is_wrapped else (stored[0] + float(intercept)).tolist()
    assert hounsfield(scan.slices[0])[0].tolist() == expected
    assert len(scan.repairs) == is_wrapped


def test_padding_of_a_wrapped_slice_becomes_its_air(make_dicom) -> None:
    stored = np.array([[2048, 3096, 40]], np.uint16)
    content = make_dicom(stored, BitsStored=12, RescaleIntercept=0, PixelPaddingValue=2048)
    assert hounsfield(read_scan(content).slices[0])[0].tolist() == [-1000, -1000, 40]


def test_what_is_no_image_says_so(slices: Path) -> None:
    with pytest.raises(DicomError, match="is not a DICOM file"):
        read_scan(b"hello")
    content = (slices / "693_UNCR.dcm").read_bytes()
    with pytest.raises(DicomError, match="cannot be decoded"):
        read_scan(content[: len(content) // 2])


def write_labels(path: Path, positive: dict[str, set[str]]) -> Path:
    rows = [
        f"{image}_{name},{int(name in found)}"
        for image, found in positive.items()
        for name in NAMES
    ]
    path.write_text(
        "ID,Label\n" + "\n".join([*rows, rows[0]]) + "\n"
    )  # one row twice, as in RSNA's
    return path


def test_labels_are_class_ids_by_image(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "l.csv", {"ID_a1": {"any", "subdural"}, "ID_b2": set()})
    assert read_labels(str(path)) == {"ID_a1": (1, 6), "ID_b2": ()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ID,Label\nID_a_any,0\nID_a_any,1\n", "ID_a_any is both 0 and 1"),
        ("ID,Label\nID_a_any,2\n", "label '2' of ID_a"),
        ("ID,Label\nID_a_other,1\n", "unknown class in ID_a_other"),
        ("ID,Label\nID_a_any,1\n", "ID_a has 1 of 6 rows"),
        ("id,label\n", "has the columns id, label; ID,Label needed"),
        ("", "is not a CSV: No columns to parse from file"),
        ("ID,Label\nID_a_any,0\nID_a_any", "label '' of ID_a"),  # cut short
        ("ID,Label\nID_a_any,0,1,2\nID_b_any,0\n", "is not a CSV: Length of header"),
        ("ID,Label\n", "has a header and no rows"),
        ("ID,Label" + "," * 1000 + "\n", "l.csv has 1,002 columns or more, and 1,000 at most"),
    ],
)
def test_labels_that_contradict_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_labels(str(tmp_path / "l.csv"))


def test_a_patient_is_in_one_fold_and_folds_are_nearly_equal() -> None:
    patients = {f"ID_{k}": f"patient {k % 20}" for k in range(100)}
    folds = assign_folds(patients, 5, seed=1)
    of_patient = {
        patient: {folds[i] for i in patients if patients[i] == patient}
        for patient in patients.values()
    }
    assert all(len(found) == 1 for found in of_patient.values())
    assert np.bincount(list(folds.values())).tolist() == [20] * 5
    assert folds == assign_folds(dict(reversed(patients.items())), 5, seed=1)
    assert folds != assign_folds(patients, 5, seed=2)
    with pytest.raises(UserError, match="there are only 20 patients"):
        assign_folds(patients, 21, seed=0)


@pytest.fixture(scope="module")
def ct_part(slices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folds of seven slices, and three test images, one of which is cut off."""
    folder = tmp_path_factory.mktemp("ct")
    for kind in ("train", "test"):
        (folder / kind).mkdir()
    names = [
        "693_UNCR",
        "693_UNCI",
        "J2K_pixelrep_mismatch",
        "CT_small",
        "explicit_VR-UN",
        "bad_sequence",
    ]
    positive = {}
    for index, name in enumerate(names):
        (folder / f"train/ID_{index:02}.dcm").write_bytes((slices / f"{name}.dcm").read_bytes())
        positive[f"ID_{index:02}"] = {"any", "epidural"} if index % 2 else set()
    content = (slices / "693_J2KR.dcm").read_bytes()
    (folder / "test/ID_aa.dcm").write_bytes(content)
    (folder / "test/ID_bb.dcm").write_bytes((slices / "CT_small.dcm").read_bytes())
    (folder / "test/ID_cc.dcm").write_bytes(content[:20000])
    labels = write_labels(folder / "stage_1_train.csv", positive)
    command = ["dicom_to_tfrecords", str(folder / "train"), "--labels", str(labels), "--folds", "2"]
    shared = ["--output", str(folder / "part"), "--workers", "1"]
    assert main([*command, *shared]) == 0
    assert main(["dicom_to_tfrecords", str(folder / "test"), *shared]) == 0
    return folder / "part"


def read(part: Path, split: str) -> list[tf.train.Example]:
    paths = sorted(str(path) for path in part.glob(f"{split}_*.tfrecord"))
    records = tf.data.TFRecordDataset(paths).as_numpy_iterator()
    return [tf.train.Example.FromString(text) for text in records]


def test_records_hold_patient_and_fold_and_the_undecodable_file_is_listed(ct_part: Path) -> None:
    patients: list[set[str]] = []
    for fold in (0, 1):
        found = [example.features.feature for example in read(ct_part, f"fold_{fold}")]
        assert {one["fold"].int64_list.value[0] for one in found} == {fold}
        assert {one["num_folds"].int64_list.value[0] for one in found} == {2}
        patients.append({one["patient"].bytes_list.value[0].decode() for one in found})
    assert not patients[0] & patients[1]
    manifest = json.loads((ct_part / "test_part.manifest.json").read_text())
    assert [entry["file"] for entry in manifest["left_out"]] == ["ID_cc.dcm"]


def test_a_classifier_of_images_does_not_take_ct_records(ct_part: Path) -> None:
    shards = [str(path) for path in ct_part.glob("test_*.tfrecord")]
    with pytest.raises(UserError, match="are CT slices, .* predict with tpudet gen_rsna_sub"):
        next(_images_of_records(shards))


def test_ct_records_need_windows(ct_part: Path) -> None:
    shards = [str(path) for path in ct_part.glob("test_*.tfrecord")]
    with pytest.raises(UserError, match="are CT slices, which need three"):
        eval_dataset(DataConfig(), shards=shards, num_records=2, num_classes=6, batch_size=1)


def test_five_steps_and_a_submission_of_every_row(ct_part: Path, tmp_path: Path, capsys) -> None:
    run = str(tmp_path / "run")
    values = {
        "data.directory": str(ct_part),
        "data.train_split": "fold_1",
        "data.image_size": "[32, 32]",
        "model.backbone.depth": "18",
        "train.total_epochs": "null",
        "train.total_steps": "5",
        "train.batch_size": "2",
        "train.log_every_steps": "1",
        "train.iterations_per_loop": "5",
        "train.learning_rate.warmup_steps": "0",
        "evaluation.schedule.batch_size": "2",
    }
    sets = [text for key, value in values.items() for text in ("--set", f"{key}={value}")]
    assert main(["train", "--config", "rsna-r50_448", "--model_dir", run, *sets]) == 0
    lines = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    assert -1.5 < next(line["negative_loss"] for line in lines if line["kind"] == "eval") < 0
    rows = [f"{image}_{name}" for image in ("ID_cc", "ID_aa", "ID_bb") for name in NAMES[::-1]]
    sample = tmp_path / "sample.csv"
    sample.write_text("ID,Label\n" + "".join(f"{row},0.5\n" for row in rows))
    output = tmp_path / "submission.csv"
    command = ["gen_rsna_sub", str(output), "--model_dir", run, "--sample_submission", str(sample)]
    assert main(command) == 0
    assert "1 have the mean, not predicted: ID_cc" in capsys.readouterr().out
    written = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["ID"] for row in written] == rows
    labels = np.array([float(row["Label"]) for row in written]).reshape(3, 6)
    assert ((labels > 0) & (labels < 1)).all()
    np.testing.assert_allclose(labels[0], labels[1:].mean(axis=0), atol=2e-6)
