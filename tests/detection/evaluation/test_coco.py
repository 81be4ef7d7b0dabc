"""COCO metrics against pycocotools, the published figures, and numbers worked out by hand."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tpudet.detection.evaluation.coco import coco_metrics, explain_missing
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.evaluation.mask_jobs import paste_job
from tpudet.detection.evaluation.split_detections import SplitDetections
from tpudet.detection.ops.numpy_masks import decode_rle, encode_rle
from tpudet.detection.types import Batch, Detections, DetectionTable
from tpudet.trainkit.jobs.worker_pool import run_jobs

TWELVE = ["AP", "AP50", "AP75", "APs", "APm", "APl"]
TWELVE += ["ARmax1", "ARmax10", "ARmax100", "ARs", "ARm", "ARl"]
# val2014_fake_eval_res.txt to six digits, computed with pycocotools 2.0.11 from the same files.
PUBLISHED = [0.504581, 0.696973, 0.572982, 0.585626, 0.519400, 0.501398]
PUBLISHED += [0.386813, 0.593680, 0.595353, 0.639811, 0.566421, 0.564291]
PUBLISHED_MASKS = [0.319545, 0.562288, 0.298927, 0.387374, 0.310183, 0.326934]
PUBLISHED_MASKS += [0.268230, 0.415449, 0.416839, 0.469450, 0.376759, 0.381472]


def from_xywh(boxes: list[list[float]]) -> np.ndarray:
    x, y, width, height = np.array(boxes, np.float64).reshape(-1, 4).T
    return np.stack([y, x, y + height, x + width], axis=1)


def columns_of(truth: dict, results: list[dict]) -> tuple[GroundTruth, DetectionTable, list[str]]:
    """COCO JSON -> the columns that the evaluator takes.

    Images are sorted by id, as pycocotools takes them: equal scores are ranked by that order.
    """
    images = sorted(truth["images"], key=lambda image: image["id"])
    image_index = {image["id"]: i for i, image in enumerate(images)}
    class_id = {c["id"]: k for k, c in enumerate(truth["categories"], start=1)}
    annotations = truth["annotations"]
    ground_truth = GroundTruth(
        records=np.arange(len(image_index)),
        sizes=np.array([[image["height"], image["width"]] for image in images]),
        image_indices=np.array([image_index[a["image_id"]] for a in annotations]),
        boxes=from_xywh([a["bbox"] for a in annotations]),
        classes=np.array([class_id[a["category_id"]] for a in annotations]),
        is_crowd=np.array([a["iscrowd"] for a in annotations], bool),
        areas=np.array([a["area"] for a in annotations]),
    )
    detections = DetectionTable(
        image_indices=np.array([image_index[r["image_id"]] for r in results], int),
        boxes=from_xywh([r["bbox"] for r in results]),
        scores=np.array([r["score"] for r in results]),
        classes=np.array([class_id[r["category_id"]] for r in results], int),
    )
    return ground_truth, detections, [c["name"] for c in truth["categories"]]


def with_masks(
    truth: GroundTruth, detections: DetectionTable, truth_json: dict, results: list[dict]
) -> tuple[GroundTruth, DetectionTable]:
    """Adds the masks of COCO JSON, polygons and plain runs encoded by pycocotools."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in truth_json["images"]}
    masks: list[Any] = []
    for annotation in truth_json["annotations"]:
        plain = annotation["segmentation"]
        encoded: Any = coco_mask.frPyObjects(plain, *sizes[annotation["image_id"]])
        masks.append(coco_mask.merge(encoded) if isinstance(plain, list) else encoded)
    found = [result["segmentation"] for result in results]
    return truth._replace(masks=masks), detections._replace(masks=found)


