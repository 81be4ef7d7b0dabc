"""All 134 experiments of the predecessor convert; what had no effect there is told."""

import functools
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpudet.detection.commands.import_legacy_config import main
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.legacy.import_file import convert_text
from tpudet.detection.modeling.pyramid_config import NASFPNConfig
from tpudet.trainkit.backbones.config import EfficientNetConfig, ResNetConfig
from tpudet.trainkit.backbones.efficientnet import block_specs
from tpudet.trainkit.config.decode import ConfigError, decode, load_config
from tpudet.trainkit.config.yaml_tree import parse_tree

LEGACY = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "legacy_files.py")))
ROWS = {row["file"]: row for row in LEGACY.read_rows()}


def converted(old_text: str, name: str = "old.yaml") -> tuple[ExperimentConfig, str]:
    """The decoded experiment, and the remarks as one text."""
    text, remarks = convert_text(old_text, name)
    return decode(ExperimentConfig, parse_tree(text, "new.yaml")), "\n".join(remarks)


@functools.cache
def converted_row(name: str) -> tuple[ExperimentConfig, str]:
    return converted(LEGACY.legacy_yaml(ROWS[name]), f"{name}.yaml")


def test_the_table_has_134_different_files() -> None:
    assert len(ROWS) == 134
    settings = {tuple(list(row.values())[1:]) for row in ROWS.values()}
    assert len(settings) == 128


@pytest.mark.parametrize("name", ROWS)
def test_the_model_is_that_of_the_row(name: str) -> None:
    row, model = ROWS[name], converted_row(name)[0].model
    backbone = model.backbone
    number = backbone.variant if isinstance(backbone, EfficientNetConfig) else backbone.depth
    dash = "-" if backbone.kind == "efficientnet" else ""
    assert f"{backbone.kind}{dash}{number}" == row["backbone"]
    neck = model.neck
    assert neck.kind == {"fpn": "fpn", "nasfpn": "nas_fpn"}[row["neck"]]
    assert not isinstance(neck, ResNetConfig)
    assert getattr(neck, "num_filters", None) == int(row["filters"])
    assert getattr(neck, "separable", None) == (row["separable"] == "yes")
    if isinstance(neck, NASFPNConfig):
        assert neck.num_repeats == int(row["repeats"])
        drop = neck.drop_block
        found = (f"{drop.keep_prob:g}", str(drop.size)) if drop else ("", "")
        assert found == (row["keep_prob"], row["block_size"])
    post = model.postprocess
    assert post.max_detections == int(row["max_detections"] or 100)
    assert post.score_threshold == float(row["score_threshold"] or 0.05)
    assert (model.class_loss.kind, model.box_loss.kind) == ("focal", "huber")


@pytest.mark.parametrize("name", ROWS)
def test_data_and_training_are_those_of_the_row(name: str) -> None:
    row, config = ROWS[name], converted_row(name)[0]
    data, train = config.data, config.train
    size = LEGACY.whole_numbers(row["size"] or "640x640", "x")
    assert list(data.canvas_size) == [math.ceil(side / 128) * 128 for side in size]
    low, _, high = (row["scale"] or "1-1").partition("-")
    assert data.scale_range == (float(low), float(high))
    policies = [augmentation.policy for augmentation in data.augmentations]  # pyright: ignore
    assert policies == ([row["autoaugment"]] if row["autoaugment"] else [])
    assert data.max_instances == int(row["max_instances"] or 100)
    assert train.batch_size == int(row["batch"] or 64)
    assert train.total_steps == int(row["total_steps"])
    assert train.optimizer.kind == "momentum"
    assert train.optimizer.weight_decay == float(row["l2"] or 1e-4)
    assert config.evaluation.schedule.batch_size == int(row["eval_batch"] or 8)
    assert (train.weights.path if train.weights else "") == row["checkpoint"]


