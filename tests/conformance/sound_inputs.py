"""Writes a folder with a small sound file of every kind that commands read: `sound_inputs.py DIR`.

images/ has images, annotations in five formats, predictions and submissions; folders/ images
by class; set/ TFRecords; model/ a model_dir of one step; saved_model/ its SavedModel; weights/
files of several frameworks; experiment.yaml and legacy.yaml configs.
"""

import csv
import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import cv2
import keras
import numpy as np
import pandas as pd

from tpudet.cli import main as tpudet
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.ops.numpy_masks import encode_rle
from tpudet.detection.submission.mask_text import encode_mask

SAMPLES = Path(__file__).parents[1] / "trainkit/weights/samples"
SIDE = 96  # pixels of the drawn images, less than the smallest canvas
# One level, so that tracing takes seconds.
SETTINGS = (
    *("data.canvas_size=[64, 64]", "model.min_level=3", "model.max_level=3"),
    *("train.total_steps=1", "train.batch_size=2", "train.learning_rate.warmup_steps=0"),
    *("evaluation.schedule.every_steps=1", "evaluation.schedule.batch_size=2"),
    "evaluation.schedule.num_images=2",
)
LEGACY = """
train:
  total_steps: 22500
  batch_size: 64
  learning_rate: {init_learning_rate: 0.08, warmup_steps: 500}
eval: {num_steps_per_eval: 1000}
architecture: {min_level: 3, max_level: 7, backbone: resnet, multilevel_features: fpn}
retinanet_parser: {output_size: [640, 640], num_channels: 3}
"""


def write_sound_inputs(folder: Path) -> None:
    """Writes all; the folder must not exist."""
    images = folder / "images"
    _run("make_sample_set", "--output", str(images), "--num_images", "10", "--seed", "1")
    shutil.rmtree(images / "test", ignore_errors=True)
    _write_set(images, folder / "set")
    _run("export_annotations", str(folder / "set"), str(images / "coco.json"), "--split", "val")
    _write_formats(images / "val")
    _write_annotations(images)
    _write_class_folders(images, folder / "folders")
    _write_predictions(images)
    _write_submissions(images)
    _write_weights(folder / "weights")
    _write_model(folder)
    (folder / "legacy.yaml").write_text(LEGACY)


def _run(*words: str) -> None:
    code = tpudet(words)
    if code:
        raise SystemExit(f"{' '.join(words)} ended with {code}")


def _write_set(images: Path, part: Path) -> None:
    for split in ("train", "val"):
        flags = ["--annotations", f"{images}/{split}_boxes.csv", "--images", f"{images}/{split}"]
        flags += ["--classes", f"{images}/classes.csv", "--split", split, "--output", str(part)]
        flags += ["--format", "open_images", "--workers", "1", "--num_shards", "1"]
        _run("make_tfrecords", "--include_unlabeled", *flags)


def _write_formats(folder: Path) -> None:
    """Images of other formats beside the JPEGs, whose extension box CSVs go by."""
    pixels = _read(next(folder.glob("*.jpg")))
    for ending in ("png", "webp", "bmp", "tiff", "jp2", "gif", "avif"):
        _, encoded = cv2.imencode(f".{ending}", cv2.resize(pixels, (SIDE, SIDE)))
        (folder / f"other_{ending}.jpg").write_bytes(encoded.tobytes())


def _read(path: Path) -> np.ndarray:
    pixels = cv2.imread(str(path))
    assert pixels is not None, path
    return pixels


def _write_annotations(images: Path) -> None:
    boxes = pd.read_csv(images / "val_boxes.csv")
    rows = boxes.drop_duplicates("ImageID").set_index("ImageID")
    others = [path.stem for path in (images / "val").glob("other_*")]
    added = pd.DataFrame([{**rows.iloc[0].to_dict(), "ImageID": name} for name in others])
    boxes = pd.concat([boxes, added], ignore_index=True)[list(boxes.columns)]
    boxes.to_csv(images / "val_boxes.csv", index=False)
    files = {path.stem: path for path in sorted((images / "val").iterdir())}
    named = boxes.assign(ImageID=[files[name].name for name in boxes.ImageID])
    named.to_parquet(images / "boxes.parquet")
    names = dict(csv.reader((images / "classes.csv").read_text().splitlines()))
    for folder in ("voc", "yolo/labels/val", "yolo/images/val"):
        (images / folder).mkdir(parents=True)
    for image_id, found in boxes.groupby("ImageID"):
        path = files[str(image_id)]
        height, width = _read(path).shape[:2]
        scale = np.array([width, height, width, height])
        corners = found[["XMin", "YMin", "XMax", "YMax"]].to_numpy() * scale
        labels = [names[label] for label in found.LabelName]
        _write_voc(images / f"voc/{path.stem}.xml", path.name, (width, height), labels, corners)
        shutil.copy(path, images / "yolo/images/val" / path.name)
        lines = []
        for label, (x1, y1, x2, y2) in zip(labels, corners / scale, strict=True):
            number = list(names.values()).index(label)
            lines.append(f"{number} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n")
        (images / f"yolo/labels/val/{path.stem}.txt").write_text("".join(lines))
    listed = "".join(f"  {number}: {name}\n" for number, name in enumerate(names.values()))
    (images / "yolo/data.yaml").write_text(f"path: .\nval: images/val\nnames:\n{listed}")


