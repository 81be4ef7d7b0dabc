"""From an experiment file to the parts of a two-stage detector: every number arrives."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest

from tpudet.detection.build_detector import build_task
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.mask_rcnn_task import CASCADE, MaskRCNNTask
from tpudet.detection.modeling.two_stage_postprocess import postprocess_rois
from tpudet.detection.ops.matching import match_argmax_iou
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import parse_tree

CANVAS = (64, 128)
# No number is a default, so a new key fails `test_every_key_is_tried` until it is here. Only
# box_head.iou_threshold is elsewhere: a cascade has its own.
TEXT = """kind: mask_rcnn, include_mask: false, cascade: true, min_level: 3, max_level: 5,
    normalization: inception, padding: mean,
    backbone: {kind: resnet, depth: 18}, neck: {kind: fpn, num_filters: 24},
    batch_norm: {momentum: 0.75, epsilon: 0.25, frozen: true, synchronized: false},
    anchors: {num_scales: 2, aspect_ratios: [1, 4], size: 3, sides: [16, 40], layout: torchvision},
    rpn: {num_convs: 2, num_filters: 12, match_threshold: 0.75, unmatched_threshold: 0.25,
      force_match: false, forced_target: argmax, anchors_per_image: 40, positive_share: 0.25,
      beta: 0.5, max_candidates_in_training: 30, max_candidates: 20, nms_iou_threshold: 0.5,
      max_proposals_in_training: 15, max_proposals: 10, min_score: 0.125, min_side: 1,
      clip_to: image},
    roi_align: {box_size: 6, mask_size: 10, sampling_ratio: 3, aligned: false},
    box_head: {num_convs: 1, num_filters: 14, num_dense: 1, num_units: 32, class_agnostic: true,
      regions_per_image: 24, positive_share: 0.5, beta: 0.25},
    mask_head: {num_convs: 1, num_filters: 10},
    postprocess: {score_threshold: 0.25, nms_iou_threshold: 0.75, max_candidates: 70,
      max_detections: 7}"""


def config_of(text: str) -> ExperimentConfig:
    return decode(ExperimentConfig, parse_tree(f"model: {{{text}}}", "experiment.yaml"))


def built(text: str, **settings: Any) -> MaskRCNNTask:
    """The detector without values for its variables, which would take most of the time."""
    with keras.StatelessScope(initialize_variables=False):
        task = build_task(config_of(text), num_classes=3, canvas_size=CANVAS, **settings)
    assert isinstance(task, MaskRCNNTask)
    return task


def norms(layer: keras.layers.Layer) -> list[BatchNorm]:
    return [part for part in layer._flatten_layers() if isinstance(part, BatchNorm)]


def test_every_key_is_tried() -> None:
    model, default = config_of(TEXT).model, MaskRCNNConfig()
    for name, value in vars(model).items():
        parts: Any = (value, getattr(default, name))
        if dataclasses.is_dataclass(parts[1]) and name not in ("backbone", "neck"):
            for field in dataclasses.fields(parts[1]):
                one, other = (getattr(part, field.name) for part in parts)
                elsewhere = (name, field.name) == ("box_head", "iou_threshold")
                assert elsewhere or one != other, f"{name}.{field.name}"
        elif name != "kind":
            assert parts[0] != parts[1], name


def test_heads_have_the_sizes_of_the_file() -> None:
    network = built(TEXT).model
    rpn: Any = network.rpn
    assert [conv.filters for conv in rpn.convs] == [12, 12]
    assert (rpn.object_predict.filters, rpn.box_predict.filters) == (2 * 2, 4 * 2 * 2)
    assert [head.name for head in network.box_heads] == ["box_head0", "box_head1", "box_head2"]
    for head in network.box_heads:
        assert [conv.filters for conv in head.tower.convs] == [14]
        assert [dense.units for dense in head.dense] == [32]
        assert (head.class_predict.units, head.box_predict.units) == (3 + 1, 4)
        assert head.class_agnostic
    assert network.mask_head is None
    assert (network.box_size, network.mask_size) == (6, 10)
    assert (network.sampling_ratio, network.aligned) == (3, False)
    assert network.roi_levels == range(3, 6)
    assert network.pixel_mean == network.pixel_std == (0.5, 0.5, 0.5)
    for part in (network.neck, *network.box_heads):
        assert {(n.momentum, n.epsilon, n.frozen) for n in norms(part)} == {(0.75, 0.25, True)}


def test_losses_proposals_and_postprocessing_have_the_numbers_of_the_file() -> None:
    task: Any = built(TEXT)
    assert task.anchors.shape == ((8 * 16 + 4 * 8 + 2 * 4) * 4, 4)
    np.testing.assert_allclose(task.anchors[0], [-8, -8, 8, 8])  # a side of 16 pixels
    assert task.match.func is match_argmax_iou
    assert task.match.keywords == {
        "match_threshold": 0.75,
        "unmatched_threshold": 0.25,
        "force_match": False,
        "forced_target": "argmax",
    }
    assert task.draw_anchors.keywords == {"count": 40, "max_positives": 10}
    assert task.rpn_losses.keywords == {"beta": 0.5}
    shared = {
        "anchors_per_level": [8 * 16 * 4, 4 * 8 * 4, 2 * 4 * 4],
        "iou_threshold": 0.5,
        "min_score": 0.125,
        "min_side": 1.0,
    }
    assert task.propose_in_training.keywords == shared | {
        "max_candidates": 30,
        "max_proposals": 15,
    }
    assert (task.clip_to, task.padding) == ("image", "mean")
    assert task.propose.keywords == shared | {"max_candidates": 20, "max_proposals": 10}
    assert task.sample_rois.keywords == {"iou_threshold": 0.5, "count": 24, "max_positives": 12}
    assert task.max_mask_rois == 12
    assert task.stages == CASCADE
    assert task.box_losses.keywords == {"beta": 0.25}
    assert task.postprocess.func is postprocess_rois
    assert task.postprocess.keywords == {
        "score_threshold": 0.25,
        "iou_threshold": 0.75,
        "max_candidates": 70,
        "max_detections": 7,
    }


def test_masks_and_a_single_stage_by_default() -> None:
    task = built("kind: mask_rcnn, backbone: {depth: 18}, box_head: {iou_threshold: 0.25}")
    network: Any = task.model
    assert [(stage.iou_threshold, stage.loss_weight) for stage in task.stages] == [(0.25, 1.0)]
    assert [conv.filters for conv in network.mask_head.tower.convs] == [256] * 4
    assert network.mask_head.mask_predict.filters == 3
    assert norms(network.neck) == norms(network.mask_head) == norms(network.box_heads[0]) == []
    assert task.class_layers == (
        "box_head/class_predict",
        "box_head/box_predict",
        "mask_head/mask_predict",
    )
    paths = {variable.path for variable in network.variables}
    for layer in task.class_layers:
        assert {f"{layer}/kernel", f"{layer}/bias"} <= paths
    # Level 6 is every second pixel of level 5: no convolution makes it.
    assert "neck/conv5/kernel" in paths
    assert "neck/conv6/kernel" not in paths


def test_boxes_shared_by_all_classes_belong_to_no_class_list() -> None:
    layers = built(TEXT).class_layers
    assert layers == tuple(f"box_head{number}/class_predict" for number in range(3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rpn: {match_threshold: 0.25}",
            "unmatched_threshold must be at most match_threshold, got 0.3 and 0.25",
        ),
        ("box_head: {positive_share: 0}", r"positive_share must be in \(0, 1\], got 0.0"),
        (
            "neck: {kind: nas_fpn}, min_level: 3, max_level: 7",
            "batch_norm is null, but neck nas_fpn needs it: set batch_norm, or choose neck fpn",
        ),
        ("neck: {kind: nas_fpn}", "neck nas_fpn has levels 3 to 7, got 2 to 6"),
        (
            "cascade: true, box_head: {iou_threshold: 0.25}",
            "box_head.iou_threshold is 0.25, but the stages of a cascade have 0.5, 0.6 and 0.7",
        ),
        ("head: {num_convs: 2}", "unknown key model.head"),
    ],
)
def test_what_cannot_be_is_said(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(f"kind: mask_rcnn, {text}")
