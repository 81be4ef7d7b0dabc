"""Test-time augmentation: views are right, boxes come back to their place, views are merged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.commands.predict import main
from tpudet.detection.inference import views
from tpudet.detection.inference.predictions_file import read_predictions
from tpudet.detection.inference.saved_detector import (
    ImageOutput,
    load_detector,
    read_saved_detector,
)
from tpudet.detection.inference.view_settings import ViewSettings, parse_views
from tpudet.detection.inference.views import (
    View,
    canvas_placer,
    crop_positions,
    load_view_detector,
    make_views,
    merge_views,
    restore_boxes,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.canvas import decode_to_canvas
from tpudet.trainkit.saved_model import SavedModel

HEIGHT, WIDTH = 64, 96
BLACK = (0, 0, 0)
# No two boxes overlap more than wholly, so nothing is merged.
APART = ViewSettings(iou=1.0)


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()


def test_the_view_at_scale_1_is_what_the_saved_model_sees(jpegs: dict[str, bytes]) -> None:
    place = canvas_placer(HEIGHT, WIDTH, BLACK)
    for encoded in jpegs.values():
        expected = decode_to_canvas(tf.constant(encoded), HEIGHT, WIDTH)
        (view,) = make_views(encoded, place, ViewSettings())
        np.testing.assert_array_equal(view.canvas, expected.image)
        np.testing.assert_array_equal(view.scale, expected.scale)


def test_the_network_sees_its_own_padding_in_every_view(
    saved_model: Path, jpegs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def detect(canvases: np.ndarray) -> list[ImageOutput]:
        seen.extend(canvases)
        return [ImageOutput(np.zeros(0, int), np.zeros(0), np.zeros((0, 4)))] * len(canvases)

    monkeypatch.setattr(views, "load_canvas_detector", lambda _: detect)
    saved = read_saved_detector(str(saved_model))
    saved = saved._replace(metadata={**saved.metadata, "padding_rgb": [124, 116, 104]})
    settings = ViewSettings(scales=(0.5,))
    load_view_detector(saved, settings, 2)([jpegs["tall"]])
    black = [*make_views(jpegs["tall"], canvas_placer(HEIGHT, WIDTH, BLACK), settings)]
    for canvas, view in zip(seen, black, strict=True):
        rows, columns = map(int, view.extent)
        np.testing.assert_array_equal(canvas[:rows, :columns], view.canvas[:rows, :columns])
        beyond = np.concatenate([canvas[rows:].reshape(-1, 3), canvas[:, columns:].reshape(-1, 3)])
        assert (beyond == [124, 116, 104]).all()
        assert len(beyond) > 1000
    saved = saved._replace(metadata={**saved.metadata, "padding_rgb": [124, 116]})
    with pytest.raises(UserError, match=r"padding_rgb is \[124, 116\]; it must be three integers"):
        load_view_detector(saved, settings, 2)


def test_without_views_to_add_the_detections_are_those_of_the_saved_model(
    saved_model: Path, jpegs: dict[str, bytes]
) -> None:
    saved = read_saved_detector(str(saved_model))
    encoded = [*jpegs.values()]
    plain = load_detector(saved)(encoded)
    for batch_size in (1, 3, 16):  # canvases a call
        found = load_view_detector(saved, APART, batch_size)(encoded)
        for (labels, scores, boxes, _), (labels_2, scores_2, boxes_2, _) in zip(
            found, plain, strict=True
        ):
            assert labels.tolist() == labels_2.tolist()
            np.testing.assert_allclose(scores, scores_2, atol=1e-5)
            np.testing.assert_allclose(boxes, boxes_2, atol=1e-5)


def test_views_are_of_models_that_see_images_as_large_as_the_canvas_allows(
    saved_model: Path,
) -> None:
    saved = read_saved_detector(str(saved_model))
    saved = saved._replace(metadata={**saved.metadata, "resize": "stretch"})
    with pytest.raises(UserError, match="data.resize stretch.*Predict without --tta"):
        load_view_detector(saved, ViewSettings(flip=True), 8)


def test_a_class_agnostic_model_must_say_its_threshold(saved_model: Path) -> None:
    saved = read_saved_detector(str(saved_model))
    facts = {k: v for k, v in saved.metadata.items() if k != "nms_iou_threshold"}
    saved = saved._replace(metadata={**facts, "class_agnostic": True})
    with pytest.raises(UserError, match="nms_iou_threshold is None; it must be a number"):
        load_view_detector(saved, ViewSettings(flip=True), 8)


def test_a_mirrored_image_has_mirrored_detections(
    saved_model: Path, photos: dict[str, np.ndarray]
) -> None:
    """Both images have the same two views, so with `flip` this holds for any detector."""
    saved = read_saved_detector(str(saved_model))
    image = photos["square"]  # as high as the canvas: not resized
    pair = [png(image), png(image[:, ::-1])]
    plain = load_detector(saved)(pair)
    assert plain[0][0].shape != plain[1][0].shape or not np.allclose(plain[0][1], plain[1][1])
    (labels, scores, boxes, _), (labels_2, scores_2, mirrored, _) = load_view_detector(
        saved, ViewSettings(flip=True), 8
    )(pair)
    assert len(labels) >= 2
    assert sorted(labels) == sorted(labels_2)
    np.testing.assert_allclose(scores, scores_2, atol=1e-5)
    unmirrored = mirrored[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [1, 0, 1, 0]
    np.testing.assert_allclose(boxes, unmirrored, atol=1e-4)


def test_crops_cover_an_image_with_a_quarter_of_overlap() -> None:
    canvas = (100, 100)
    assert crop_positions((100, 200), canvas, 1.0) == [(0, 0)]  # 50x100 on the canvas
    assert crop_positions((100, 200), canvas, 0.5) == [(0, 0)]
    # 75x150: 50 beyond the canvas, and a second crop adds up to 75.
    assert crop_positions((100, 200), canvas, 1.5) == [(0, 0), (0, pytest.approx(1))]
    # 200x400 pixels: 3 crops of 100, at 0 50 100, by 5, at 0 75 150 225 300.
    positions = crop_positions((100, 200), canvas, 4.0)
    assert len(positions) == 3 * 5
    assert positions[6] == (0.5, 0.25)
    assert all(0 <= side < 1 for position in positions for side in position)


def test_boxes_come_back_to_their_place(jpegs: dict[str, bytes]) -> None:
    """Inverse law: a box of the image, taken to each view that shows it whole, and back."""
    place = canvas_placer(HEIGHT, WIDTH, BLACK)
    rng = np.random.default_rng(0)
    starts = rng.uniform(0.05, 0.8, (50, 2))
    boxes = np.concatenate([starts, starts + rng.uniform(0.02, 0.1, (50, 2))], axis=1)
    for encoded in jpegs.values():
        seen = np.zeros(50, int)
        views = [*make_views(encoded, place, ViewSettings(flip=True, scales=(0.5, 2.0)))]
        assert len(views) >= 6
        for view in views:
            sides = np.array([view.canvas.shape[1], view.canvas.shape[0]])
            corners = boxes.reshape(-1, 2, 2)
            if view.is_flipped:
                corners = np.stack([1 - corners[:, ::-1, 0], corners[..., 1]], axis=-1)
            pixels = corners * view.size[::-1] * view.scale[::-1] - view.offset[::-1]
            found, is_whole = restore_boxes((pixels / sides).reshape(-1, 4), view)
            inside = (pixels > 2).all(axis=(1, 2)) & (pixels < view.extent[::-1] - 2).all(
                axis=(1, 2)
            )
            assert is_whole[inside].all()
            np.testing.assert_allclose(found[inside], boxes[inside], atol=1e-6)
            seen += inside
        assert (seen >= 4).all()  # scales 1 and 1/2, mirrored and not


@pytest.mark.parametrize("size", [(1068, 1600), (1600, 1068), (683, 1024), (427, 640), (640, 641)])
@pytest.mark.parametrize("side", [512, 640])
def test_an_object_at_a_border_of_the_image_is_whole_in_a_crop(
    size: tuple[int, int], side: int
) -> None:
    """Rounding cuts up to two pixels off the last crop, which is not a border within the image."""
    encoded = cv2.imencode(".jpg", np.zeros((*size, 3), np.uint8))[1].tobytes()
    place = canvas_placer(side, side, BLACK)
    near, far = 0.0, 1.0
    boxes = np.array(
        [
            [[near, 0.45], [0.1, 0.55]],  # y x of two corners: at the top
            [[0.9, 0.45], [far, 0.55]],
            [[0.45, near], [0.55, 0.1]],
            [[0.45, 0.9], [0.55, far]],
        ]
    )
    for flip in (False, True):
        seen = np.zeros(4, int)
        views = list(make_views(encoded, place, ViewSettings(flip=True, scales=(1.5,))))[2:]
        for view in views:
            if view.is_flipped != flip:
                continue
            corners = boxes.copy()
            if flip:
                corners[..., 1] = 1 - corners[:, ::-1, 1]
            pixels = corners * view.size * view.scale - view.offset
            found = np.clip(pixels, 0, view.extent)  # as the model sees them
            is_there = (np.abs(found - pixels) < 3).all(axis=(1, 2))
            fractions = (found / side)[..., ::-1].reshape(-1, 4)
            seen += restore_boxes(fractions, view)[1] & is_there
        assert (seen >= 1).all()


def test_boxes_at_a_border_that_cuts_the_image_are_left_out() -> None:
    # A image of 100x300 at scale 1 on a canvas of 100x100; this crop shows columns 100 to 200.
    view = View(
        canvas=np.zeros((100, 100, 3), np.uint8),
        size=np.array([100.0, 300.0]),
        scale=np.ones(2),
        offset=np.array([0.0, 100.0]),
        extent=np.array([100.0, 100.0]),
        is_flipped=False,
    )
    boxes = np.array(
        [
            [0.1, 0.0, 0.5, 1.0],  # from the top to the bottom of the image: whole
            [0.0, 0.2, 0.5, 0.5],  # continues to the left
            [0.5, 0.2, 0.99, 0.5],  # continues to the right
            [0.5, 0.5, 0.5, 0.9],  # without width
        ]
    )
    found, is_whole = restore_boxes(boxes, view)
    assert is_whole.tolist() == [True, False, False, False]
    np.testing.assert_allclose(found[0], [110 / 300, 0, 150 / 300, 1])
    last = view._replace(offset=np.array([0.0, 200.0]))  # the image ends with this crop
    assert restore_boxes(boxes, last)[1].tolist() == [True, False, True, False]
    _, is_whole = restore_boxes(boxes, last._replace(is_flipped=True))
    assert is_whole.tolist() == [True, False, True, False]


def bright_blobs(canvases: np.ndarray) -> list[ImageOutput]:
    """An exact detector: the class is told by the colour, the score is 1."""
    outputs = []
    for canvas in canvases:
        rows = []
        for label, channel in ((1, 0), (2, 1)):
            mask = (canvas[..., channel] > 127).astype(np.uint8)
            _, _, areas, _ = cv2.connectedComponentsWithStats(mask)
            rows += [(label, x, y, x + w, y + h) for x, y, w, h, _ in areas[1:]]
        table = np.array(rows, np.float32).reshape(-1, 5)
        sides = [canvas.shape[1], canvas.shape[0]] * 2
        labels = table[:, 0].astype(np.int32)
        outputs.append(ImageOutput(labels, np.ones(len(rows)), table[:, 1:] / sides))
    return outputs


@pytest.mark.parametrize("method", ["nmw", "wbf", "hard"])
def test_every_object_is_found_once_and_where_it_is(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.zeros((256, 384, 3), np.uint8)
    truth = {1: [[16, 16, 80, 80], [300, 180, 380, 250]], 2: [[100, 60, 260, 220]]}
    for label, boxes in truth.items():
        for x1, y1, x2, y2 in boxes:
            image[y1:y2, x1:x2, label - 1] = 255
    monkeypatch.setattr(views, "load_canvas_detector", lambda saved: bright_blobs)
    saved = SavedModel("", "", {"canvas_size": [HEIGHT, WIDTH]}, "")
    augmentation = ViewSettings(flip=True, scales=(0.75, 1.5, 3.0), method=method)
    ((labels, scores, found, _),) = load_view_detector(saved, augmentation, 4)([png(image)])
    assert sorted(labels) == [1, 1, 2]
    sides = [384, 256, 384, 256]
    for label, boxes in truth.items():
        mine = found[labels == label]
        for box in boxes:
            errors = np.abs(mine * sides - box).max(axis=1)
            assert errors.min() < 4.0  # a pixel of the canvas stands for 4 of the image
    if method != "wbf":
        assert scores.tolist() == [1, 1, 1]


def test_merging_by_hand() -> None:
    """Box 1 is seen by both views, box 2 by one; class 2 overlaps but is another class."""
    box, near, far = [0, 0, 0.4, 0.4], [0, 0, 0.4, 0.5], [0.6, 0.6, 0.9, 0.9]
    one = ImageOutput(np.array([1, 2]), np.array([0.9, 0.3]), np.array([box, box]))
    two = ImageOutput(np.array([1, 1]), np.array([0.3, 0.8]), np.array([near, far]))

    def merged(most: int | None = None, **options: Any) -> tuple:
        return merge_views([one, two], ViewSettings(flip=True, iou=0.5, **options), most)[:3]

    labels, scores, boxes = merged(method="wbf")
    assert labels.tolist() == [1, 1, 2]
    np.testing.assert_allclose(scores, [(0.9 + 0.3) / 2, 0.8 / 2, 0.3 / 2], atol=1e-6)
    np.testing.assert_allclose(boxes[0], [0, 0, 0.4, (0.9 * 0.4 + 0.3 * 0.5) / 1.2], atol=1e-6)
    labels, scores, boxes = merged(method="hard")
    np.testing.assert_allclose(scores, [0.9, 0.8, 0.3])
    np.testing.assert_allclose(boxes, [box, far, box])
    labels, scores, boxes = merged(method="nmw", most=2)
    np.testing.assert_allclose(scores, [0.9, 0.8])
    share = 0.3 * 0.8  # score times overlap with the best box
    np.testing.assert_allclose(boxes[0][3], (0.9 * 0.4 + share * 0.5) / (0.9 + share), atol=1e-6)
    nothing = ImageOutput(
        np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros((0, 4), np.float32)
    )
    assert [len(column) for column in merge_views([nothing, nothing], APART, 5)[:3]] == [0, 0, 0]


def test_of_a_class_agnostic_model_an_object_keeps_its_best_class() -> None:
    """Overlaps with A: B 7/9, C 4/10, D 4/8. That of B with C is 5/9, but B is gone by then."""
    a, b, c, d = [0, 0, 0.8, 1], [0.1, 0, 0.9, 1], [0.4, 0, 1, 1], [0, 0, 0.4, 1]
    one = ImageOutput(np.array([1, 2]), np.array([0.9, 0.3]), np.array([a, d]))
    two = ImageOutput(np.array([2, 3]), np.array([0.8, 0.7]), np.array([b, c]))

    def merged(agnostic_iou: float | None, most: int | None = None) -> list[tuple[int, float]]:
        settings = ViewSettings(flip=True, iou=0.55)
        labels, scores, *_ = merge_views([one, two], settings, most, agnostic_iou)
        scores = [round(score, 4) for score in scores.tolist()]
        return [*zip(labels.tolist(), scores, strict=True)]

    assert merged(None) == [(1, 0.9), (2, 0.8), (3, 0.7), (2, 0.3)]
    assert merged(0.5) == [(1, 0.9), (3, 0.7), (2, 0.3)]
    assert merged(0.45) == [(1, 0.9), (3, 0.7)]
    assert merged(0.35) == [(1, 0.9)]
    assert merged(0.8) == merged(None)
    assert merged(0.5, most=2) == [(1, 0.9), (3, 0.7)]  # what is dropped takes no place


@pytest.mark.parametrize("metadata", [{}, {"class_agnostic": False}, {"class_agnostic": True}])
def test_classes_suppress_each_other_where_the_model_says_so(
    metadata: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each view calls one object by another class; SavedModels of before say nothing."""
    labels = iter([1, 2])

    def detect(canvases: np.ndarray) -> list[ImageOutput]:
        box = np.array([[0.25, 0.25, 0.75, 0.75]])
        return [ImageOutput(np.array([next(labels)]), np.ones(1), box) for _ in canvases]

    monkeypatch.setattr(views, "load_canvas_detector", lambda saved: detect)
    facts = {"canvas_size": [HEIGHT, WIDTH], "nms_iou_threshold": 0.5, **metadata}
    saved = SavedModel("", "", facts, "")
    image = png(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    (found,) = load_view_detector(saved, ViewSettings(flip=True), 2)([image])
    assert found.labels.tolist() == ([1] if metadata.get("class_agnostic") else [1, 2])


def test_arguments() -> None:
    def parse(
        kinds: str | None, *scales: float, method: str | None = None, iou: float | None = None
    ) -> ViewSettings | None:
        return parse_views(kinds, scales=scales or None, method=method, iou=iou)

    assert parse(None) is None
    assert parse("flip") == ViewSettings(flip=True, scales=(), method="nmw", iou=0.55)
    assert parse("scales") == ViewSettings(scales=(0.75, 1.5))
    assert parse("scales", 2, 1, 0.5) == ViewSettings(scales=(0.5, 2.0))
    assert parse("flip,scales", 2, method="wbf") == ViewSettings(True, (2.0,), "wbf")
    with pytest.raises(ValueError, match="'flop' is not flip or scales; scale 0.1 must be in"):
        parse("flop", 0.1)
    with pytest.raises(ValueError, match=r"overlap 1.5 must be in 0..1"):
        parse("flip", iou=1.5)
    for kinds in (None, "flip"):
        with pytest.raises(ValueError, match="--tta_scales is for --tta scales or"):
            parse(kinds, 0.5, 2)
    with pytest.raises(ValueError, match="--tta_scales 1 adds no view"):
        parse("scales", 1)
    for method, iou in (("wbf", None), (None, 0.5)):
        with pytest.raises(ValueError, match="merge the views of --tta, which is not given"):
            parse(None, method=method, iou=iou)


def test_the_command_predicts_with_views(
    saved_model: Path, jpegs: dict[str, bytes], tmp_path: Path, capsys: Callable
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name, encoded in jpegs.items():
        (folder / f"{name}.jpg").write_bytes(encoded)
    (folder / "cut.jpg").write_bytes(jpegs["wide"][:700])
    out = tmp_path / "p.parquet"
    command = [str(out), str(saved_model), "--images", str(folder), "--tta", "flip,scales"]
    assert main([*command, "--tta_method", "wbf", "--batch_size", "3"]) == 0
    with out.open("rb") as file:
        found = read_predictions(file, out.name)
    assert [image.image_id for image in found.images] == sorted(jpegs)
    assert all(0 < len(image.labels) <= 7 for image in found.images)  # the model's own limit
    assert all((np.diff(image.scores) <= 0).all() for image in found.images)
    assert [*found.metadata["unreadable"]] == ["cut.jpg"]
    assert found.metadata["augmentation"] == {
        "flip": True,
        "scales": [0.75, 1.5],
        "method": "wbf",
        "iou": 0.55,
    }
