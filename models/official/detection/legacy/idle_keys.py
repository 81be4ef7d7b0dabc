"""Remarks on keys of a predecessor's file that have no effect here, or had none there."""

from tpudet.detection.legacy.mask_rcnn_settings import MaskRCNNSettings
from tpudet.detection.legacy.settings import Settings
from tpudet.trainkit.config.yaml_tree import Branch

# Key: its replacement.
_REPLACED = {
    "model_dir": "the flag --model_dir",
    "use_tpu": "the flag --backend and train.device",
    "enable_summary": "event files, which are always written",
    "isolate_session_state": "none; there are no sessions",
    "platform": "none; the machine's own devices are used",
    "train.num_shards": "none; all devices are used",
    "train.num_cores_per_replica": "none; an image is not divided over cores",
    "train.input_partition_dims": "none; an image is not divided over cores",
    "train.transpose_input": "none; the layout is the compiler's business",
    "train.train_file_pattern": "data.directory and data.train_split; files are called "
    "<split>_<folder>-00000-of-00020.tfrecord",
    "train.train_dataset_type": "none; data sets are TFRecords",
    "train.regularization_variable_regex": "none; weight decay acts on the kernels that train",
    "train.checkpoint.skip_variables_regex": "train.weights.exclude, patterns of our names",
    "eval.eval_file_pattern": "data.directory and data.eval_split",
    "eval.eval_dataset_type": "none; data sets are TFRecords",
    "eval.use_json_file": "the ground truth in the TFRecords of data.eval_split",
    "eval.val_json_file": "the ground truth in the TFRecords of data.eval_split",
    "eval.eval_samples": "all images of data.eval_split, none left out",
    "eval.eval_batch_size": "evaluation.schedule.batch_size, which has the value of "
    "predict.predict_batch_size: evaluations ran with it",
    "eval.min_eval_interval": "none; checkpoints are evaluated as they come",
    "eval.eval_timeout": "the flag --eval_timeout",
    "retinanet_parser.regenerate_source_id": "the ids that the TFRecords hold",
    "maskrcnn_parser.regenerate_source_id": "the ids that the TFRecords hold",
    "maskrcnn_parser.mask_crop_size": "none; masks keep the resolution of the canvas",
    "roi_proposal.use_batched_nms": "none; there is one suppression, of each level",
    "mask_sampling.num_mask_samples_per_image": "none; all objects among the regions drawn",
    "postprocess.apply_nms": "none; overlaps are always suppressed",
    "postprocess.pre_nms_num_boxes": "model.postprocess.max_candidates, which counts the boxes of "
    "all classes together, where that counted those of each",
    "postprocess.use_batched_nms": "none; there is one suppression, of all classes together",
    "retinanet_head.num_classes": "the rows of classes.csv, without the background",
    "retinanet_loss.num_classes": "the rows of classes.csv, without the background",
    "postprocess.num_classes": "the rows of classes.csv, without the background",
    "frcnn_head.num_classes": "the rows of classes.csv, without the background",
    "mrcnn_head.num_classes": "the rows of classes.csv, without the background",
    "architecture.use_bfloat16": "train.precision; auto chooses bfloat16 where it is faster",
}


def idle_remarks(
    settings: Settings | MaskRCNNSettings, backbone_kind: str, written: Branch
) -> list[str]:
    """Returns a remark on each key of the file that has no counterpart or had no effect.

    Args:
        settings: the file over the defaults.
        backbone_kind: "resnet", "efficientnet" or "seresnext".
        written: the file itself.
    """
    remarks = [
        f"{key} has no effect here. Replacement: {now}"
        for key, now in _REPLACED.items()
        if _is_written(written, key)
    ]
    neck = settings.architecture.multilevel_features
    if neck == "fpn" and not settings.fpn.use_batch_norm:
        remarks.append("fpn.use_batch_norm is false: here FPN always has BatchNorm")
    heads = ("rpn_head", "frcnn_head", "mrcnn_head")
    for head in heads if isinstance(settings, MaskRCNNSettings) else ("retinanet_head",):
        if not getattr(settings, head).use_batch_norm:
            remarks.append(f"{head}.use_batch_norm is false: here it always has BatchNorm")
    for section in {"fpn", "nasfpn"} - {neck}:
        if _is_written(written, section):
            remarks.append(f"{section} had no effect: multilevel_features is {neck}")
    if backbone_kind != "resnet" and _is_written(written, "resnet"):
        what = "resnet, except for resnet_depth," if backbone_kind == "seresnext" else "resnet"
        remarks.append(f"{what} had no effect: the backbone is {settings.architecture.backbone}")
    rate = settings.train.learning_rate
    if rate.type == "step" and _is_written(written, "train.learning_rate.total_steps"):
        remarks.append("train.learning_rate.total_steps had no effect: it applies only to a cosine")
    if isinstance(settings, Settings):
        remarks += _policy_remarks(settings, written)
    if not settings.parser.skip_crowd_during_training:
        remarks.append(
            "skip_crowd_during_training is false: crowds were objects to learn; here they never are"
        )
    return remarks


def _policy_remarks(settings: Settings, written: Branch) -> list[str]:
    parser, key = settings.retinanet_parser, "retinanet_parser.autoaugment_policy_name"
    if parser.policy == parser.autoaugment_policy_name or not _is_written(written, key):
        return []
    now = f"aug_policy is {parser.policy}" if parser.policy else "use_autoaugment is false"
    return [f"{key} had no effect: {now}"]


def _is_written(tree: Branch, key: str) -> bool:
    first, _, rest = key.partition(".")
    child = tree.children.get(first)
    if child is None or not rest:
        return child is not None
    return isinstance(child, Branch) and _is_written(child, rest)