def pycocotools_metrics(truth: dict, results: list[dict], kind: Any = "bbox") -> list[float]:
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = truth
        coco.createIndex()
        loaded: Any = coco.loadRes  # also takes what it would read from a file
        evaluation = COCOeval(coco, loaded(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, 2]  # [thresholds, recalls, classes]
    per_class = [
        column[column > -1].mean() if (column > -1).any() else -1.0
        for column in np.moveaxis(precision, 2, 0)
    ]
    return [*evaluation.stats, *per_class]


@pytest.fixture
def fixture_columns(data_dir: Path) -> tuple[dict, list[dict]]:
    folder = data_dir / "coco_eval_fixture"
    truth = json.loads((folder / "instances_val2014_100.json").read_text())
    results = json.loads((folder / "instances_val2014_fakebbox100_results.json").read_text())
    return truth, results


def test_equals_pycocotools_and_the_published_figures(fixture_columns: tuple) -> None:
    truth, detections, names = columns_of(*fixture_columns)
    metrics = coco_metrics(truth, detections, names)
    assert [metrics[k] for k in TWELVE] == pytest.approx(PUBLISHED, abs=1e-6)
    assert list(metrics) == [*TWELVE, *(f"AP/{name}" for name in names)]
    assert list(metrics.values()) == pytest.approx(pycocotools_metrics(*fixture_columns), abs=1e-6)
    assert sum(a["iscrowd"] for a in fixture_columns[0]["annotations"]) == 9


def test_masks_equal_pycocotools_and_the_published_figures(
    data_dir: Path, fixture_columns: tuple
) -> None:
    truth_json, _ = fixture_columns
    path = data_dir / "coco_eval_fixture/instances_val2014_fakesegm100_results.json"
    results = json.loads(path.read_text())
    boxes = [coco_mask.toBbox(result["segmentation"]).tolist() for result in results]
    boxed = [r | {"bbox": box} for r, box in zip(results, boxes, strict=True)]
    truth, detections, names = columns_of(truth_json, boxed)
    truth, detections = with_masks(truth, detections, truth_json, results)
    metrics = coco_metrics(truth, detections, names)
    assert [metrics[f"mask_{k}"] for k in TWELVE] == pytest.approx(PUBLISHED_MASKS, abs=1e-6)
    keys = [*TWELVE, *(f"AP/{name}" for name in names)]
    assert list(metrics) == [*keys, *(f"mask_{key}" for key in keys)]
    expected = pycocotools_metrics(truth_json, results, "segm")
    assert list(metrics.values())[len(keys) :] == pytest.approx(expected, abs=1e-6)


def test_masks_of_real_images_equal_pycocotools(data_dir: Path) -> None:
    """The objects of coco_tiny, moved by some pixels and with others' masks among them."""
    folder = data_dir / "coco_tiny/annotations"
    truth_json = json.loads(next(folder.glob("*val*.json")).read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in truth_json["images"]}
    random = np.random.default_rng(0)
    results = []
    for number, annotation in enumerate(truth_json["annotations"]):
        height, width = sizes[annotation["image_id"]]
        encoded: Any = coco_mask.frPyObjects(annotation["segmentation"], height, width)
        if isinstance(annotation["segmentation"], list):
            encoded = coco_mask.merge(encoded)
        mask = np.roll(decode_rle(encoded), random.integers(-4, 5, 2), (0, 1))
        if number % 7 == 0:
            mask[:] = False  # a mask without a pixel
        rle = encode_rle(mask)
        result = {"image_id": annotation["image_id"], "category_id": annotation["category_id"]}
        score = float(random.integers(1, 50)) / 50  # many equal ones
        results.append(result | {"segmentation": rle, "score": score})
    assert 0.1 < equal_metrics(truth_json, results)["mask_AP"] < 0.9


def equal_metrics(truth_json: dict, results: list[dict]) -> dict[str, float]:
    """The metrics of boxes around masks and of the masks, each as pycocotools has it."""
    boxed = [r | {"bbox": coco_mask.toBbox(r["segmentation"]).tolist()} for r in results]
    truth, detections, names = columns_of(truth_json, boxed)
    truth, detections = with_masks(truth, detections, truth_json, results)
    metrics = coco_metrics(truth, detections, names)
    values = list(metrics.values())
    half = len(values) // 2
    for kind, found in (("bbox", values[:half]), ("segm", values[half:])):
        # Given both, pycocotools takes the area of the box for that of the mask.
        own = boxed if kind == "bbox" else results
        assert found == pytest.approx(pycocotools_metrics(truth_json, own, kind), abs=1e-6)
    return metrics


def drawn_scene(random: np.random.Generator) -> tuple[dict, list[dict]]:
    """Rhombs of 10 to 150 px and crowds in 16 images of 160 x 200 px, found a little beside them.

    COCO JSON and results; scores are twelfths, so that most are equal to others. The third of the
    classes has crowds alone, the fourth false alarms.
    """
    annotations: list[dict] = []
    results: list[dict] = []
    for number in range(1, 161):
        size = random.choice([12, 20, 45, 80, 150]) * random.uniform(0.8, 1, 2)
        y, x = random.uniform(0, np.array([160, 200]) - size)
        height, width = size
        corners = [x + width / 2, y, x + width, y + height / 2]
        corners += [x + width / 2, y + height, x, y + height / 2]
        (rle,) = coco_mask.frPyObjects([corners], 160, 200)
        category = int(random.choice([4, 9, 9, 17]))
        crowd = category == 17 or number % 8 == 0
        flat = decode_rle(rle).ravel(order="F")
        turns = np.flatnonzero(np.diff(flat)) + 1
        runs = {"size": [160, 200], "counts": np.diff(turns, prepend=0, append=flat.size).tolist()}
        place = {"image_id": int(random.integers(1, 17)), "category_id": category}
        annotations.append(
            place
            | {"id": number, "iscrowd": int(crowd), "area": float(coco_mask.area(rle))}
            | {"bbox": [float(side) for side in (x, y, width, height)]}
            | {"segmentation": runs if crowd else [corners]}
        )
        for _ in range(random.integers(0, 3)):
            moved = np.roll(decode_rle(rle), random.integers(-4, 5, 2), (0, 1))
            other = {"category_id": 21} if number % 20 == 0 else {}
            score = float(random.integers(1, 12)) / 12
            found = {"segmentation": encode_rle(moved), "score": score}
            results.append(place | found | other)
    images = [{"id": number, "height": 160, "width": 200} for number in range(1, 17)]
    categories = [{"id": number, "name": f"class {number}"} for number in (4, 9, 17, 21)]
    return {"images": images, "annotations": annotations, "categories": categories}, results


@pytest.mark.parametrize("seed", range(3))
def test_drawn_scenes_equal_pycocotools(seed: int) -> None:
    metrics = equal_metrics(*drawn_scene(np.random.default_rng(seed)))
    for kind in ("", "mask_"):
        assert all(0 < metrics[f"{kind}{key}"] < 1 for key in TWELVE)
        assert [metrics[f"{kind}AP/class {number}"] for number in (17, 21)] == [-1, -1]


def test_images_without_detections_lower_the_ap(fixture_columns: tuple) -> None:
    truth_json, results = fixture_columns
    kept = {image["id"] for image in truth_json["images"][::2]}
    half = [r for r in results if r["image_id"] in kept]
    metrics = coco_metrics(*columns_of(truth_json, half))
    assert list(metrics.values()) == pytest.approx(pycocotools_metrics(truth_json, half), abs=1e-6)
    assert metrics["AP50"] < 0.5 < PUBLISHED[1]


def truth_of(
    boxes: list, classes: list[int], image_indices: list[int], *, crowds: list[bool] | None = None
) -> GroundTruth:
    """Two images of 200 x 300 px, records 7 and 2**32 + 1."""
    array = np.array(boxes, np.float32).reshape(-1, 4)
    return GroundTruth(
        records=np.array([7, 2**32 + 1]),
        sizes=np.array([[200, 300], [200, 300]], np.float32),
        image_indices=np.array(image_indices, int),
        boxes=array,
        classes=np.array(classes, int),
        is_crowd=np.array(crowds or [False] * len(classes), bool),
        areas=np.prod(array[:, 2:] - array[:, :2], axis=1),
    )


def test_objects_without_a_mask_count_for_boxes_and_are_ignored_for_masks() -> None:
    """The second object's mask was not drawn, and it is missed; two detections lie within it."""
    boxes = [[0, 0, 50, 50], [100, 100, 200, 200]]
    corners = np.array([[110, 110, 140, 140], [150, 150, 180, 180], boxes[0]], float)
    drawn = [np.zeros((200, 300), bool) for _ in range(5)]
    for mask, box in zip(drawn, [*boxes, *corners.tolist()], strict=True):
        y1, x1, y2, x2 = map(int, box)
        mask[y1:y2, x1:x2] = True
    masks = [encode_rle(mask) for mask in drawn]
    truth = truth_of(boxes, [1, 1], [0, 0])._replace(
        masks=masks[:2], lacks_mask=np.array([False, True])
    )
    found = DetectionTable(
        np.zeros(3, int), corners, np.array([0.9, 0.8, 0.7]), np.ones(3, int), masks[2:]
    )
    metrics = coco_metrics(truth, found, ["cat"])
    boxes_alone = coco_metrics(truth._replace(masks=None), found._replace(masks=None), ["cat"])
    assert metrics["AP"] == boxes_alone["AP"] == pytest.approx(51 / 101 / 3)
    assert metrics["mask_AP"] == pytest.approx(1.0)


def batch_of(records: list[int], *, scale: float = 1.0, offset: float = 0.0) -> Batch:
    b = len(records)
    return Batch(
        images=np.zeros((b, 8, 8, 3), np.uint8),
        boxes=np.zeros((b, 1, 4), np.float32),
        classes=np.zeros((b, 1), np.int32),
        is_crowd=np.zeros((b, 1), bool),
        records=np.array(records, np.int64),
        original_sizes=np.array([[200, 300] if r >= 0 else [1, 1] for r in records], np.float32),
        scales=np.full((b, 2), scale, np.float32),
        offsets=np.full((b, 2), offset, np.float32),
    )


def detections_of(boxes: list, scores: list, classes: list, num: list[int]) -> Detections:
    return Detections(
        boxes=np.array(boxes, np.float32),
        scores=np.array(scores, np.float32),
        classes=np.array(classes, np.int32),
        num_detections=np.array(num, np.int32),
    )


TRUTH = truth_of([[10, 20, 110, 220], [0, 0, 50, 50]], [1, 2], [0, 1])


def test_boxes_return_to_the_original_image_and_padding_rows_do_not_count() -> None:
    evaluation = SplitDetections(TRUTH, ["cat", "dog"])
    canvas = [[1, 6, 51, 106], [0, 0, 0, 0]]  # (box + 4) / 0.5 is the cat's box
    junk = [[9, 9, 20, 20], [0, 0, 9, 9]]  # beyond num_detections, or of a filler
    detections = detections_of([canvas, junk], [[0.9, 0.0], [0.8, 0.7]], [[1, 0], [9, 2]], [1, 2])
    evaluation.add(batch_of([7, -1], scale=0.5, offset=4.0), detections)
    evaluation.add(batch_of([2**32 + 1]), detections_of([[[0, 0, 50, 50.0]]], [[0.5]], [[1]], [1]))
    metrics = coco_metrics(TRUTH, evaluation.columns(), ["cat", "dog"])
    # Cats: one found, then one false alarm of lower score: AP 1. Dogs: the only one is missed.
    assert metrics["AP/cat"] == pytest.approx(1.0)
    assert metrics["AP/dog"] == 0.0
    assert metrics["AP"] == pytest.approx(0.5)


@pytest.mark.parametrize("workers", [1, 2])
def test_masks_are_pasted_into_the_original_image(workers: int) -> None:
    """The left half of a box of 28 x 28; the canvas is half as large and moved by 4."""
    evaluation = SplitDetections(TRUTH, ["cat", "dog"])
    canvas = [[6, 16, 20, 30], [0, 0, 0, 0]]  # (box + 4) / 0.5 is 20, 40, 48, 68
    left = np.zeros((2, 2, 28, 28), np.float32)
    left[..., :14] = 1
    detections = detections_of([canvas, canvas], [[0.9, 0]] * 2, [[1, 0]] * 2, [1, 1])
    batch = batch_of([7, -1], scale=0.5, offset=4.0)
    jobs = [evaluation.add(batch, detections._replace(masks=left))]
    other = detections_of([canvas], [[0.9, 0]], [[2, 0]], [0])
    jobs.append(evaluation.add(batch_of([2**32 + 1]), other._replace(masks=left[:1])))
    present = [job for job in jobs if job is not None]
    for number, masks in run_jobs(paste_job, present, workers=workers, progress=lambda _: None):
        evaluation.set_masks(number, masks)
    columns = evaluation.columns()
    assert columns.masks is not None
    assert len(columns.masks) == len(columns.classes) == 1
    expected = np.zeros((200, 300), bool)
    expected[20:48, 40:54] = True
    np.testing.assert_array_equal(decode_rle(columns.masks[0]), expected)


def test_every_image_must_be_seen_exactly_once() -> None:
    evaluation = SplitDetections(TRUTH, ["cat", "dog"])
    nothing = detections_of([[[0, 0, 0, 0]]], [[0]], [[0]], [0])
    evaluation.add(batch_of([7]), nothing)
    with pytest.raises(
        ValueError, match=r"1 of 2 images .* never evaluated \(records 4294967297\)"
    ):
        coco_metrics(TRUTH, evaluation.columns(), ["cat", "dog"])
    with pytest.raises(ValueError, match="records 7 were evaluated twice"):
        evaluation.add(batch_of([7]), nothing)
    with pytest.raises(ValueError, match="records 3 are not in the ground truth of 2 images"):
        evaluation.add(batch_of([3]), nothing)
    evaluation.add(batch_of([2**32 + 1]), nothing)
    assert coco_metrics(TRUTH, evaluation.columns(), ["cat", "dog"])["AP"] == 0.0


def test_what_cannot_be_scored_is_refused() -> None:
    evaluation = SplitDetections(TRUTH, ["cat", "dog"])
    box = [[[0, 0, 5, 5]]]
    with pytest.raises(ValueError, match=r"class ids 3, allowed are 1..2"):
        evaluation.add(batch_of([7]), detections_of(box, [[0.5]], [[3]], [1]))
    evaluation = SplitDetections(TRUTH, ["cat", "dog"])
    with pytest.raises(ValueError, match="not finite"):
        evaluation.add(batch_of([7]), detections_of(box, [[np.nan]], [[1]], [1]))
    evaluation = SplitDetections(TRUTH, ["cat", "dog"])
    turned = batch_of([7])._replace(original_sizes=np.array([[300.0, 200.0]]))
    with pytest.raises(ValueError, match="ground truth says"):
        evaluation.add(turned, detections_of(box, [[0.5]], [[1]], [1]))
    with pytest.raises(ValueError, match=r"\['cat'\] are listed twice"):
        SplitDetections(TRUTH, ["cat", "cat"])
    with pytest.raises(ValueError, match="image indices 2, there are 2 images"):
        coco_metrics(TRUTH._replace(image_indices=np.array([0, 2])), NONE, ["cat", "dog"])


NONE = DetectionTable(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))


