"""The command: which images it draws, where, and what the page says."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import tensorflow as tf
from pycocotools import mask as coco_mask

from tpudet.detection.commands import draw_predictions, make_tfrecords
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.inspection import image_panels
from tpudet.detection.inspection.image_panels import file_names
from tpudet.detection.ops.numpy_masks import encode_rle
from tpudet.detection.submission.mask_text import encode_mask
from tpudet.trainkit.pages.drawing import class_colour

WHOLE = (0.1, 0.1, 0.5, 0.5)  # x1 y1 x2 y2
FAR = (0.6, 0.6, 0.9, 0.9)
FOUND = {
    "good": [(1, 0.9, *WHOLE)],
    "bad": [(1, 0.9, *FAR), (2, 0.8, *FAR), (2, 0.1, *FAR)],
    "poor": [(1, 0.7, *WHOLE), (2, 0.5, *FAR)],
    "empty": [],
}
TRUTH = [
    ("good", "/m/01", *WHOLE),
    ("bad", "cat", *WHOLE),
    ("poor", "/m/01", *WHOLE),
    ("elsewhere", "/m/02", *WHOLE),
    ("good", "/m/99", *FAR),
]


class Page(HTMLParser):
    """Cards by image id, tags, all attributes that could make a browser load something."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.cards: list[dict[str, str]] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = (folder / "index.html").read_text()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        keys = ("src", "href", "xlink:href", "srcset", "action", "data", "poster")
        self.references += [attributes[key] for key in keys if key in attributes]
        if tag == "article":
            self.cards.append({k.removeprefix("data-"): v for k, v in attributes.items()})
        elif tag == "a":
            self.cards[-1]["file"] = unquote(attributes["href"])

    @property
    def names(self) -> list[str]:
        return [card["name"] for card in self.cards]


@pytest.mark.parametrize("name", ["found.parquet", "found.pkl", "found.csv"])
def test_worst_images_of_every_kind_of_file(
    name: str, write_found, write_truth, write_images, draw, tmp_path, capsys
) -> None:
    found, truth = write_found(FOUND, name), write_truth(*TRUTH)
    images, output = write_images("good", "bad", "poor", "empty"), tmp_path / "out/drawn"
    classes = tmp_path / "classes.csv"
    classes.write_text("/m/01,cat\n/m/02,dog\n")
    arguments = (found, "--images", images, "--output", output, "--groundtruth", truth)
    arguments += ("--classes", classes)
    assert draw(*arguments, "--worst", 5) == 0
    page = Page(output)
    # bad: 1 missed, 0.9 and 0.8 false (0.1 is below --min_score); poor: 0.5; good: nothing.
    assert page.names == ["bad", "poor"]
    assert [card["badness"] for card in page.cards] == ["2.7000", "0.5000"]
    assert [(c["missed"], c["false"]) for c in page.cards] == [("1", "2"), ("0", "1")]
    assert [card["classes"] for card in page.cards] == ["1 2", "2"]
    assert {path.name for path in output.iterdir()} == {"index.html", "bad.png", "poor.png"}
    out = capsys.readouterr().out
    assert "the 2 worst of 3 images" in out
    assert "1 images of " in out
    assert "1 boxes of " in out
    assert "their classes (/m/99)" in out
    assert [path.name for path in output.parent.iterdir()] == ["drawn"]
    assert draw(*arguments) == 2
    assert "-f replaces it" in capsys.readouterr().err
    assert draw(*arguments, "--worst", 1, "-f") == 0
    assert {path.name for path in output.iterdir()} == {"index.html", "bad.png"}


def test_a_prepared_split_is_joined_by_file_name(
    sample_part: str, write_found, draw, tmp_path
) -> None:
    part = Path(sample_part)
    images = part.parents[1] / "val"
    names = sorted(path.stem for path in images.iterdir())
    class_list = (part / "classes.csv").read_text()
    found = write_found({name: [] for name in names}, classes=class_list)
    output = tmp_path / "out"
    assert draw(found, "--images", images, "--output", output, "--groundtruth", part) == 0
    page = Page(output)
    assert set(page.names) <= set(names)
    missed = [int(card["missed"]) for card in page.cards]
    assert missed == sorted(missed, reverse=True)  # nothing was found: most objects first
    assert sum(missed) == int(re.search(r"<b>(\d+)</b><span>missed", page.text)[1])  # type: ignore[index]
    reordered = "\n".join([*class_list.splitlines()[::-1], ""])
    other = write_found({names[0]: []}, "other.parquet", reordered)
    more = ("--groundtruth", part, "--image_ids", names[0], "-f")
    assert draw(other, "--images", images, "--output", output, *more) == 0
    assert Page(output).names == [names[0]]