@pytest.mark.parametrize("name", ROWS)
def test_the_frozen_blocks_are_those_that_were_meant(name: str) -> None:
    row, (config, remarks) = ROWS[name], converted_row(name)
    freeze = config.train.freeze
    if not LEGACY.names_blocks(row):
        is_resnet = row["backbone"].startswith("resnet") and row["frozen"] == "default"
        assert freeze == (("stem", "stage1") if is_resnet else ())
        assert ("froze convolutions only" if is_resnet else "froze nothing") in remarks
        assert ("frozen at random values" in remarks) == (is_resnet and not row["checkpoint"])
        return
    assert "froze nothing: a YAML file keeps the letters of r'...'" in remarks
    assert ("stem" in freeze) == row["frozen"].startswith("stem")
    paths = [
        f"backbone/stage{spec.stage}/block{number}/project/kernel"
        for number, spec in enumerate(block_specs(row["backbone"].removeprefix("efficientnet-")))
    ]
    patterns = [f"backbone/{word}/" if re.fullmatch(r"\w+", word) else word for word in freeze]
    frozen = [i for i, path in enumerate(paths) if any(re.match(p, path) for p in patterns)]
    assert frozen == LEGACY.frozen_blocks(row)


def test_21_resnets_would_freeze_random_values_and_41_patterns_were_raw_strings() -> None:
    remarks = [converted_row(name)[1] for name in ROWS]
    assert sum("frozen at random values" in text for text in remarks) == 21
    assert sum("keeps the letters of r'...'" in text for text in remarks) == 41


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("2.3.2_nasfpn_effnet_b7_clr", "had no prefix and loaded nothing, silently"),
        ("2.3.1b_efficientnet_b5_resumed", "one that a detector had saved itself"),
        ("2.3.2_nasfpn_effnet_b7_clr", "600x600 was padded to 640x640, multiples of 128"),
        ("2.3.0_nasfpn_efficientnet_b5", "456x456 was padded to 512x512"),
        ("4.7.1_r50_cosine_10k_feat_300_drop_0.7", "800x800 was padded to 896x896"),
        ("1.0.4_1024x768", "did not have this size 1024x768 but 640x640"),
        ("2.4.0_r50_cosine_10k", "rose to its peak again every 10000 steps. That is cosine_cyclic"),
        ("1.0.1_fixed_val_batch", "the rates were [0.0008] from [10000] on"),
        ("1.0.3_constant", "train.learning_rate.total_steps had no effect"),
        ("1.0.0_retinanet", "l2_weight_decay 0.0001 also acted on biases"),
        ("2.2.0_nasfpn_seresnext50", "SE-ResNeXt never updated its BatchNorm statistics"),
        ("4.6.1_r50_step_45k_60k_1024_drop_0.9", "the name says size 1024, the file 800x800"),
        ("4.8.3_r101_step_45k_90k_1024_feat_300_aug2", "AutoAugment policy 2, the file 3;"),
        ("4.2.4_effnet_b7_45k_90k_1024_frozen_25", "says 25 frozen blocks, the file names 20"),
        ("2.6.0_r50_step_45k", "drops at [45000], the file at [45000, 60000]"),
        ("2.4.8_r50_cosine_10k_300_feat_drop_0.7", "dropblock (keep_prob 0.7, size 3)"),
        ("1.0.0_retinanet", "evaluated every 5000 steps, or 2000 for less than 20 classes"),
        ("1.2.3_autoaugment_v3", "Contrast made images of more than 65,280 pixels white"),
    ],
)
def test_what_had_no_effect_is_told(name: str, words: str) -> None:
    assert words in converted_row(name)[1]


def test_a_name_that_tells_the_truth_has_no_remark() -> None:
    quiet = [name for name in ROWS if "the name says" not in converted_row(name)[1]]
    assert len(quiet) == 128
    assert {
        "1.0.4_1024x768",
        "2.4.5_r50_cosine_10k_128_feat",
        "4.1.10_effnet_b5_45k_90k_1024_feat_350_drop_0.9",
        "4.8.6_r50_step_45k_90k_feat_300_drop_0.9_aug2",
    } <= set(quiet)


