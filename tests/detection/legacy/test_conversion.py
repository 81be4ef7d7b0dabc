"""Files of the predecessor beyond the 134: later keys, edges of schedules, what is refused."""

import numpy as np
import pytest
import yaml

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.config import AutoAugmentConfig
from tpudet.detection.legacy.import_file import convert_text
from tpudet.trainkit.backbones.config import ResNetConfig
from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.training.build_optimizer import build_schedule


def converted(old_text: str) -> tuple[ExperimentConfig, str]:
    """The decoded experiment, and the remarks as one text."""
    text, remarks = convert_text(old_text, "old.yaml")
    return decode(ExperimentConfig, parse_tree(text, "new.yaml")), "\n".join(remarks)


# What tensorflow/tpu had beyond the keys of 2019, before its sections shared one batch_norm.
LATER_KEYS = r"""
isolate_session_state: false
train:
  gradient_clip_norm: 5.0
  regularization_variable_regex: '.*(kernel|weight):0$'
  train_dataset_type: tfrecord
  checkpoint: {path: model.ckpt, prefix: resnet50/, skip_variables_regex: head}
  frozen_variable_prefix: '(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/'
eval: {use_json_file: true, eval_dataset_type: tfrecord, eval_samples: null}
retinanet_parser: {aug_policy: v2, autoaugment_policy_name: v0, regenerate_source_id: false}
resnet: {batch_norm: {use_sync_bn: true}}
fpn: {use_batch_norm: false, batch_norm: {use_sync_bn: false}}
retinanet_head: {use_batch_norm: false, batch_norm: {use_sync_bn: false}}
postprocess: {apply_nms: true, pre_nms_num_boxes: 1000}
"""


def test_later_keys_with_a_counterpart_are_converted() -> None:
    config = converted(LATER_KEYS)[0]
    assert config.train.gradient_clip_norm == 5.0
    assert config.model.postprocess.max_candidates == 1000
    assert config.data.augmentations == (AutoAugmentConfig(policy="v2"),)
    assert isinstance(config.model.backbone, ResNetConfig)
    assert config.model.backbone.batch_norm.synchronized
    assert config.model.batch_norm is not None
    assert not config.model.batch_norm.synchronized
    assert config.train.freeze == ("stem", "stage1")
    assert converted("{}")[0].train.gradient_clip_norm is None  # 0.0 there


def test_later_keys_without_a_counterpart_are_told() -> None:
    remarks = converted(LATER_KEYS)[1]
    for words in (
        "isolate_session_state has no effect here",
        "train.regularization_variable_regex has no effect here",
        "train.train_dataset_type has no effect here",
        "Replacement: train.weights.exclude",
        "eval.use_json_file has no effect here",
        "eval.eval_dataset_type has no effect here",
        "retinanet_parser.regenerate_source_id has no effect here",
        "autoaugment_policy_name had no effect: aug_policy is v2",
        "fpn.use_batch_norm is false: here FPN always has BatchNorm",
        "retinanet_head.use_batch_norm is false",
        "postprocess.apply_nms has no effect here",
        "counts the boxes of all classes together, where that counted those of each",
        "froze convolutions with the scale and shift of their BatchNorm",
        "gradient_clip_norm 5 acted on the gradients of each core",
    ):
        assert words in remarks
    assert "froze convolutions only" not in remarks
    assert "also acted on biases" not in remarks  # the expression says kernels


@pytest.mark.parametrize(
    ("steps", "levels"),
    [
        ([100, 200], [0.008, 0.0008]),  # both in the warm-up of 500
        ([100, 200, 9000], [0.008, 0.08, 0.0008]),  # the second goes back to the peak
        ([499, 501], [0.008, 0.0008]),
        ([200, 100, 700], [0.008, 0.0008, 0.0004]),
        ([700, 700], [0.008, 0.0008]),
        ([], []),
    ],
)
def test_drops_in_the_warm_up_act_at_its_end(steps: list[int], levels: list[float]) -> None:
    """The predecessor's formula; the last step that is behind counts, the warm-up before all."""
    rate = {"learning_rate_steps": steps, "learning_rate_levels": levels}
    train = converted(yaml.safe_dump({"train": {"learning_rate": rate}}))[0].train
    places = np.array([0, 99, 100, 250, 499, 501, 502, 699, 700, 701, 8999, 9000, 22499])
    expected = []
    for step in places:
        reached = [level for begin, level in zip(steps, levels, strict=True) if step >= begin]
        rising = 0.0067 + step / 500 * (0.08 - 0.0067)
        expected.append(rising if step < 500 else [0.08, *reached][-1])
    np.testing.assert_allclose(build_schedule(train)(places), expected, rtol=1e-5)