def test_colours_of_found_false_and_missed_boxes(
    write_found, write_truth, write_images, draw, tmp_path
) -> None:
    found = write_found({"a": [(1, 0.9, *WHOLE), (1, 0.8, *FAR)]})
    truth = write_truth(("a", "cat", *WHOLE), ("a", "dog", 0.6, 0.1, 0.9, 0.4))
    output = tmp_path / "out"
    assert draw(
        found, "--images", write_images("a"), "--output", output, "--groundtruth", truth
    ) == 0  # fmt: skip
    drawn = cv2.imread(str(output / "a.png"), cv2.IMREAD_COLOR_RGB)
    assert drawn is not None
    height, width = 320, 480  # 40x60 pixels, enlarged until labels can be read
    top = drawn.shape[0] - height
    left, right = drawn[top:, :width], drawn[top:, -width:]
    colours = image_panels.COLOURS
    assert tuple(left[round(0.5 * height), round(0.3 * width)]) == colours["found"]
    assert tuple(left[round(0.4 * height), round(0.7 * width)]) == colours["missed"]
    assert tuple(right[round(0.5 * height), round(0.3 * width)]) == colours["found"]
    assert tuple(right[round(0.9 * height), round(0.7 * width)]) == colours["false"]
    assert not (right == np.array(colours["missed"])).all(axis=-1).any()


def test_masks_are_filled(write_images, draw, tmp_path) -> None:
    """The upper half of the image, half of the box, is masked; images are gray 90."""
    mask = np.zeros((40, 60), bool)
    mask[:20] = True
    image = ImagePredictions(
        "a",
        np.array([1], np.int32),
        np.array([0.9], np.float32),
        np.array([[0, 0, 1, 1]], np.float32),
        [encode_rle(mask)],
    )
    found, output = tmp_path / "masks.parquet", tmp_path / "out"
    with found.open("wb") as file:
        write_predictions(file, found.name, [[image]], class_list_text="/m/1,cat\n", metadata={})
    assert draw(found, "--images", write_images("a"), "--output", output) == 0
    png = cv2.imread(str(output / "a.png"), cv2.IMREAD_COLOR_RGB)
    assert png is not None
    drawn = png[-320:]
    expected = 90 + 0.35 * (np.array(class_colour(1)) - 90)
    np.testing.assert_allclose(drawn[120, 240], expected, atol=2)
    np.testing.assert_allclose(drawn[240, 240], 90, atol=2)


def test_masks_of_the_ground_truth_are_drawn_where_a_set_has_them(
    write_found, draw, tmp_path
) -> None:
    """The right half of the object's box is masked; images are gray 90."""
    mask = np.zeros((40, 60), np.uint8)
    mask[:, 30:] = 1
    image = np.full((40, 60, 3), 90, np.uint8)
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images/a.png"), image)
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "iscrowd": 0, "area": 1200}
    rle = coco_mask.encode(np.asfortranarray(mask))  # pyright: ignore[reportArgumentType]
    rle["counts"] = rle["counts"].decode()
    annotation |= {"bbox": [0, 0, 60, 40], "segmentation": rle}
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": 40, "width": 60}],
        "annotations": [annotation],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (tmp_path / "truth.json").write_text(json.dumps(content))
    command = ["--format", "coco", "--annotations", f"{tmp_path}/truth.json", "--include_masks"]
    command += ["--images", f"{tmp_path}/images", "--output", f"{tmp_path}/part", "--workers", "1"]
    assert make_tfrecords.main([*command, "--split", "val"]) == 0
    found = write_found({"a": []}, classes="1,cat\n")
    arguments = (found, "--images", tmp_path / "images", "--output", tmp_path / "out")
    assert draw(*arguments, "--groundtruth", tmp_path / "part") == 0
    png = cv2.imread(str(tmp_path / "out/a.png"), cv2.IMREAD_COLOR_RGB)
    assert png is not None
    drawn = png[-320:, :480]  # enlarged eight times
    missed = np.array(image_panels.COLOURS["missed"])
    np.testing.assert_allclose(drawn[160, 360], 90 + 0.35 * (missed - 90), atol=2)
    np.testing.assert_allclose(drawn[160, 120], 90, atol=2)
    np.testing.assert_allclose(drawn[164, 244], missed, atol=12)  # the outline, enlarged


