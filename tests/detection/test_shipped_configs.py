"""The shipped experiments: one VERSION each, all of the predecessor's 134, EfficientDet's table."""

import dataclasses
import math
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tpudet.detection.config import ExperimentConfig, advise_on_cpus
from tpudet.detection.legacy.import_file import convert_text
from tpudet.detection.modeling.config import (
    AnchorConfig,
    ArgmaxIoUConfig,
    FocalLossConfig,
    HeadConfig,
    HuberLossConfig,
    OneStagePostprocessConfig,
)
from tpudet.detection.modeling.pyramid_config import BiFPNConfig
from tpudet.trainkit.backbones.config import BACKBONE_EPSILON, EfficientNetConfig
from tpudet.trainkit.config.decode import decode, load_config
from tpudet.trainkit.config.find import FoundConfig, find_config, find_task, list_configs
from tpudet.trainkit.config.idle_keys import describe_idle
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.training.build_optimizer import build_schedule
from tpudet.trainkit.training.config import MomentumConfig
from tpudet.trainkit.weights.config import WeightsConfig

FOLDER = Path(__file__).parents[2] / "configs/yaml"
CONFIGS = list_configs(FOLDER)
LEGACY = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("legacy_files.py"))))
ROWS = {row["file"]: row for row in LEGACY.read_rows()}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_has_a_version_of_its_own(path: Path) -> None:
    for version in (path.stem, path.stem.partition("_")[0]):
        assert find_config(version, FOLDER) == FoundConfig(str(path))


def test_no_shipped_experiment_sets_a_key_that_changes_nothing() -> None:
    names = [path.stem for path in list_configs(FOLDER)]
    detectors = [name for name in names if find_task(name) == "detection"]
    assert len(detectors) > 60
    configs = [load_config(ExperimentConfig, name) for name in (*detectors, *ROWS)]
    sections = [section for one in configs for section in (one.model, one.data, one.train)]
    assert {describe_idle(section.idle_keys()) for section in sections} == {""}


def test_the_table_of_versions_lists_each_of_the_134_once() -> None:
    listed = re.findall(r"^  (\S+):", (FOLDER / "open_images_2019/versions.yaml").read_text(), re.M)
    assert sorted(listed) == sorted(ROWS)
    assert len({find_config(name, FOLDER).path for name in ROWS}) == 43


@pytest.mark.parametrize("name", ROWS)
def test_a_version_of_the_predecessor_is_the_converted_one(name: str) -> None:
    """All but the checkpoint, which lay in a bucket; without one nothing is frozen.

    The predecessor's script evaluated every 5000 steps, which no file says.
    """
    found = find_config(name, FOLDER)
    if (number := name.partition("_")[0]) != "retinanet":  # which has two
        assert find_config(number, FOLDER) == found
    shipped = load_config(ExperimentConfig, name)
    assert shipped == load_config(ExperimentConfig, found.path, overrides=found.overrides)
    text, _ = convert_text(LEGACY.legacy_yaml(ROWS[name]), f"{name}.yaml")
    wanted = decode(ExperimentConfig, parse_tree(text, name))
    freeze = wanted.train.freeze if wanted.train.weights else ()
    train = dataclasses.replace(wanted.train, weights=None, freeze=freeze)
    schedule = dataclasses.replace(wanted.evaluation.schedule, every_steps=5000)
    evaluated = dataclasses.replace(wanted.evaluation, schedule=schedule)
    assert shipped == dataclasses.replace(wanted, train=train, evaluation=evaluated)
    needs_weights = "--set train.weights.path=FILE" in Path(found.path).read_text()
    assert needs_weights == bool(wanted.train.weights)


