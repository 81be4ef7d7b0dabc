"""Masks as files: the CSV and folders of Open Images, and folders with one image each."""

import os
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.commands import gen_mask_truth, make_tfrecords
from tpudet.detection.data.tfrecord import parse_example
from tpudet.detection.preparation.sources.mask_files import (
    MaskFiles,
    add_open_images_masks,
    read_mask_file,
    read_mask_folders,
)
from tpudet.detection.preparation.sources.masks import draw_mask, mask_png
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.records import find_shards, read_records

HEIGHT, WIDTH = 40, 80
BOX_HEADER = "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf"
MASK_HEADER = "MaskPath,ImageID,LabelName,BoxID,BoxXMin,BoxXMax,BoxYMin,BoxYMax,PredictedIoU,Clicks"


def write_png(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels)


def read_objects(prefix: Path) -> list[dict[str, np.ndarray]]:
    """The columns of every record, with masks decoded to [n, h, w] bool."""
    found = []
    for _, text in read_records(find_shards(str(prefix))):
        example = parse_example(text, with_masks=True)
        columns = {
            name: getattr(example, name).numpy()
            for name in (
                "source_id",
                "boxes_normalized",
                "labels",
                "is_crowd",
                "lacks_mask",
                "areas",
            )
        }
        assert example.masks is not None
        pixels = [cv2.imdecode(np.frombuffer(m, np.uint8), 0) for m in example.masks.numpy()]
        found.append(columns | {"masks": np.array(pixels) > 0})
    return found


