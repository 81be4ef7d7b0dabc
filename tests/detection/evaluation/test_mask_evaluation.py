"""From records to mask AP: what is cut for training is pasted back for evaluation."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf
from pycocotools import mask as coco_mask

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.data.pipeline import eval_dataset
from tpudet.detection.evaluation import ground_truth
from tpudet.detection.evaluation.coco import coco_metrics
from tpudet.detection.evaluation.drawing import draw_batch
from tpudet.detection.evaluation.ground_truth import GroundTruth, load_ground_truth
from tpudet.detection.evaluation.mask_jobs import paste_job
from tpudet.detection.evaluation.split_detections import SplitDetections
from tpudet.detection.ops.masks import mask_targets
from tpudet.detection.types import Batch, Detections
from tpudet.trainkit.class_list import read_classes
from tpudet.trainkit.records import find_shards

NUM_IMAGES = 8


@pytest.fixture(scope="module")
def coco_part(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The first images of coco_tiny as records with masks, and their JSON."""
    folder = data_dir / "coco_tiny"
    content = json.loads(next((folder / "annotations").glob("*val*.json")).read_text())
    content["images"] = content["images"][:NUM_IMAGES]
    ids = {image["id"] for image in content["images"]}
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] in ids]
    path = tmp_path_factory.mktemp("coco")
    (path / "val.json").write_text(json.dumps(content))
    command = ["--format", "coco", "--annotations", f"{path}/val.json", "--include_masks"]
    command += ["--images", str(folder / "val2017"), "--output", f"{path}/part", "--split", "val"]
    assert make_tfrecords.main([*command, "--workers", "1", "--allow_empty"]) == 0
    return path / "part", content


def load(part: Path) -> tuple[GroundTruth, list[str]]:
    names = [entry.name for entry in read_classes(f"{part}/classes.csv")]
    shards = find_shards(f"{part}/val_part")
    return load_ground_truth(shards, names, with_masks=True), names


@pytest.mark.parametrize("workers", [1, 2])
def test_masks_of_records_are_those_of_the_annotations(
    coco_part: tuple[Path, dict], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, content = coco_part
    monkeypatch.setattr(ground_truth, "NUM_WORKERS", workers)
    truth, _ = load(part)
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    files = {str(image["id"]): image["file_name"] for image in content["images"]}
    assert truth.file_names == tuple(files[name] for name in truth.source_ids)
    expected = []
    for name in truth.source_ids:
        for annotation in content["annotations"]:
            if str(annotation["image_id"]) == name:
                plain = annotation["segmentation"]
                encoded: Any = coco_mask.frPyObjects(plain, *sizes[annotation["image_id"]])
                encoded = coco_mask.merge(encoded) if isinstance(plain, list) else encoded
                expected.append(encoded["counts"].decode())
    assert truth.masks is not None
    assert [mask["counts"] for mask in truth.masks] == expected
    assert truth.is_crowd.any()


def test_records_without_masks_are_refused(tmp_path: Path, coco_part: tuple[Path, dict]) -> None:
    part, content = coco_part
    shards = find_shards(f"{part}/val_part")
    shorn = str(tmp_path / "val_part-00000-of-00001.tfrecord")
    with tf.io.TFRecordWriter(shorn) as writer:
        for text in tf.data.TFRecordDataset(shards).as_numpy_iterator():
            example = tf.train.Example.FromString(text)
            del example.features.feature["image/object/mask"]
            writer.write(example.SerializeToString())
    with pytest.raises(ValueError, match=r"has 0 masks for \d+ objects.*--include_masks"):
        load_ground_truth([shorn], [c["name"] for c in content["categories"]], with_masks=True)


def cut_masks(batch: Batch) -> Detections:
    """The ground truth as detections: its boxes, and its masks as a mask head is taught them."""
    count = batch.classes.shape[1]
    rows = np.tile(np.arange(count), (len(batch.classes), 1))
    masks = np.array(mask_targets(batch.masks, batch.boxes, rows, size=56))
    found = batch.classes * ~batch.is_crowd  # objects come first
    return Detections(
        boxes=batch.boxes,
        scores=np.where(found > 0, 0.9, 0).astype(np.float32),
        classes=found,
        num_detections=(found > 0).sum(axis=1).astype(np.int32),
        masks=masks,
    )


def test_masks_cut_on_the_canvas_match_those_of_the_image(coco_part: tuple[Path, dict]) -> None:
    """Only resolution is lost: canvas pixels are larger than the image's here, and cells too."""
    truth, names = load(coco_part[0])
    assert truth.masks is not None
    collected = SplitDetections(truth, names)
    dataset = eval_dataset(
        shards=find_shards(f"{coco_part[0]}/val_part"),
        canvas_size=(512, 512),
        batch_size=4,
        max_instances=60,
        with_masks=True,
        class_names=names,
    )
    drawn: list[np.ndarray] = []
    overlaps: list[float] = []
    batches: Any = dataset.as_numpy_iterator()
    for batch in batches:
        detections = cut_masks(batch)
        job = collected.add(batch, detections)
        assert job is not None
        collected.set_masks(*paste_job(job, lambda _: None))
        if not drawn:
            drawn = draw_batch(batch, detections, names, truth)
    columns = collected.columns()
    metrics = coco_metrics(truth, columns, names)
    # Objects below a canvas pixel are no longer there, so not all are found.
    assert metrics["AP50"] > 0.95
    assert metrics["mask_AP50"] > 0.95
    assert metrics["mask_AP"] > 0.8
    assert metrics["mask_APl"] > 0.9
    assert columns.masks is not None
    objects = np.flatnonzero(~truth.is_crowd)
    for image in range(NUM_IMAGES):
        own = [truth.masks[row] for row in objects if truth.image_indices[row] == image]
        found = [columns.masks[row] for row in np.flatnonzero(columns.image_indices == image)]
        if own and found:
            matrix: Any = coco_mask.iou(found, own, [0] * len(own))
            overlaps += matrix.max(axis=1).tolist()
    assert np.median(overlaps) > 0.93
    # The left panel, ground truth, is filled where the right one, detections, is.
    assert len(drawn) == 4
    for image in drawn:
        half = image.shape[1] // 2
        assert image[:, :half].std() > 5


def test_a_mask_of_another_size_is_named(coco_part: tuple[Path, dict], tmp_path: Path) -> None:
    shards = find_shards(f"{coco_part[0]}/val_part")
    wrong = str(tmp_path / "val_part-00000-of-00001.tfrecord")
    encoded = cv2.imencode(".png", np.ones((5, 7), np.uint8))[1].tobytes()
    with tf.io.TFRecordWriter(wrong) as writer:
        text = next(iter(tf.data.TFRecordDataset(shards).as_numpy_iterator()))
        example = tf.train.Example.FromString(text)
        masks = example.features.feature["image/object/mask"].bytes_list.value
        masks[:] = [encoded] * len(masks)
        writer.write(example.SerializeToString())
    _, names = load(coco_part[0])
    with pytest.raises(ValueError, match=r"has a mask of \[5, 7\]"):
        load_ground_truth([wrong], names, with_masks=True)