# arXiv 1911.09070, table 1: canvas, backbone, BiFPN channels and layers, layers of the head. Then
# of google/automl, hparams_config.py, efficientdet_keras.py and README.md: the anchors' scale,
# drop-connect, epochs.
EFFICIENTDETS = {
    "d0": (512, "b0", 64, 3, 3, 4.0, 0.0, 300),
    "d1": (640, "b1", 88, 4, 3, 4.0, 0.2, 300),
    "d2": (768, "b2", 112, 5, 3, 4.0, 0.2, 300),
    "d3": (896, "b3", 160, 6, 4, 4.0, 0.2, 300),
    "d4": (1024, "b4", 224, 7, 4, 4.0, 0.2, 300),
    "d5": (1280, "b5", 288, 7, 4, 4.0, 0.2, 300),
    "d6": (1280, "b6", 384, 8, 5, 4.0, 0.2, 300),
    "d7": (1536, "b6", 384, 8, 5, 5.0, 0.2, 600),
}


def efficientdet(version: str) -> ExperimentConfig:
    return load_config(ExperimentConfig, version)


@pytest.mark.parametrize("version", EFFICIENTDETS)
def test_an_efficientdet_has_its_sizes(version: str) -> None:
    canvas, variant, channels, layers, convs, anchor, drop, epochs = EFFICIENTDETS[version]
    config = efficientdet(version)
    model = config.model
    assert config.data.canvas_size == (canvas, canvas)
    assert isinstance(model.backbone, EfficientNetConfig)
    assert (model.backbone.variant, model.backbone.drop_connect_rate) == (variant, drop)
    assert model.neck == BiFPNConfig(num_filters=channels, num_repeats=layers)
    assert model.head == HeadConfig(
        num_filters=channels, num_convs=convs, separable=True, activation="silu"
    )
    assert model.anchors == AnchorConfig(num_scales=3, aspect_ratios=(1.0, 2.0, 0.5), size=anchor)
    # One epoch is 118,287 // 128 = 924 steps.
    assert config.train.total_steps == epochs * 924


@pytest.mark.parametrize("version", ["efficientdet", *EFFICIENTDETS])
def test_an_efficientdet_trains_as_its_authors_did(version: str) -> None:
    """Values of google/automl, hparams_config.py and det_model_fn.py; batch 128 of the paper."""
    config = efficientdet(version)
    model, data, train = config.model, config.data, config.train
    assert (model.min_level, model.max_level) == (3, 7)
    for norm in (model.batch_norm, model.backbone.batch_norm):
        assert norm is not None
        assert (norm.momentum, norm.frozen, norm.synchronized) == (0.99, False, True)
    assert model.batch_norm is not None
    assert model.batch_norm.epsilon == 1e-3
    epsilon = model.backbone.batch_norm.epsilon
    assert (BACKBONE_EPSILON["efficientnet"] if epsilon == "auto" else epsilon) == 1e-3
    assert model.matching == ArgmaxIoUConfig(
        match_threshold=0.5, unmatched_threshold=0.5, force_match=True
    )
    assert model.class_loss == FocalLossConfig(alpha=0.25, gamma=1.5, label_smoothing=0.0)
    assert model.box_loss == HuberLossConfig(delta=0.1, weight=50.0)
    assert model.postprocess == OneStagePostprocessConfig(
        score_threshold=0.001, nms_iou_threshold=0.5, max_candidates=5000, max_detections=100
    )
    assert (data.scale_range, data.horizontal_flip) == ((0.1, 2.0), True)
    assert (data.max_instances, data.augmentations) == (100, ())
    assert train.batch_size == 128
    assert train.optimizer == MomentumConfig(momentum=0.9, nesterov=False, weight_decay=4e-5)
    assert (train.gradient_clip_norm, train.ema_decay) == (10.0, 0.9998)


