"""tpudet convert_predictions, export_annotations: formats of other programs, and errors."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tpudet.detection.commands import convert_predictions, export_annotations, make_tfrecords
from tpudet.detection.inference import convert_predictions as convert
from tpudet.detection.inference.predictions import FORMAT
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.ops.numpy_masks import encode_rle
from tpudet.detection.preparation.sources.yolo import read_yolo
from tpudet.detection.preparation.sources.yolo_layout import find_yolo_set
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.row_template import parse_template

# Two images of 64 x 48 pixels: boxes x1 y1 x2 y2 as fractions.
BOXES = {"a": [[0.25, 0.25, 0.75, 0.5], [0.5, 0.5, 1.25, 1.0]], "b": []}


@pytest.fixture
def predictions(tmp_path: Path) -> Callable[..., str]:
    def write(classes: str = "/m/1,cat\n/m/2,dog\n", **more) -> str:
        images = [
            ImagePredictions(
                name,
                np.array([1, 2][: len(boxes)], np.int32),
                np.array([0.9, 0.4][: len(boxes)], np.float32),
                np.array(boxes, np.float32).reshape(-1, 4),
                **more.get(name, {}),
            )
            for name, boxes in BOXES.items()
        ]
        path = tmp_path / "p.parquet"
        with path.open("wb") as file:
            metadata = more.get("metadata", {})
            write_predictions(file, path.name, [images], class_list_text=classes, metadata=metadata)
        return str(path)

    return write


@pytest.fixture
def folder(tmp_path: Path) -> str:
    images = tmp_path / "images"
    images.mkdir()
    for name in BOXES:
        cv2.imwrite(str(images / f"{name}.jpg"), np.zeros((48, 64, 3), np.uint8))
    return str(images)


def test_yolo_files_have_centres_in_fractions(predictions, tmp_path) -> None:
    target = tmp_path / "labels"
    arguments = [predictions(), str(target), "--to", "yolo"]
    assert convert_predictions.main(arguments) == 0
    lines = (target / "a.txt").read_text().splitlines()
    # The second box is cut at the right border: 0.5..1, and its centre moves.
    assert lines == [
        "0 0.500000 0.375000 0.500000 0.250000 0.900000",
        "1 0.750000 0.750000 0.500000 0.500000 0.400000",
    ]
    assert (target / "b.txt").read_text() == ""
    assert (target / "classes.txt").read_text() == "cat\ndog\n"
    assert convert_predictions.main(arguments) == 2
    assert convert_predictions.main([*arguments, "-f", "--min_score", "0.5"]) == 0
    assert len((target / "a.txt").read_text().splitlines()) == 1
    # Class numbers of a YOLO data set stay what they are.
    numbers = predictions("0,cat\n7,dog\n")
    assert convert_predictions.main([numbers, str(target), "--to", "yolo", "-f"]) == 0
    assert [line[0] for line in (target / "a.txt").read_text().splitlines()] == ["0", "7"]
    names = (target / "classes.txt").read_text().splitlines()  # read by line number, from 0
    assert (names[0], names[7], names[1:7]) == ("cat", "dog", [f"unused_{n}" for n in range(1, 7)])
    # A file of a million lines, or two classes of one number, would serve nobody.
    for classes in ("0,cat\n1000000,dog\n", "0,cat\n00,dog\n"):
        assert convert_predictions.main([predictions(classes), *arguments[1:], "-f"]) == 0
        assert (target / "classes.txt").read_text() == "cat\ndog\n"


def test_a_folder_of_annotations_is_not_replaced(predictions, tmp_path, capsys) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")  # drawn by hand
    command = [predictions(), str(labels), "--to", "yolo", "--no_scores", "-f"]
    assert convert_predictions.main(command) == 2
    assert f"{labels} has text files, such as a.txt, but no classes.txt" in capsys.readouterr().err
    assert [path.name for path in labels.iterdir()] == ["a.txt"]


def test_a_shard_of_the_images_is_said(predictions, tmp_path, capsys) -> None:
    for number, of in ((2, 3), (1, 1)):
        path = predictions(metadata={"shard": {"number": number, "of": of}})
        assert convert_predictions.main([path, f"{tmp_path}/{of}.csv", "--to", "csv"]) == 0
        told = capsys.readouterr().out
        assert "2 detections in 2 images" in told
        assert ("; shard 2 of 3 of the images, tpudet join_predicted_parts" in told) == (of == 3)


def test_yolo_files_without_scores_are_annotations(predictions, folder, tmp_path) -> None:
    arguments = [predictions(), str(tmp_path / "labels"), "--to", "yolo", "--no_scores"]
    assert convert_predictions.main(arguments) == 0
    (tmp_path / "data.yaml").write_text("train: images\nnames: [cat, dog]\n")
    found = read_yolo(find_yolo_set(str(tmp_path / "data.yaml"), ["train"]))
    assert found.images["source_id"].tolist() == ["a", "b"]
    assert found.boxes["label"].tolist() == ["0", "1"]
    expected = np.clip(BOXES["a"], 0, 1)
    np.testing.assert_allclose(found.boxes[["x1", "y1", "x2", "y2"]].to_numpy(), expected)


def test_labels_of_an_image_are_not_the_class_names(predictions, tmp_path, capsys) -> None:
    image = ImagePredictions(
        "classes", np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros((0, 4), np.float32)
    )
    path = tmp_path / "p.parquet"
    with path.open("wb") as file:
        write_predictions(file, path.name, [[image]], class_list_text="1,cat\n", metadata={})
    assert convert_predictions.main([str(path), str(tmp_path / "labels"), "--to", "yolo"]) == 2
    assert "the image classes would be classes.txt" in capsys.readouterr().err
    assert not (tmp_path / "labels").exists()


@pytest.mark.parametrize("image_id", ["../escaped", "folder/a", "/nowhere/a", "..", "a\0b", ""])
def test_ids_that_are_no_names_of_files_are_refused(image_id, tmp_path, capsys) -> None:
    image = ImagePredictions(
        image_id, np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros((0, 4), np.float32)
    )
    path = tmp_path / "p.pkl"
    with path.open("wb") as file:
        write_predictions(file, path.name, [[image]], class_list_text="1,cat\n", metadata={})
    target = tmp_path / "deep" / "labels"
    target.parent.mkdir()
    assert convert_predictions.main([str(path), str(target), "--to", "yolo"]) == 2
    message = f"1 image ids cannot be names of files, as labels of YOLO have them: {image_id!a};"
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == [target.parent, path]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--format", "{image},{score:.4f} {x} {y} {w} {h}"],
            "image,score x y w h\na,0.9000 0.25 0.25 0.5 0.25 0.4000 0.5 0.5 0.5 0.5\nb,\n",
        ),
        (
            [
                *("--format", "{image},{score:.2f} {x:.0f} {y:.0f} {w:.0f} {h:.0f}"),
                *("--header", "image_id,PredictionString", "--coordinates", "pixels"),
            ],
            "image_id,PredictionString\na,0.90 16 12 32 12 0.40 32 24 32 24\nb,\n",
        ),
        (
            ["--format", "{name},{image}.jpg,{cx},{y2}", "--min_score", "0.5", "--header", ""],
            "cat,a.jpg,0.5,0.5\n",
        ),
        (
            ["--format", "{label};{class_id}"],
            "label;class_id\n/m/1;1\n/m/2;2\n",
        ),
        (
            ["--format", "{width}x{height},{x1}"],
            "widthxheight,x1\n64x48,0.25 0.5\n64x48,\n",
        ),
    ],
)
def test_rows_of_a_template(predictions, folder, tmp_path, options, text) -> None:
    target = tmp_path / "out.csv"
    needs_sizes = ["--images", folder] if {"pixels", "{width}x{height},{x1}"} & {*options} else []
    command = [predictions(), str(target), "--to", "csv", *needs_sizes, *options]
    assert convert_predictions.main(command) == 0
    assert target.read_text() == text


def test_names_with_commas_are_quoted(predictions, tmp_path) -> None:
    target = tmp_path / "out.csv"
    path = predictions('1,"cat, old"\n2,dog\n')
    assert (
        convert_predictions.main([path, str(target), "--to", "csv", "--format", "{name},{score}"])
        == 0
    )
    assert target.read_text().splitlines()[1] == '"cat, old",0.9'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{image},{confidence}", r"has \{confidence\}; fields are image, width"),
        ("{image},{label.__class__}", r"has \{label.__class__\}"),
        ("{image},{score", "expected '}'"),
        ("{image}", "has no field of a detection"),
        ("", "has no field of a detection"),
        ("{image},{x:d}", "Unknown format code 'd'"),
        ("{score},{}", r"has \{\}"),
        ("{label:{foo}},{score}", r"has \{label:\{foo\}\}, a field in a format"),
    ],
)
def test_templates_that_are_refused(template, message) -> None:
    with pytest.raises(SubmissionError, match=message):
        parse_template(template)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "coco"], "pixels need the sizes of the images"),
        (["--to", "csv", "--coordinates", "pixels"], "pixels need the sizes"),
        (["--to", "yolo", "--format", "{score}"], "are for --to csv"),
        (["--to", "coco", "--images", "x", "--ground_truth", "y"], "give one"),
        (["--to", "coco", "--images", "nowhere"], "no directory nowhere"),
        (["--to", "coco", "--ground_truth", "nowhere"], "--ground_truth nowhere does not exist"),
    ],
)
def test_arguments_that_are_refused(predictions, tmp_path, capsys, options, message) -> None:
    target = tmp_path / "out"
    assert convert_predictions.main([predictions(), str(target), *options]) == 2
    assert message in capsys.readouterr().err
    assert not target.exists()


def test_coco_results_of_images_have_pixels(predictions, folder, tmp_path) -> None:
    target = tmp_path / "results.json"
    mask = encode_rle(np.ones((48, 64), bool))
    path = predictions(a={"masks": [mask, mask]}, b={"masks": []})
    command = [path, str(target), "--to", "coco", "--images", folder]
    assert convert_predictions.main(command) == 0
    first, second = json.loads(target.read_text())
    assert first["bbox"] == [16, 12, 32, 12]
    assert second["bbox"] == [32, 24, 32, 24]
    assert [first["image_id"], first["category_id"], first["score"]] == ["a", 1, 0.9]
    assert first["segmentation"] == mask


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_masks_of_a_pickle_may_have_counts_as_pycocotools_gives_them(
    kind, folder, tmp_path
) -> None:
    mask = encode_rle(np.ones((48, 64), bool))
    counts = kind(mask["counts"].encode())
    image = {"image_id": "a", "labels": [1], "scores": [0.5], "boxes_normalized": [[0, 0, 1, 1]]}
    image["masks"] = [mask | {"counts": counts}]
    contents = {"format": FORMAT, "classes": "1,cat\n", "metadata": {}, "images": [image]}
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(contents, 5))
    target = tmp_path / "results.json"
    command = [str(tmp_path / "p.pkl"), str(target), "--to", "coco", "--images", folder]
    assert convert_predictions.main(command) == 0
    (entry,) = json.loads(target.read_text())
    assert entry["segmentation"] == mask


def test_masks_of_images_that_the_ground_truth_describes_lying_are_refused(
    predictions, tmp_path, capsys
) -> None:
    mask = encode_rle(np.ones((64, 48), bool))
    path = predictions("1,cat\n2,dog\n", a={"masks": [mask, mask]}, b={"masks": []})
    sizes = {"width": 64, "height": 48}
    images = [{"id": n, "file_name": f"{name}.jpg", **sizes} for n, name in enumerate(BOXES)]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps({"images": images, "annotations": [], "categories": categories}))
    command = [path, str(tmp_path / "results.json"), "--to", "coco", "--ground_truth", str(truth)]
    assert convert_predictions.main(command) == 2
    assert "image a was predicted at 48x64 pixels, upright, and" in capsys.readouterr().err
    assert not (tmp_path / "results.json").exists()


def test_a_prepared_set_and_predictions_of_its_boxes_score_one(
    tmp_path, write_ground_truth, predictions, capsys
) -> None:
    """Ids, categories and sizes of both files fit together for pycocotools."""
    part = write_ground_truth()
    truth, results = str(tmp_path / "instances.json"), str(tmp_path / "results.json")
    assert export_annotations.main([part, truth, "--include_masks"]) == 0
    assert "2 images, 2 objects, 2 classes" in capsys.readouterr().out
    content = json.loads(Path(truth).read_text())
    assert [image["id"] for image in content["images"]] == [30, 40]
    assert [image["file_name"] for image in content["images"]] == ["a.jpg", "b.jpg"]
    assert [entry["bbox"] for entry in content["annotations"]] == [
        [16, 12, 32, 12],
        [32, 24, 32, 24],
    ]
    assert content["categories"] == [{"id": 3, "name": "dog"}, {"id": 5, "name": "cat"}]
    command = [predictions(), results, "--to", "coco", "--ground_truth", truth]
    assert convert_predictions.main(command) == 0
    ground_truth = COCO(truth)
    evaluation = COCOeval(ground_truth, ground_truth.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1)
    assert export_annotations.main([part, truth]) == 2
    assert export_annotations.main([part, truth, "-f", "--split", "train"]) == 2
    assert "has no split train; --split is val" in capsys.readouterr().err


def test_ground_truth_of_classes_in_another_order_is_refused(
    tmp_path, write_ground_truth, capsys
) -> None:
    """Its boxes would get the names of other classes."""
    part = Path(write_ground_truth())
    rows = (part / "classes.csv").read_text().splitlines(keepends=True)
    (part / "classes.csv").write_text("".join(reversed(rows)))
    assert export_annotations.main([str(part), str(tmp_path / "instances.json")]) == 2
    assert "class 1 was dog, in classes.csv it is cat" in capsys.readouterr().err


def test_yolo_files_that_another_process_has_written_meanwhile_are_kept(
    predictions, tmp_path, capsys, monkeypatch
) -> None:
    target = tmp_path / "labels"
    real = convert.open_predictions

    def read_while_another_writes(*arguments):
        target.mkdir()
        (target / "a.txt").write_text("of another run")
        (target / "classes.txt").write_text("cat\n")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(convert, "open_predictions", read_while_another_writes)
        command = [predictions(), str(target), "--to", "yolo"]
        assert convert_predictions.main(command) == 2
    assert "labels exists: another process has written it meanwhile" in capsys.readouterr().err
    assert (target / "a.txt").read_text() == "of another run"
    assert convert_predictions.main([*command, "-f"]) == 0
    assert sorted(path.name for path in target.iterdir()) == ["a.txt", "b.txt", "classes.txt"]


@pytest.fixture
def write_ground_truth(folder, tmp_path) -> Callable[..., str]:
    """A prepared set whose boxes are those predicted for image a."""

    def write(image_id: int | str = 30) -> str:
        square = [[16, 12, 48, 12, 48, 24, 16, 24]]
        other = [[32, 24, 64, 24, 64, 48, 32, 48]]
        content = {
            "images": [{"id": image_id, "file_name": "a.jpg"}, {"id": 40, "file_name": "b.jpg"}],
            "annotations": [
                {
                    "image_id": image_id,
                    "category_id": 5,
                    "bbox": [16, 12, 32, 12],
                    "segmentation": square,
                },
                {
                    "image_id": image_id,
                    "category_id": 3,
                    "bbox": [32, 24, 32, 24],
                    "segmentation": other,
                },
            ],
            "categories": [{"id": 5, "name": "cat"}, {"id": 3, "name": "dog"}],
        }
        path = tmp_path / "annotations.json"
        path.write_text(json.dumps(content))
        command = ["--format", "coco", "--annotations", str(path), "--images", folder]
        command += ["--split", "val", "--output", str(tmp_path / "part"), "--workers", "1"]
        assert make_tfrecords.main([*command, "--include_masks"]) == 0
        return str(tmp_path / "part")

    return write


def test_ids_that_no_integer_holds_are_counted_from_one(write_ground_truth, tmp_path) -> None:
    target = tmp_path / "instances.json"
    assert export_annotations.main([write_ground_truth("9" * 5000), str(target)]) == 0
    images = json.loads(target.read_text())["images"]
    assert [(image["id"], image["file_name"]) for image in images] == [(1, "a.jpg"), (2, "b.jpg")]


def test_coco_images_come_out_as_they_went_in(data_dir, tmp_path) -> None:
    source = data_dir / "coco_tiny/annotations/instances_val2017.json"
    part, target = str(tmp_path / "part"), tmp_path / "instances.json"
    command = ["--format", "coco", "--annotations", str(source), "--output", part]
    command += ["--images", str(data_dir / "coco_tiny/val2017"), "--split", "val", "--workers", "1"]
    assert make_tfrecords.main(command) == 0
    assert export_annotations.main([part, str(target)]) == 0

    def rows(path: Path) -> list[tuple]:
        content = json.loads(path.read_text())
        return sorted(
            (a["image_id"], a["category_id"], a["iscrowd"], *np.round(a["bbox"], 1))
            for a in content["annotations"]
        )

    np.testing.assert_allclose(rows(target), rows(source), atol=0.11)