def test_a_submission_of_masks_is_drawn(write_images, draw, tmp_path) -> None:
    mask = np.zeros((40, 60), bool)
    mask[:20] = True
    text = encode_mask(encode_rle(mask))
    submission = tmp_path / "sub.csv"
    submission.write_text(
        f"ImageID,ImageWidth,ImageHeight,PredictionString\na,60,40,/m/1 0.9 {text}\n"
    )
    (tmp_path / "classes.csv").write_text("/m/1,cat\n")
    arguments = (submission, "--images", write_images("a"), "--output", tmp_path / "out")
    assert draw(*arguments, "--classes", tmp_path / "classes.csv") == 0
    png = cv2.imread(str(tmp_path / "out/a.png"), cv2.IMREAD_COLOR_RGB)
    assert png is not None
    expected = 90 + 0.35 * (np.array(class_colour(1)) - 90)
    np.testing.assert_allclose(png[-320:][80, 240], expected, atol=2)
    np.testing.assert_allclose(png[-320:][240, 240], 90, atol=2)


def test_chosen_images_keep_their_order_and_num_spreads_evenly(
    write_found, write_images, draw, tmp_path
) -> None:
    ids = [f"i{k}" for k in range(8)]
    found, images = write_found({i: [(1, 0.9, *WHOLE)] for i in ids}), write_images(*ids)
    listed = tmp_path / "ids.txt"
    listed.write_text("i5\ni2\n")
    base = (found, "--images", images, "--output", tmp_path / "out", "-f")
    for more, expected in {
        ("--image_ids", "i3,i1"): ["i3", "i1"],
        ("--ids", listed): ["i5", "i2"],
        ("--num", 4): ["i0", "i2", "i4", "i6"],
        (): ids,
    }.items():
        assert draw(*base, *more) == 0
        page = Page(tmp_path / "out")
        assert page.names == expected
        files = {card["file"] for card in page.cards}
        assert files == {path.name for path in (tmp_path / "out").glob("*.png")}


def test_names_from_the_data_are_text_and_nothing_else(
    write_found, write_truth, draw, tmp_path, browse: Callable
) -> None:
    nasty = ["<img src=x onerror='alert(2)'>", 'a"b & c%20d', "猫", "A", "a"]
    folder = tmp_path / "images"
    folder.mkdir()
    png = cv2.imencode(".png", np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8))
    for name in nasty:
        (folder / f"{name}.png").write_bytes(png[1].tobytes())
    classes = "/m/<1>,<script>document.title='taken over'</script>\n/m/2,</style></title>\n"
    rows = [(1, 0.9, *WHOLE), (2, 0.8, *FAR)]
    found = write_found(dict.fromkeys(nasty, rows), "<u>.parquet", classes)
    quoted = ["<img src=x onerror='alert(2)'>", '"a""b & c%20d"', "猫", "A", "a"]
    truth = write_truth(*[(name, "/m/2", 0.1, 0.6, 0.4, 0.9) for name in quoted])
    output = tmp_path / "out"
    arguments = ("--images", folder, "--output", output, "--groundtruth", truth)
    assert draw(found, *arguments) == 0
    page = Page(output)
    assert sorted(page.names) == sorted(nasty)
    assert [page.tags.count(tag) for tag in ("script", "style", "img", "u")] == [1, 1, 5, 0]
    assert page.tags.count("rect") == 15
    files = [reference for reference in page.references if not reference.startswith("data:")]
    assert {unquote(file) for file in files} == {path.name for path in output.glob("*.png")}
    assert len({file.casefold() for file in files}) == 5
    visit = browse(output / "index.html", width=500)
    assert visit.console == ""
    assert visit.data == {"images": 5, "loaded": 5, "overflow": 0}
    assert visit.margin > 220
    assert "<title>The 5 worst of 5 images</title>" in visit.dom