# All values off their defaults, in both spellings where there are two.
EVERY_KEY = """
type: retinanet
model_dir: gs://bucket/run
use_tpu: true
platform: {tpu: my-tpu, tpu_zone: us-central1-b, gcp_project: mine, eval_master: ''}
train:
  iterations_per_loop: 7
  train_batch_size: 16
  num_cores_per_replica: 2
  input_partition_dims: [1, 2, 1, 1]
  optimizer: {type: rmsprop, momentum: 0.8}
  learning_rate: {type: cosine, total_steps: 900, warmup_steps: 0, warmup_learning_rate: 1e-6}
  total_steps: 900
  frozen_variable_prefix: null
  train_file_pattern: gs://bucket/converted/part_1/train_part_1*.tfrecord
  transpose_input: false
  l2_weight_decay: 5e-5
eval: {min_eval_interval: 60, eval_timeout: 100, num_steps_per_eval: 50, eval_samples: 99,
  type: box, eval_batch_size: 4, val_json_file: a.json, eval_file_pattern: b}
predict: {predict_batch_size: 2}
architecture: {parser: retinanet_parser, backbone: resnet, multilevel_features: fpn,
  use_bfloat16: false}
anchor: {min_level: 3, max_level: 6, num_scales: 2, aspect_ratios: [1.0, 3.0], anchor_size: 3.5}
retinanet_parser: {use_bfloat16: false, output_size: [320, 512], match_threshold: 0.6,
  unmatched_threshold: 0.4, aug_rand_hflip: false, aug_scale_min: 0.5, aug_scale_max: 2.0,
  skip_crowd_during_training: false, autoaugment_policy_name: v2}
resnet: {resnet_depth: 34, dropblock: {keep_prob: 0.8, size: 5},
  batch_norm: {batch_norm_momentum: 0.9, batch_norm_epsilon: 0.001, trainable: false}}
fpn: {min_level: 3, max_level: 6, fpn_feat_dims: 96, use_separable_conv: true,
  batch_norm: {batch_norm_trainable: true}}
nasfpn: {min_level: 3, max_level: 6, num_repeats: 3}
retinanet_head: {min_level: 3, max_level: 6, num_classes: 444, anchors_per_location: 4,
  num_convs: 2, retinanet_head_num_filters: 64, use_separable_conv: true}
retinanet_loss: {num_classes: 444, focal_loss_alpha: 0.3, focal_loss_gamma: 2.0,
  huber_loss_delta: 0.2, box_loss_weight: 10}
postprocess: {min_level: 3, max_level: 6, num_classes: 444, use_batched_nms: true,
  nms_iou_threshold: 0.6}
"""


def test_every_key_of_the_model_is_converted() -> None:
    model = converted(EVERY_KEY)[0].model
    assert isinstance(model.backbone, ResNetConfig)
    assert (model.backbone.depth, model.backbone.batch_norm.frozen) == (34, True)
    assert model.backbone.drop_block is not None
    assert (model.backbone.drop_block.keep_prob, model.backbone.drop_block.size) == (0.8, 5)
    assert (model.head.num_convs, model.head.num_filters, model.head.separable) == (2, 64, True)
    assert (model.anchors.num_scales, model.anchors.aspect_ratios) == (2, (1.0, 3.0))


def test_every_key_of_data_and_training_is_converted() -> None:
    config = converted(EVERY_KEY)[0]
    data, train = config.data, config.train
    assert (data.canvas_size, data.horizontal_flip) == ((320, 512), False)
    assert data.directory == "gs://bucket/converted/part_1"
    assert data.augmentations == ()
    assert (train.learning_rate.kind, train.precision) == ("cosine", "float32")
    assert (train.optimizer.kind, train.optimizer.weight_decay) == ("rmsprop", 5e-5)
    assert (train.freeze, train.iterations_per_loop) == ((), 7)
    schedule = config.evaluation.schedule
    assert (schedule.batch_size, schedule.every_steps) == (2, 50)


