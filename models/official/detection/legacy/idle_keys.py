"""Remarks on keys of a predecessor's file that have no effect here, or had none there."""

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
    "postprocess.apply_nms": "none; overlaps are always suppressed",
    "postprocess.pre_nms_num_boxes": "model.postprocess.max_candidates, which counts the boxes of "
    "all classes together, where that counted those of each",
    "postprocess.use_batched_nms": "none; there is one suppression, of all classes together",
    "retinanet_head.num_classes": "the rows of classes.csv, without the background",
    "retinanet_loss.num_classes": "the rows of classes.csv, without the background",
    "postprocess.num_classes": "the rows of classes.csv, without the background",
    "architecture.use_bfloat16": "train.precision; auto chooses bfloat16 where it is faster",
}


def idle_remarks(settings: Settings, backbone_kind: str, written: Branch) -> list[str]:
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
    if not settings.retinanet_head.use_batch_norm:
        remarks.append("retinanet_head.use_batch_norm is false: here it always has BatchNorm")
    for section in {"fpn", "nasfpn"} - {neck}:
        if _is_written(written, section):
            remarks.append(f"{section} had no effect: multilevel_features is {neck}")
    if backbone_kind != "resnet" and _is_written(written, "resnet"):
        what = "resnet, except for resnet_depth," if backbone_kind == "seresnext" else "resnet"
        remarks.append(f"{what} had no effect: the backbone is {settings.architecture.backbone}")
    rate = settings.train.learning_rate
    if rate.type == "step" and _is_written(written, "train.learning_rate.total_steps"):
        remarks.append("train.learning_rate.total_steps had no effect: it applies only to a cosine")
    parser = settings.retinanet_parser
    key = "retinanet_parser.autoaugment_policy_name"
    if parser.policy != parser.autoaugment_policy_name and _is_written(written, key):
        now = f"aug_policy is {parser.policy}" if parser.policy else "use_autoaugment is false"
        remarks.append(f"{key} had no effect: {now}")
    if not parser.skip_crowd_during_training:
        remarks.append(
            "skip_crowd_during_training is false: crowds were objects to learn; here they never are"
        )
    return remarks


def _is_written(tree: Branch, key: str) -> bool:
    first, _, rest = key.partition(".")
    child = tree.children.get(first)
    if child is None or not rest:
        return child is not None
    return isinstance(child, Branch) and _is_written(child, rest)