def test_blood_cells_in_the_dark(
    data_dir, write_found, write_truth, draw, tmp_path, browse
) -> None:
    """Ground truth that was moved a little; every fourth object is left out."""
    folder = data_dir / "bccd/BCCD"
    ids = (folder / "ImageSets/Main/val.txt").read_text().split()[:6]
    random = np.random.default_rng(0)
    labels = ["RBC", "WBC", "Platelets"]
    boxes, found = [], {}
    for image_id in ids:
        found[image_id] = []
        for k, item in enumerate(
            ElementTree.parse(folder / f"Annotations/{image_id}.xml").iter("object")
        ):
            corners = [
                float(item.findtext(f"bndbox/{key}") or 0)
                for key in ("xmin", "ymin", "xmax", "ymax")
            ]
            box = np.array(corners) / [640, 480, 640, 480]
            if (box[2:] <= box[:2]).any():
                continue
            name = item.findtext("name")
            boxes.append((image_id, name, *box))
            if k % 4:
                moved = box + random.normal(0, 0.008, 4)
                found[image_id].append((labels.index(str(name)) + 1, 0.9, *moved))
    output = tmp_path / "out"
    classes = "RBC,RBC\nWBC,WBC\nPlatelets,Platelets\n"
    assert draw(
        write_found(found, classes=classes), "--images", folder / "JPEGImages", "--output", output,
        "--groundtruth", write_truth(*boxes), "--num", 6,
    ) == 0  # fmt: skip
    visit = browse(output / "index.html", dark=True)
    assert visit.console == ""  # the page's policy would report any attempt to load something
    assert visit.data == {"images": 6, "loaded": 6, "overflow": 0}
    assert visit.margin < 40
    assert visit.dom.count("<article") == 6
    assert (output / "index.html").stat().st_size < 4_000_000


def test_page_stays_small_whatever_is_in_it(
    write_found, draw, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_panels, "_MAX_MARKS", 50)
    folder = tmp_path / "images"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (600, 900, 3), np.uint8)
    cv2.imwrite(str(folder / "a.jpg"), noise)
    cv2.imwrite(str(folder / "b.jpg"), noise)
    found = write_found({i: [(1, s / 400, *WHOLE) for s in range(200, 300)] for i in "ab"})
    assert draw(found, "--images", folder, "--output", tmp_path / "out") == 0
    page = Page(tmp_path / "out")
    assert page.tags.count("rect") == 50
    assert page.text.count("75 boxes not drawn here") == 2
    assert page.text.count("cat 0.75</title>") >= 2  # the 25 best of each end at 0.6875
    assert page.text.count("cat 0.68</title>") == 0
    assert len(page.text) < 2 * 2_600_000 * 4 / 3
    assert file_names(["a/b", "a b", "..", "A_B"]) == [
        "a_b.png",
        "a_b_2.png",
        "image.png",
        "A_B_3.png",
    ]


def test_skip_bad_leaves_bad_rows_out_and_counts_them(write_images, draw, tmp_path, capsys) -> None:
    found, classes = tmp_path / "found.csv", tmp_path / "classes.csv"
    found.write_text("ImageId,PredictionString\na,/m/01 0.9 0 0 1 1\nb,/m/01 1.9 0 0 1 1\n")
    classes.write_text("/m/01,cat\n")
    output = tmp_path / "out"
    base = (found, "--images", write_images("a", "b"), "--output", output, "--classes", classes)
    assert draw(*base) == 2
    assert draw(*base, "--skip_bad") == 0
    assert "1 bad rows left out" in capsys.readouterr().out
    assert [card["classes"] for card in Page(output).cards] == ["1", ""]


def test_a_bucket_as_output(write_found, write_images, draw) -> None:
    found, images = write_found({i: [(1, 0.9, *WHOLE)] for i in "abc"}), write_images(*"abc")
    output = "ram://draw_predictions/page"
    for count in (3, 2):
        assert draw(found, "--images", images, "--output", output, "-f", "--num", count) == 0
        assert len(tf.io.gfile.listdir(output)) == count + 1
    assert [n.rstrip("/") for n in tf.io.gfile.listdir("ram://draw_predictions")] == ["page"]


def test_help(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        draw_predictions.main(["--help"])
    assert "tpudet draw_predictions" in capsys.readouterr().out