def test_a_cosine_that_is_longer_than_the_run_is_told_apart_from_one_that_comes_back() -> None:
    old = "train: {{total_steps: {}, learning_rate: {{type: cosine, total_steps: {}}}}}"
    long, remarks = converted(old.format(10000, 22500))
    assert "would have reached 0 at step 22500, after the end of the run at 10000" in remarks
    assert "came back" not in remarks
    # Half a cosine of 22,000 steps, 9,500 behind: 0.08 * (cos(pi * 9.5 / 22) + 1) / 2.
    assert float(build_schedule(long.train)(10000)) == pytest.approx(0.0485, abs=5e-5)
    assert "rose to its peak again every 19000 steps" in converted(old.format(22500, 10000))[1]


def test_adam_with_another_epsilon_is_told() -> None:
    config, remarks = converted("train: {optimizer: {type: adam}}")
    assert config.train.optimizer.kind == "adam"
    assert "adam had an epsilon of 1e-8; here it has 1e-7" in remarks
    assert "epsilon" not in converted("{}")[1]


# Every key whose value our config restricts, and a value that it would refuse.
REFUSED = {
    "train.total_steps": 0,
    "train.train_batch_size": 0,
    "train.iterations_per_loop": 0,
    "train.l2_weight_decay": -0.1,
    "train.gradient_clip_norm": -0.1,
    "train.optimizer.momentum": 1.0,
    "train.learning_rate.init_learning_rate": 0.0,
    "train.learning_rate.warmup_steps": -1,
    "train.learning_rate.warmup_learning_rate": -0.1,
    "train.learning_rate.learning_rate_levels": [0.008, -0.1],
    "eval.num_steps_per_eval": 0,
    "predict.predict_batch_size": 0,
    "anchor.num_scales": 0,
    "anchor.aspect_ratios": [],
    "anchor.anchor_size": 0.0,
    "anchor.min_level": 1,
    "retinanet_parser.output_size": [0, 640],
    "retinanet_parser.match_threshold": 1.5,
    "retinanet_parser.unmatched_threshold": 0.6,  # above match_threshold
    "retinanet_parser.aug_scale_min": 0.05,
    "retinanet_parser.aug_scale_max": 3.0,
    "retinanet_parser.aug_policy": "randaug",
    "retinanet_parser.max_num_instances": 0,
    "resnet.batch_norm.batch_norm_momentum": 1.0,
    "resnet.batch_norm.batch_norm_epsilon": 0.0,
    "resnet.dropblock.dropblock_keep_prob": 0.0,
    "resnet.dropblock.dropblock_size": 0,
    "fpn.fpn_feat_dims": 0,
    "nasfpn.num_repeats": 0,
    "retinanet_head.num_convs": -1,
    "retinanet_head.num_filters": 0,
    "retinanet_loss.focal_loss_alpha": 1.1,
    "retinanet_loss.focal_loss_gamma": -1.0,
    "retinanet_loss.huber_loss_delta": 0.0,
    "retinanet_loss.box_loss_weight": 0.0,
    "postprocess.max_total_size": 0,
    "postprocess.pre_nms_num_boxes": 0,
    "postprocess.nms_iou_threshold": 0.0,
    "postprocess.score_threshold": 1.0,
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_value_out_of_range_is_refused_under_the_name_that_the_file_has(key: str) -> None:
    tree = REFUSED[key]
    for part in reversed(key.split(".")):
        tree = {part: tree}
    with pytest.raises(ConfigError) as error:
        converted(yaml.safe_dump(tree))
    assert key.rpartition(".")[2] in str(error.value)
    assert "\n  old.yaml:" in str(error.value)
    assert "new.yaml" not in str(error.value)


LEVEL_2 = "".join(
    f"{part}: {{min_level: 2}}\n"
    for part in ("anchor", "fpn", "nasfpn", "retinanet_head", "postprocess")
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "architecture: {backbone: se-resnext}\nresnet: {resnet_depth: 18}\n",
            "resnet.resnet_depth is 18, which is that of architecture.backbone se-resnext too",
        ),
        (
            f"architecture: {{multilevel_features: nasfpn}}\n{LEVEL_2}",
            "nasfpn has anchor.min_level 3 and anchor.max_level 7 here, got 2 and 7",
        ),
        (
            "architecture: {multilevel_features: identity}\n",
            "identity has one level of the backbone here, 2 to 5: anchor.min_level and "
            "anchor.max_level must be equal, got 3 and 7",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_the_words_of_the_file(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        converted(text)
    assert words in str(error.value)
    assert "new.yaml" not in str(error.value)


def test_more_boxes_than_candidates_raise_the_candidates() -> None:
    """The predecessor took so many of each class, and so found them among several."""
    post = converted("postprocess: {max_total_size: 300, pre_nms_num_boxes: 100}")[0].model
    assert (post.postprocess.max_candidates, post.postprocess.max_detections) == (300, 300)
