"""Weights of Detectron2's and MMDetection's detectors give their detections.

Both libraries ran once, with weights drawn from the names of their tensors: `other_detectors.py`
says how. Their boxes, scores and masks in two drawn images of 128 by 160 pixels are beside this
file, with the names and shapes of all tensors.
"""

import functools
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent
OTHER, FOREIGN = (
    SimpleNamespace(**runpy.run_path(str(FOLDER / f"{name}_detectors.py")))
    for name in ("other", "foreign")
)
ONE_STAGE = ["model.postprocess.max_detections=300"]
TWO_STAGES = [
    f"model.rpn.max_proposals={OTHER.PROPOSALS}",
    f"model.postprocess.max_detections={OTHER.DETECTIONS}",
]


@pytest.mark.parametrize(
    ("library", "kind", "config_name", "overrides", "left_over"),
    [
        (
            "detectron2",
            "retinanet",
            "detectron2_r50_fpn",
            [
                "model.backbone.depth=50",
                "model.postprocess.nms_iou_threshold=1.0",
                "model.postprocess.max_detections=1000",
            ],
            ["pixel_mean", "pixel_std"],
        ),
        (
            "detectron2",
            "mask_rcnn",
            "detectron2-mask_r50_fpn",
            ["model.backbone.depth=50", *TWO_STAGES],
            ["pixel_mean", "pixel_std"],
        ),
        ("mmdetection", "retinanet", "mmdetection_r50_fpn", ONE_STAGE, []),
        ("mmdetection", "atss", "mmdetection-atss_r50_fpn", ONE_STAGE, []),
        ("mmdetection", "mask_rcnn", "mmdetection-mask_r50_fpn", TWO_STAGES, []),
    ],
    ids=lambda value: value if isinstance(value, str) and "_r50_" not in value else "",
)
def test_a_detector_equals_the_record_of_its_library(
    library, kind, config_name, overrides, left_over
):
    detector, recorded, _ = FOREIGN.build_recorded(
        FOLDER / f"{library}_{kind}.npz",
        functools.partial(OTHER.draw_other_state, library, kind),
        config_name,
        overrides,
        left_over=left_over,
    )
    images = OTHER.SHARED.draw_batch()[0]
    found = detector.task.predict(FOREIGN.place(images, (128, 160)))
    FOREIGN.assert_same_detections(found, recorded, {label: label for label in range(5)}, least=5)