@pytest.mark.parametrize("version", EFFICIENTDETS)
def test_the_rate_of_an_efficientdet_rises_for_an_epoch_and_falls_along_a_cosine(
    version: str,
) -> None:
    """0.08 for 64 images is 0.16 for 128; the rise starts at 0.008, whatever the batch."""
    train = efficientdet(version).train
    steps = [0, 462, 924, (924 + train.total_steps) // 2, train.total_steps]
    rates = np.asarray(build_schedule(train)(np.array(steps)))
    np.testing.assert_allclose(rates, [0.008, 0.084, 0.16, 0.08, 0.0], atol=1e-7)


def test_a_figure_got_with_another_suppression_says_so() -> None:
    for version in ("efficientdet", *EFFICIENTDETS):
        expect = Path(find_config(version).path).read_text().partition("# Expect:")[2]
        assert "Gaussian Soft-NMS" in expect.partition("not reproduced")[0]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_published_figure_says_that_it_was_not_reproduced(path: Path) -> None:
    expect = path.read_text().partition("# Expect:")[2]
    words = " ".join(expect.split("\nbase:")[0].split("\nmodel:")[0].replace("\n#", " ").split())
    if re.match(r"COCO AP \d", words):
        assert "not reproduced here" in words
    else:
        assert re.search("no published|AP50|Results", words), words


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_parameters_are_counted_in_the_zoo_alone(path: Path) -> None:
    assert "M parameters" not in path.read_text().partition("# Command:")[0]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_command_begins_where_the_quoted_figure_does(path: Path) -> None:
    purpose, _, rest = path.read_text().partition("# Command:")
    command, _, expect = rest.partition("# Expect:")
    has_weights = "--set train.weights.path=FILE" in command
    assert has_weights or "from ImageNet weights" not in expect
    assert not has_weights or "random initialisation" not in purpose


def test_every_shipped_rate_follows_the_batch() -> None:
    """Of two runs of 1,000 images, the one in batches of a quarter has a quarter of the rate."""
    for path in CONFIGS:
        if "classification" in str(path):  # of the other task
            continue
        train = load_config(ExperimentConfig, str(path)).train
        assert train.reference_batch_size, f"{path} has no train.reference_batch_size"
    whole, quarter = (
        np.asarray(
            build_schedule(load_config(ExperimentConfig, "r50", overrides=change).train)(500)
        )
        for change in ([], ["train.batch_size=16"])
    )
    assert (float(whole), float(quarter)) == pytest.approx((0.08, 0.02))


def test_a_file_of_weights_takes_the_place_of_a_shipped_name() -> None:
    def weights(*change: str) -> WeightsConfig | None:
        return load_config(ExperimentConfig, "lite0_fpn_320", overrides=change).train.weights

    assert weights() == WeightsConfig(name="lite0-imagenet")
    assert weights("train.weights=resnet50-imagenet") == WeightsConfig(name="resnet50-imagenet")
    assert weights("train.weights.path=a.pth") == WeightsConfig(path="a.pth")
    assert weights("train.weights=null") is None


def test_a_long_run_on_a_cpu_is_told_smaller_configs_that_exist() -> None:
    for version, expected in (
        ("r50_fpn_640", ["lite0_fpn_320", "r18_fpn_320", "quickstart"]),
        ("mask-r50_fpn_1024", ["mask-lite0_fpn_320", "mask-quickstart"]),
    ):
        large = load_config(ExperimentConfig, version)
        advice = advise_on_cpus(large, num_images=100)
        named = re.findall(r"(?:mask-)?(?:lite0_fpn_320|r18_fpn_320|quickstart)", advice)
        assert named == expected
        for name in named:
            small = load_config(ExperimentConfig, name)
            assert small.model.kind == large.model.kind
            assert math.prod(small.data.canvas_size) <= math.prod(large.data.canvas_size) / 4
            assert advise_on_cpus(small, num_images=100).startswith("Fewer steps will do")


def test_ten_epochs_are_advised_only_where_they_are_fewer_steps() -> None:
    config = load_config(ExperimentConfig, "quickstart", overrides=["train.total_steps=1000"])
    # 10 epochs of them are 999 steps, or one more than all.
    fewer = config.train.batch_size * 999 // 10
    assert "--set train.total_epochs=10" in advise_on_cpus(config, num_images=fewer)
    assert advise_on_cpus(config, num_images=fewer + 8) == ""
