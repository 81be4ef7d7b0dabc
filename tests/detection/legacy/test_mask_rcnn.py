"""Mask R-CNN files of the predecessor: their defaults, what they set, and what is refused."""

import pytest
import yaml

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.legacy.import_file import convert_text
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import parse_tree


def converted(old_text: str) -> tuple[ExperimentConfig, MaskRCNNConfig, str]:
    """The decoded experiment, its model, and the remarks as one text."""
    text, remarks = convert_text(old_text, "old.yaml")
    config = decode(ExperimentConfig, parse_tree(text, "new.yaml"))
    assert isinstance(config.model, MaskRCNNConfig)
    return config, config.model, "\n".join(remarks)


def test_the_defaults_are_those_of_the_paper_at_1024_pixels() -> None:
    """`maskrcnn_config.py` differs from ours in what it trains on and keeps, and in its norms."""
    config, model, remarks = converted("type: mask_rcnn\n")
    assert not model.include_mask
    assert (model.min_level, model.max_level, model.anchors.size) == (2, 6, 8.0)
    assert (model.rpn.match_threshold, model.rpn.unmatched_threshold) == (0.7, 0.3)
    assert (model.rpn.max_candidates_in_training, model.rpn.max_candidates) == (2000, 1000)
    assert model.rpn.beta == pytest.approx(1 / 9)
    assert model.roi_align.sampling_ratio == 1
    assert not model.roi_align.aligned  # bins are sampled half a cell off, as in tensorflow/tpu
    assert (model.box_head.num_dense, model.box_head.num_units, model.box_head.beta) == (2, 1024, 1)
    assert model.postprocess.score_threshold == 0.0
    assert model.batch_norm is not None
    assert model.batch_norm.momentum == 0.997
    assert config.data.canvas_size == (1024, 1024)
    assert config.train.freeze == ("stem", "stage1")
    for words in ("this is a Faster R-CNN", "here they are the smooth L1 loss"):
        assert words in remarks
    assert "froze convolutions with the scale and shift of their BatchNorm" in remarks
    for words in ("640x640", "train_on_dataset.sh", "also acted on biases"):
        assert words not in remarks  # those were of tpu_models and of 2019


SET = """
architecture: {include_mask: true, backbone: resnet}
resnet: {resnet_depth: 101, batch_norm: {batch_norm_trainable: false}}
maskrcnn_parser: {include_mask: true, output_size: [832, 1344], aug_scale_min: 0.8,
  aug_scale_max: 1.25, rpn_batch_size_per_im: 128, max_num_instances: 60, mask_crop_size: 56}
rpn_score_loss: {rpn_batch_size_per_im: 128}
rpn_head: {use_batch_norm: false}
mrcnn_head: {batch_norm: {batch_norm_momentum: 0.9}}
frcnn_head: {fast_rcnn_mlp_head_dim: 512}
roi_proposal: {test_rpn_post_nms_top_k: 300}
roi_sampling: {num_samples_per_image: 256, fg_iou_thresh: 0.6, bg_iou_thresh_hi: 0.6}
postprocess: {max_total_size: 50}
train: {learning_rate: {type: cosine, total_steps: 22500}}
"""


def test_what_a_file_sets_is_kept_without_a_type_too() -> None:
    config, model, remarks = converted(SET)
    assert model.include_mask
    assert model.backbone.kind == "resnet"
    assert model.backbone.depth == 101
    assert model.backbone.batch_norm.frozen
    assert (model.rpn.anchors_per_image, model.rpn.max_proposals) == (128, 300)
    assert (model.box_head.regions_per_image, model.box_head.iou_threshold) == (256, 0.6)
    assert model.box_head.num_units == 512
    assert model.postprocess.max_detections == 50
    assert config.data.canvas_size == (832, 1344)
    assert (config.data.scale_range, config.data.max_instances) == ((0.8, 1.25), 60)
    assert config.train.learning_rate.kind == "cosine"
    for words in (
        "maskrcnn_parser.mask_crop_size has no effect here",
        "rpn_head.use_batch_norm is false",
        "batch_norm of mrcnn_head differs from that of fpn",
        # 256 x 0.25, where the default of mask_sampling says 128.
        "on all objects among the regions drawn, at most 64",
    ):
        assert words in remarks


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("architecture", {"include_mask": True}, "maskrcnn_parser.include_mask False"),
        ("roi_sampling", {"bg_iou_thresh_lo": 0.1}, "bg_iou_thresh_lo 0 and bg_iou_thresh_hi"),
        ("roi_sampling", {"mix_gt_boxes": False}, "mix_gt_boxes true is what there is here"),
        ("roi_proposal", {"rpn_nms_threshold": 0.5}, "rpn_nms_threshold and test_rpn_nms"),
        ("rpn_head", {"anchors_per_location": 9}, "rpn_head.anchors_per_location must be"),
        ("rpn_head", {"min_level": 3}, "rpn_head.min_level must be anchor.min_level, 2, got 3"),
        (
            "mrcnn_head",
            {"mask_target_size": 56},
            "mrcnn_head.mask_target_size must be one of 28, got 56",
        ),
        ("maskrcnn_parser", {"rpn_match_threshold": 0.2}, "rpn_unmatched_threshold must be at"),
        ("frcnn_head", {"num_classes": 81}, "mrcnn_head.num_classes 91; they must be equal"),
        ("frcnn_head", {"mlp_dim": 512}, "unknown key frcnn_head.mlp_dim"),
        ("retinanet_head", {"num_classes": 81}, "unknown key retinanet_head"),
    ],
)
def test_what_has_no_counterpart_is_refused_under_its_name(
    section: str, values: dict, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        converted(yaml.safe_dump({"type": "mask_rcnn", section: values}))
    assert words in str(error.value)
    assert "new.yaml" not in str(error.value)


def test_another_detector_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"old.yaml:1: type shapemask has no counterpart; retina"):
        converted("type: shapemask\n")
