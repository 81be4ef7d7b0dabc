"""Settings that give weights their meaning: which keys count, and what differs between two runs."""

from typing import Any

from tpudet.trainkit.weights.settings import (
    Setting,
    changed_settings,
    settings_of_model,
    unexpected_settings,
)

MODEL = {
    "normalization": "lite",
    "backbone": {"batch_norm": {"momentum": 0.9, "epsilon": 1e-3}, "drop_block": None},
    "anchors": {"aspect_ratios": [1.0, 2.0], "size": 4.0},
    "losses": {"kind": "focal", "gamma": 1.5},
}
FREE = ("backbone.batch_norm.momentum", "backbone.drop_block", "losses")


def settings(**changes: Any) -> tuple[Setting, ...]:
    return settings_of_model(MODEL | changes, free=FREE, parts={"anchors": ("head", "rpn")})


def test_every_key_counts_that_is_not_free_itself_or_beneath_one_that_is() -> None:
    assert {setting.key: setting.value for setting in settings()} == {
        "model.normalization": "lite",
        "model.backbone.batch_norm.epsilon": 1e-3,
        "model.anchors.aspect_ratios": (1.0, 2.0),
        "model.anchors.size": 4.0,
    }
    new = settings(a_new_key=True)  # until someone names it
    assert [setting.key for setting in new][-1] == "model.a_new_key"
    likened = {setting.key for setting in settings(losses_of_another={"gamma": 1.0})}
    assert "model.losses_of_another.gamma" in likened  # a free key's name is no prefix of others'


def test_a_change_is_named_with_both_values_as_a_user_writes_them() -> None:
    assert changed_settings(settings(), settings()) == []
    now = settings(normalization="auto", anchors={"aspect_ratios": (2.0, 1.0), "size": 4})
    assert changed_settings(settings(), now) == [
        "model.anchors.aspect_ratios: [1.0, 2.0] -> [2.0, 1.0]"
    ]
    without = settings(backbone={"batch_norm": None})
    assert changed_settings(without, settings()) == [
        "model.backbone.batch_norm.epsilon: null -> 0.001"
    ]


def test_weights_are_compared_by_the_settings_of_the_parts_that_took_them() -> None:
    stored = {"model.anchors.size": 8.0, "model.normalization": "caffe", "model.losses.kind": "x"}

    def said(*loaded: str) -> list[str]:
        return unexpected_settings(settings(), stored, owner="tpudet", loaded=loaded)

    pixels = "model.normalization is lite; weights of tpudet expect caffe."
    anchors = "model.anchors.size is 4.0; weights of tpudet expect 8.0."
    assert said("backbone/stem/conv/kernel") == [pixels]
    assert said("backbone/stem/conv/kernel", "rpn/box_predict/bias") == [pixels, anchors]
    assert said("header/bias", "head/class_predict/bias") == [pixels, anchors]
