"""The settings of a detector that give its weights their meaning, and the keys that may change."""

import dataclasses

from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.trainkit.weights.settings import (
    FREE_BACKBONE_KEYS,
    FREE_NORM_KEYS,
    Setting,
    settings_of_model,
)

# Of `model`: those of its training, then those of what it reports.
FREE_KEYS = (
    *FREE_BACKBONE_KEYS,
    *FREE_NORM_KEYS,
    "neck.drop_block",
    "matching",
    "loss_normalization",
    "class_loss",
    "box_loss",
    "rpn.match_threshold",
    "rpn.unmatched_threshold",
    "rpn.force_match",
    "rpn.forced_target",
    "rpn.anchors_per_image",
    "rpn.positive_share",
    "rpn.beta",
    "rpn.max_candidates_in_training",
    "rpn.max_proposals_in_training",
    "box_head.iou_threshold",
    "box_head.regions_per_image",
    "box_head.positive_share",
    "box_head.beta",
    "rpn.max_candidates",
    "rpn.nms_iou_threshold",
    "rpn.max_proposals",
    "rpn.min_score",
    "rpn.min_side",
    "postprocess",
)
_PREDICTORS = ("head", "rpn")
_REGIONS = ("box_head", "mask_head")
# Parts of the model whose weights a section concerns; pixels and backbone concern all.
_PARTS = {
    "kind": _PREDICTORS,
    "min_level": ("neck",),
    "max_level": ("neck",),
    "neck": ("neck",),
    "batch_norm": ("neck", *_PREDICTORS, *_REGIONS),
    "head": ("head",),
    "anchors": _PREDICTORS,
    "rpn": ("rpn",),
    "roi_align": _REGIONS,
    "box_head": ("box_head",),
    "cascade": ("box_head",),
    "mask_head": ("mask_head",),
    "include_mask": ("mask_head",),
}


def weights_settings(model: RetinaNetConfig | MaskRCNNConfig) -> tuple[Setting, ...]:
    """Returns the settings that give the detector's weights their meaning.

    Keys of the neck that no level depends on are not among them.
    """
    idle = (f"neck.{key}" for key in model.idle_neck_keys)
    return settings_of_model(dataclasses.asdict(model), free=(*FREE_KEYS, *idle), parts=_PARTS)