def test_every_key_without_a_counterpart_is_told() -> None:
    remarks = converted(EVERY_KEY)[1]
    for words in (
        "the flag --model_dir",
        "all images of data.eval_split, none left out",
        "the rows of classes.csv, without the background",
        "nasfpn had no effect: multilevel_features is fpn",
        "autoaugment_policy_name had no effect: use_autoaugment is false",
        "skip_crowd_during_training is false",
    ):
        assert words in remarks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "train: {total_step: 5, learnin_rate: 1}\nfoo: 3\n",
            [
                "3 mistakes in the configuration",
                "old.yaml:1: unknown key train.total_step; did you mean `total_steps`?",
                "unknown key train.learnin_rate; did you mean `learning_rate`?",
                "old.yaml:2: unknown key foo; known keys: ",
            ],
        ),
        ("anchor: {max_level: 6}\n", ["fpn.max_level must be anchor.max_level, 6, got 7"]),
        ("retinanet_head: {num_classes: 5}\n", ["must be equal, got [5, 91, 91]"]),
        ("anchor: {num_scales: 2}\n", ["the number of aspect_ratios, 6, got 9"]),
        ("architecture: {backbone: spinenet49}\n", ["spinenet49; known are resnet, efficientnet"]),
        ("train: {optimizer: {type: adagrad}}\n", ["adagrad has no counterpart"]),
        ("train: {frozen_variable_prefix: \"r'resnet50/('\"}\n", ["r'resnet50/(': missing )"]),
        (
            "train: {learning_rate: {type: cosine, total_steps: 500}}\n",
            ["the cosine's total_steps must be above warmup_steps, got 500 and 500"],
        ),
        ("- 1\n", ["expected a mapping at the top level"]),
        ("train: {total_steps: 0}\n", ["total_steps must be above 0, got 0"]),
        (
            "type: shapemask\n",
            ["shapemask has no counterpart; retinanet and mask_rcnn have"],
        ),
    ],
)
def test_what_has_no_meaning_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str]
) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text)
    assert main([str(old), "--output", str(new)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("tpudet import_legacy_config: ")
    for word in words:
        assert word in said.err
    assert said.out == ""
    assert not new.exists()


def test_a_key_that_is_repeated_counts_as_it_did(tmp_path: Path) -> None:
    """1.3.x have `postprocess` twice; the predecessor's reader took the last."""
    text = "postprocess: {max_total_size: 7}\npostprocess: {max_total_size: 150}\n"
    config, remarks = converted(text)
    assert config.model.postprocess.max_detections == 150
    assert "old.yaml:2: `postprocess` appears twice; the last one counts" in remarks
    with pytest.raises(ConfigError, match="`postprocess` appears twice; keep one"):
        parse_tree(text, "ours.yaml")


def test_the_command_writes_a_file_once(tmp_path: Path, hold_claim, capsys) -> None:
    name = "4.1.0_effnet_b5_45k_90k_1024_batch_32"
    old, new = tmp_path / f"{name}.yaml", tmp_path / "new.yaml"
    old.write_text(LEGACY.legacy_yaml(ROWS[name]))
    command = ["import_legacy_config", str(old), "--output", str(new)]
    done = subprocess.run(
        [sys.executable, "-m", "tpudet", *command], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert done.stderr.startswith("- exported models did not have this size 1024x1024")
    text = new.read_text()
    assert all(text.count(f"# {word}:") == 1 for word in ("Purpose", "Command", "Expect"))
    config = load_config(ExperimentConfig, str(new))
    assert config.train.freeze == (
        *("stem", "stage1", "stage2", "stage3"),
        "backbone/stage4/block(1[3-4])/",
    )
    assert main(command[1:]) == 2
    assert new.read_text() == text
    with hold_claim(tmp_path / "new.yaml.claim.json") as process:
        assert main([*command[1:], "--force"]) == 2
        assert f"is being written by process {process} on" in capsys.readouterr().err
    assert main([*command[1:], "--force"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([old.name, new.name])


def test_without_an_output_the_experiment_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read: No such file or directory" in capsys.readouterr().err
    old = tmp_path / "old.yaml"
    old.write_text("{}\n")
    assert main([str(old)]) == 0
    printed = capsys.readouterr()
    decode(ExperimentConfig, parse_tree(printed.out, "printed.yaml"))
    assert "- frozen_variable_prefix" in printed.err
