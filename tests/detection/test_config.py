"""The experiment file: what belongs together, and config.yaml of an older version."""

import re
from pathlib import Path

import pytest

from tpudet.detection.config import ExperimentConfig, load_experiment
from tpudet.trainkit.config.decode import ConfigError, decode, to_yaml
from tpudet.trainkit.config.idle_keys import describe_idle
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.training.config import stop_at_rule


def decoded(text: str) -> ExperimentConfig:
    return decode(ExperimentConfig, parse_tree(text, "x.yaml"))


def test_a_config_of_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    config = decoded("evaluation: {schedule: {num_images: 3}, rules: {kind: coco}}")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_experiment(str(path)) == config
    changed = load_experiment(str(path), ["evaluation.schedule.num_images=4"])
    assert changed.evaluation.schedule.num_images == 4
    assert to_yaml(config).splitlines()[:2] == ["model:", "  kind: retinanet"]


def test_keys_of_an_older_version_are_named_with_their_new_names(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("eval: {num_pictures: 3}\nevaluation: {kind: coco}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(str(path))
    message = str(caught.value)
    assert "unknown key eval" in message
    assert "unknown key evaluation.kind" in message
    assert f"{path} was written by an older version" in message
    assert "`eval` to `evaluation.schedule`, and in it `num_pictures` to `num_images`" in message


def test_other_mistakes_do_not_mention_older_versions(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("evaluation: {schedule: {num_pictures: 3}}\n")
    with pytest.raises(ConfigError, match="unknown key evaluation.schedule.num_pictures") as caught:
        load_experiment(str(path))
    assert "older version" not in str(caught.value)


def test_canvas_sides_are_multiples_of_the_stride_of_levels_that_are_enlarged() -> None:
    assert decoded("model: {neck: {kind: nas_fpn}}").model.stride == 128
    assert decoded("data: {canvas_size: [800, 800]}").model.stride == 32
    with pytest.raises(ConfigError, match=r"multiples of 32, the model.s stride, got \[100\]"):
        decoded("data: {canvas_size: [100, 256]}")
    assert decoded("{model: {max_level: 5}, data: {canvas_size: [96, 160]}}").model.stride == 32


def test_what_looks_at_the_image_alone_goes_with_augmentations_that_leave_it_in_its_place() -> None:
    mosaic = "data: {augmentations: [{kind: mosaic}, {kind: color}], quarter_turns: true}"
    assert decoded(f"{{model: {{padding: black}}, {mosaic}}}").data.quarter_turns
    assert decoded("{model: {padding: mean}, data: {augmentations: [{kind: color}]}}")
    text = "model.padding mean must know .* but data.mosaic and data.quarter_turns"
    with pytest.raises(ConfigError, match=text):
        decoded(f"{{model: {{padding: mean}}, {mosaic}}}")
    model = "model: {kind: mask_rcnn, rpn: {clip_to: image}}"
    with pytest.raises(ConfigError, match=r"model.rpn.clip_to image must know .* data.mosaic"):
        decoded(f"{{{model}, {mosaic}}}")


def test_a_metric_of_masks_needs_a_model_with_masks() -> None:
    metric = "evaluation: {schedule: {best_metric: mask_AP50}}"
    assert decoded(f"{{model: {{kind: mask_rcnn}}, {metric}}}").model.predicts_masks
    for model in ("kind: retinanet", "kind: mask_rcnn, include_mask: false"):
        with pytest.raises(ConfigError, match=r"best_metric mask_AP50 needs masks.*: use AP50, or"):
            decoded(f"{{model: {{{model}}}, {metric}}}")
    with pytest.raises(ConfigError, match="max_level must be 3 or more with include_mask, got 2"):
        decoded("model: {kind: mask_rcnn, max_level: 2}")


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("train: {stop_at: {mask_AP: 0.3}}", "AP, AP50, AP75, APs, .*, ARl$"),
        (
            "{evaluation: {rules: {kind: open_images}}, train: {stop_at: {AP75: 0.3}}}",
            "AP, AP50$",
        ),
        (
            "{model: {kind: mask_rcnn}, evaluation: {rules: {kind: open_images}}, "
            "train: {stop_at: {AP: 0.3, mask_AP75: 0.3}}}",
            "AP, AP50, mask_AP, mask_AP50$",
        ),
    ],
)
def test_a_run_stops_at_metrics_that_it_has(text: str, known: str) -> None:
    config = decoded(text)  # a run of before, with such a key, can still be evaluated
    fits, told = stop_at_rule(config.train, config.metrics)
    assert not fits
    message = rf"train.stop_at has no metric (mask_AP|AP75|mask_AP75); known are {known}"
    assert re.fullmatch(message, told)
    with pytest.raises(ConfigError, match="train.stop_at has no metric ap50; known are AP, AP50"):
        decoded("train: {stop_at: {ap50: 0.3}}")


def test_masks_of_a_run_may_stop_it() -> None:
    text = "{model: {kind: mask_rcnn}, train: {stop_at: {mask_AP75: 0.3}}}"
    assert decoded(text).train.stop_at == {"mask_AP75": 0.3}


@pytest.mark.parametrize(
    ("model", "idle"),
    [
        ("neck: {coarse_relu: false}", ""),
        ("max_level: 6, neck: {coarse_input: backbone, symmetric_padding: true}", ""),
        # There must be a convolved level before it.
        ("max_level: 6, neck: {coarse_relu: false}", "model.neck.coarse_relu"),
        (
            "neck: {coarse_levels: subsample, coarse_input: backbone, coarse_relu: false}",
            "model.neck.coarse_input and model.neck.coarse_relu",
        ),
        ("max_level: 5, neck: {coarse_levels: subsample}", "model.neck.coarse_levels"),
        ("kind: mask_rcnn, neck: {symmetric_padding: true}", "model.neck.symmetric_padding"),
        (
            "kind: mask_rcnn, neck: {coarse_levels: convolution, symmetric_padding: true}",
            "",
        ),
    ],
)
def test_keys_of_coarse_levels_that_change_nothing_are_named(model: str, idle: str) -> None:
    told = describe_idle(decoded(f"model: {{{model}}}").model.idle_keys())
    assert told.partition(": no level depends on it, with max_level ")[0] == idle


_MASK_RCNN = "kind: mask_rcnn, "


@pytest.mark.parametrize(
    ("model", "idle"),
    [
        (
            "anchors: {sides: [32], num_scales: 5, size: 9}",
            "model.anchors.num_scales and model.anchors.size: model.anchors.sides take its place",
        ),
        ("anchors: {sides: [32], num_scales: 3, size: 4}", ""),  # the defaults
        (
            "matching: {force_match: false, forced_target: argmax}",
            "model.matching.forced_target: no anchor is forced, with force_match false",
        ),
        ("matching: {kind: atss}", ""),
        ("head: {norm_epsilon: 1e-3}", "model.head.norm_epsilon: there are no group norms"),
        ("head: {norm_epsilon: 1e-3, norm_groups: 32}", ""),
        (
            "head: {num_convs: 0, num_filters: 99, activation: silu}",
            "model.head.num_filters and model.head.activation: there are no convolutions",
        ),
        (
            _MASK_RCNN
            + "include_mask: false, mask_head: {num_convs: 2}, roi_align: {mask_size: 7}",
            "model.mask_head.num_convs: there are no masks, with include_mask false; "
            "model.roi_align.mask_size: there are no masks, with include_mask false",
        ),
        (
            _MASK_RCNN + "box_head: {num_filters: 64, num_dense: 0, num_units: 9}",
            "model.box_head.num_filters: there are no convolutions; "
            "model.box_head.num_units: there are no fully connected layers",
        ),
        (
            _MASK_RCNN + "rpn: {num_convs: 0, num_filters: 9, force_match: false}",
            "model.rpn.num_filters: there are no convolutions",
        ),
        (_MASK_RCNN + "anchors: {sides: [32], num_scales: 1, size: 8}", ""),  # its defaults
    ],
)
def test_keys_of_a_model_that_change_nothing_are_named(model: str, idle: str) -> None:
    assert describe_idle(decoded(f"model: {{{model}}}").model.idle_keys()) == idle


def test_mosaic_is_closed_only_where_there_is_one() -> None:
    alone = decoded("data: {close_mosaic_steps: 100}").data
    assert describe_idle(alone.idle_keys()) == (
        "data.close_mosaic_steps: there is no mosaic and no mixup"
    )
    for kind in ("mosaic", "mixup"):
        text = f"data: {{close_mosaic_steps: 100, augmentations: [{{kind: {kind}}}]}}"
        assert not describe_idle(decoded(text).data.idle_keys())