def ellipse(height: int, width: int) -> np.ndarray:
    mask = np.zeros((height, width), np.uint8)
    center = (width // 4, height // 2)
    return cv2.ellipse(mask, center, (width // 8, height // 4), 0, 0, 360, 255, -1)


@pytest.fixture
def open_images(tmp_path: Path) -> Path:
    """Image 0a with a masked cat, a dog without a mask and a group; its mask is half as large."""
    write_png(tmp_path / "images/0a.jpg", np.full((HEIGHT, WIDTH, 3), 90, np.uint8))
    mask = ellipse(HEIGHT // 2, WIDTH // 2)
    write_png(tmp_path / "masks/train-masks-0/0a_m01yrx_b1.png", mask)
    rows = ["0a,/m/cat,0.125,0.375,0.25,0.75,0", "0a,/m/dog,0.5,1,0,0.5,0", "0a,/m/cat,0,1,0,1,1"]
    (tmp_path / "boxes.csv").write_text("\n".join([BOX_HEADER, *rows]) + "\n")
    path = "0a_m01yrx_b1.png,0a,/m/cat,b1,0.125000,0.375000,0.250000,0.750000,0.9,0 1 2"
    other = "0b_m01yrx_b2.png,0b,/m/cat,b2,0,1,0,1,0.9,"
    (tmp_path / "masks.csv").write_text("\n".join([MASK_HEADER, path, other]) + "\n")
    return tmp_path


def convert(folder: Path, *options: str) -> int:
    arguments = ["--annotations", f"{folder}/boxes.csv", "--images", f"{folder}/images"]
    arguments += ["--output", f"{folder}/part", "--split", "val", "--workers", "1"]
    return make_tfrecords.main(["--format", "open_images", *arguments, *options])


def test_masks_of_open_images_join_their_boxes(open_images: Path) -> None:
    options = ["--include_masks", "--mask_csv", f"{open_images}/masks.csv"]
    assert convert(open_images, *options, "--mask_dir", f"{open_images}/masks") == 0
    (found,) = read_objects(open_images / "part/val_part")
    assert found["labels"].tolist() == [1, 2, 1]
    # The dog and the group have no mask: both are their boxes.
    assert found["is_crowd"].tolist() == [False, False, True]
    assert found["lacks_mask"].tolist() == [False, True, True]
    doubled = np.kron(ellipse(HEIGHT // 2, WIDTH // 2) > 0, np.ones((2, 2), bool))
    np.testing.assert_array_equal(found["masks"][0], doubled)
    assert found["areas"][0] == doubled.sum()
    expected = np.zeros((HEIGHT, WIDTH), bool)
    expected[: HEIGHT // 2, WIDTH // 2 :] = True
    assert np.mean(found["masks"][1] != expected) < 0.03  # polygons are drawn with their border
    assert found["masks"][2].all()


@pytest.mark.parametrize("word", ["NA", "None", "null", "nan", "1.0", "007"])
def test_names_that_look_like_missing_values_have_their_masks(tmp_path: Path, word: str) -> None:
    (tmp_path / "boxes.csv").write_text(f"{BOX_HEADER}\n{word},{word},0,1,0,1,0\n")
    rows = [f"m.png, {word} , {word},b,0, 1,0,1,0.9,", f",{word},other,b,0,1,0,1,0.9,"]
    rows += [f"n.png,{word},{word},b,{blank},1,0,1,0.9," for blank in ("", "nan")]
    (tmp_path / "masks.csv").write_text("\n".join([MASK_HEADER, *rows]) + "\n")
    boxes = read_open_images(str(tmp_path / "boxes.csv"), images=str(tmp_path))
    joined = add_open_images_masks(boxes, MaskFiles(str(tmp_path / "masks.csv"), str(tmp_path)))
    assert joined.boxes["segmentation"].tolist() == [f"{tmp_path}/m.png"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--include_masks"], "need --include_masks, --mask_csv FILE and --mask_dir DIR together"),
        (["--mask_csv", "masks.csv", "--mask_dir", "masks"], "need --include_masks"),
        (
            ["--include_masks", "--mask_csv", "boxes.csv", "--mask_dir", "masks"],
            "boxes.csv is not a CSV with MaskPath",
        ),
        (
            ["--include_masks", "--mask_csv", "masks.csv", "--mask_dir", "nowhere"],
            "nowhere is not a folder",
        ),
        (
            ["--include_masks", "--mask_csv", "other.csv", "--mask_dir", "masks"],
            "none of its 1 masks has the image, label and corners of a box",
        ),
    ],
)
def test_masks_that_cannot_be_used_are_refused(
    open_images: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(open_images)
    other = "0a_m01yrx_b1.png,0a,/m/cat,b1,0.1,0.375,0.25,0.75,0.9,"
    (open_images / "other.csv").write_text(f"{MASK_HEADER}\n{other}\n")
    assert convert(open_images, *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../secret/0a.png", "a/../../secret/0a.png", "/secret/0a.png"])
def test_a_mask_outside_its_folder_is_refused(
    open_images: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_png(open_images / "secret/0a.png", ellipse(HEIGHT, WIDTH))
    row = f"{name},0a,/m/cat,b1,0.125000,0.375000,0.250000,0.750000,0.9,"
    table, directory = open_images / "masks.csv", open_images / "masks"
    table.write_text(f"{MASK_HEADER}\n{row}\n")
    masks = ["--mask_dir", str(directory)]
    truth = [f"{open_images}/truth.csv", f"{open_images}/boxes.csv", str(table)]
    message = f"1 file names of the annotations lead outside --mask_dir {directory}: {name}."
    assert convert(open_images, "--include_masks", "--mask_csv", str(table), *masks) == 2
    assert message in capsys.readouterr().err
    assert gen_mask_truth.main([*truth, *masks, "--image_dir", f"{open_images}/images"]) == 2
    assert message in capsys.readouterr().err
    assert not (open_images / "truth.csv").exists()


def test_a_file_of_another_shape_is_no_mask(tmp_path: Path) -> None:
    write_png(tmp_path / "mask.png", np.full((HEIGHT, WIDTH), 255, np.uint8))
    (tmp_path / "text.png").write_text("no image")
    path = str(tmp_path / "mask.png")
    drawn = mask_png(path, height=3 * HEIGHT, width=3 * WIDTH - 1)
    assert drawn is not None
    assert drawn.area == 3 * HEIGHT * (3 * WIDTH - 1)
    assert mask_png(path, height=WIDTH, width=HEIGHT) is None
    assert mask_png(str(tmp_path / "text.png"), height=HEIGHT, width=WIDTH) is None
    assert mask_png(str(tmp_path / "absent.png"), height=HEIGHT, width=WIDTH) is None


def test_a_mask_that_resampling_would_lose_keeps_the_pixels_in_which_it_lies(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mask.png"
    for column in (30, 31, 32):  # two thirds of a pixel each: the second has no centre of one
        mask = np.zeros((3 * HEIGHT // 2, 3 * WIDTH // 2), np.uint8)
        mask[15:45, column] = 255
        write_png(path, mask)
        expected = np.zeros((HEIGHT, WIDTH), np.uint8)
        expected[10:30, 2 * column // 3] = 1
        drawn = draw_mask(str(path), height=HEIGHT, width=WIDTH)
        np.testing.assert_array_equal(drawn, expected)
    write_png(path, np.zeros((HEIGHT, WIDTH), np.uint8))
    assert draw_mask(str(path), height=HEIGHT, width=WIDTH) is None


def test_folders_with_one_image_each(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_png(tmp_path / f"{name}/images/{name}.png", np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    write_png(tmp_path / "a/masks/1.png", ellipse(HEIGHT, WIDTH))
    write_png(tmp_path / "a/masks/2.png", np.zeros((HEIGHT, WIDTH), np.uint8))
    (tmp_path / "README.txt").write_text("not an image")
    found = read_mask_folders(str(tmp_path))
    assert found.images["file"].tolist() == ["a/images/a.png", "b/images/b.png"]
    box = found.boxes.iloc[0]
    assert box[["y1", "x1", "y2", "x2"]].tolist() == [10, 10, 31, 31]
    assert box["area"] == (ellipse(HEIGHT, WIDTH) > 0).sum()
    assert len(found.boxes) == 1
    (empty,) = found.findings
    assert (empty.file, empty.reason) == ("a/images/a.png", "mask without a pixel inside")
    assert empty.detail == f"{tmp_path}/a/masks/2.png"
    assert [entry.name for entry in found.classes] == ["object"]
    write_png(tmp_path / "a/images/other.png", np.zeros((HEIGHT, WIDTH), np.uint8))
    with pytest.raises(UserError, match=r"a/images has 2 images \(a.png, other.png\)"):
        read_mask_folders(str(tmp_path))
    for file in (tmp_path / "a/images").iterdir():
        file.unlink()
    with pytest.raises(UserError, match=r"a/images has 0 images; with"):
        read_mask_folders(str(tmp_path))


def test_masks_of_16_bits_and_files_of_macos(tmp_path: Path) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.uint16)
    mask[10:20, 30:70] = 1
    write_png(tmp_path / "a/images/a.png", np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    write_png(tmp_path / "a/masks/1.png", mask)
    for folder in ("images", "masks"):
        (tmp_path / f"a/{folder}/.DS_Store").write_bytes(b"Bud1")
        (tmp_path / f"a/{folder}/._1.png").write_bytes(b"Mac OS X")
    found = read_mask_folders(str(tmp_path))
    assert found.images["file"].tolist() == ["a/images/a.png"]
    assert found.boxes["area"].tolist() == [400]
    assert found.boxes[["y1", "x1", "y2", "x2"]].to_numpy().tolist() == [[10, 30, 20, 70]]
    assert found.findings == ()


def test_files_that_are_no_masks_of_their_image_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "set/a"
    write_png(folder / "images/a.png", np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    for number in (1, 2):
        write_png(folder / f"masks/{number}.png", ellipse(HEIGHT, WIDTH))
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
    write_png(folder / "masks/cut.png", noise)
    whole = (folder / "masks/cut.png").read_bytes()
    (folder / "masks/cut.png").write_bytes(whole[: len(whole) * 2 // 3])
    write_png(folder / "masks/half.png", ellipse(HEIGHT // 2, WIDTH // 2))
    (folder / "masks/none.png").touch()
    (folder / "masks/notes.txt").write_text("two nuclei touch")
    found = read_mask_folders(str(tmp_path / "set"))
    assert len(found.boxes) == 2
    reasons = {Path(finding.detail).name: finding.reason for finding in found.findings}
    unreadable = "mask file that cannot be decoded"
    assert reasons == {
        "cut.png": unreadable,
        "half.png": "mask of another size than the others of its image",
        "none.png": unreadable,
        "notes.txt": unreadable,
    }
    for number in (1, 2):
        (folder / f"masks/{number}.png").unlink()
    (folder / "masks/half.png").unlink()
    arguments = ["--format", "mask_folders", "--annotations", f"{tmp_path}/set", "--split", "val"]
    assert make_tfrecords.main([*arguments, "--output", f"{tmp_path}/part"]) == 2
    assert "none of the 3 files in the folders ID/masks can be used" in capsys.readouterr().err


def test_real_nuclei(data_dir: Path, tmp_path: Path) -> None:
    """Every mask of three images comes back as it was, with its extent as box."""
    prefix = "nuclei_dsb2018/stage1_train/"
    with zipfile.ZipFile(data_dir / "nuclei_dsb2018.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith(prefix)]
        ids = sorted({name.split("/")[2] for name in names} - {""})[:3]
        archive.extractall(tmp_path, [n for n in names if n.split("/")[2] in ids])
    folder = tmp_path / prefix
    arguments = ["--format", "mask_folders", "--annotations", str(folder), "--include_masks"]
    arguments += ["--output", f"{tmp_path}/nuclei", "--split", "val", "--workers", "1"]
    assert make_tfrecords.main(arguments) == 0
    records = read_objects(tmp_path / "nuclei/val_nuclei")
    assert [record["source_id"].decode() for record in records] == ids
    for record, name in zip(records, ids, strict=True):
        files = sorted((folder / name / "masks").iterdir())
        expected = np.array([cv2.imread(str(file), 0) for file in files]) > 0
        np.testing.assert_array_equal(record["masks"], expected)
        np.testing.assert_array_equal(record["areas"], expected.sum(axis=(1, 2)))


def test_a_fifo_for_a_mask_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mask.png")
    with pytest.raises(OSError, match="it is a device or FIFO, not a file"):
        read_mask_file(str(tmp_path / "mask.png"))