def test_minus_one_is_explained_in_words() -> None:
    boxes = [[0, 0, 20, 20], [0, 0, 100, 100], [5, 5, 25, 25]]
    truth = truth_of(boxes, [1, 1, 3], [0, 1, 1], crowds=[False, False, True])
    names = ["cat", "dog", "sheep"]
    assert explain_missing(coco_metrics(truth, NONE, names), truth) == [
        "APm and ARm are -1: no object between 32x32 and 96x96 px",
        "AP/sheep is -1: only crowd regions of class sheep in this split",
        "AP/dog is -1: no ground truth of class dog in this split",
    ]
    empty = truth_of([], [], [])
    metrics = coco_metrics(empty, NONE, names)
    assert set(metrics.values()) == {-1.0}
    assert explain_missing(metrics, empty) == [
        "every metric is -1: no ground truth object in this split"
    ]
    complete = truth_of([*boxes[:2], [0, 0, 50, 50]], [1, 2, 3], [0, 1, 1])
    assert explain_missing(coco_metrics(complete, NONE, names), complete) == []
    many = {f"AP/class {k}": -1.0 for k in range(500)} | dict.fromkeys(
        ("AP", "APs", "APm", "APl"), 0.5
    )
    (line,) = explain_missing(many, complete)
    assert line.startswith("AP is -1 for 500 classes")
    assert line.endswith("class 9 and 490 more")