def _write_voc(
    path: Path, name: str, size: tuple[int, int], labels: list[str], corners: np.ndarray
) -> None:
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = name
    entry = ElementTree.SubElement(root, "size")
    for key, value in zip(("width", "height", "depth"), (*size, 3), strict=True):
        ElementTree.SubElement(entry, key).text = str(value)
    for label, box in zip(labels, corners, strict=True):
        item = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(item, "name").text = label
        bounds = ElementTree.SubElement(item, "bndbox")
        for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ElementTree.SubElement(bounds, key).text = str(value)
    ElementTree.ElementTree(root).write(path)


def _write_class_folders(images: Path, folders: Path) -> None:
    for number, path in enumerate(sorted((images / "val").iterdir())):
        target = folders / ("train", "val")[number // 2 % 2] / ("cat", "dog")[number % 2]
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / path.name)


def _write_predictions(images: Path) -> None:
    ids = [path.stem for path in sorted((images / "val").iterdir())]
    boxes = np.array([[0.1, 0.1, 0.5, 0.5], [0.2, 0.3, 0.9, 0.8]], np.float32)
    found = [
        ImagePredictions(name, np.array([1, 2]), np.array([0.9, 0.4], np.float32), boxes)
        for name in ids
    ]
    text = (images / "classes.csv").read_text()
    metadata = {
        "fingerprint": "f",
        "image_list": {"count": len(ids)},
        "unreadable": {},
        "shard": {"number": 1, "of": 1},
    }
    for ending in ("parquet", "pkl"):
        with (images / f"p.{ending}").open("wb") as file:
            write_predictions(file, file.name, [found], class_list_text=text, metadata=metadata)


def _write_submissions(images: Path) -> None:
    labels = [line.split(",")[0] for line in (images / "classes.csv").read_text().splitlines()]
    ids = [path.stem for path in sorted((images / "val").iterdir())]
    mask = np.zeros((40, 60), bool)
    for number, name in enumerate(("a", "b")):
        mask[10:20, 5 : 30 + number] = True
        text = encode_mask(encode_rle(mask))
        boxes, masks = (
            ["ImageId,PredictionString"],
            ["ImageID,ImageWidth,ImageHeight,PredictionString"],
        )
        for image_id in ids:
            first, last = labels[0], labels[-1]
            boxes.append(f"{image_id},{first} 0.9{number} 0 0 0.5 0.5 {last} 0.4 0.1 0.1 1 1")
            masks.append(f"{image_id},60,40,{first} 0.8{number} {text} {last} 0.5 {text}")
        (images / f"{name}.csv").write_text("\n".join(boxes) + "\n")
        (images / f"masks_{name}.csv").write_text("\n".join(masks) + "\n")
    kinds = [{"LabelName": label} for label in labels[1:]]
    tree = {"LabelName": "/root", "Subcategory": [{"LabelName": labels[0], "Subcategory": kinds}]}
    (images / "hierarchy.json").write_text(json.dumps(tree))


def _write_weights(folder: Path) -> None:
    folder.mkdir()
    for name in ("old_format.pth", "zip_format.pt", "training_state.pt", "weights.safetensors"):
        shutil.copy(SAMPLES / name, folder / name)
    dense = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((2,)), dense])
    model.save_weights(folder / "w.weights.h5")
    model.save(folder / "m.keras")


def _write_model(folder: Path) -> None:
    flags = [f"--set={setting}" for setting in SETTINGS]
    model_dir = ["--model_dir", str(folder / "model")]
    part = f"--set=data.directory={folder / 'set'}"
    _run("train", "--config", "quickstart", *model_dir, *flags, part)
    for path in (folder / "model").glob("events.*"):
        path.unlink()
    _run("export", *model_dir, "--export_root", str(folder / "final"))
    next((folder / "final").iterdir()).rename(folder / "saved_model")
    (folder / "final").rmdir()
    (folder / "experiment.yaml").write_text((folder / "model/config.yaml").read_text())


if __name__ == "__main__":
    write_sound_inputs(Path(sys.argv[1]))
