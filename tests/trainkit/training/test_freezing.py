"""The layers that patterns select, and the messages for those that select nothing."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.drop_block import DropBlock
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.training.freezing import freeze, frozen_at_random, frozen_paths, owning_layers

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)


class Block(keras.Layer):
    """A convolution and its normalisation in one layer, with a weight of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.conv = keras.layers.Conv2D(2, 1, name="conv")
        self.norm = keras.layers.BatchNormalization(name="batch_norm")

    def build(self, input_shape: Any) -> None:
        self.conv.build(input_shape)
        self.norm.build((*input_shape[:-1], 2))
        self.gain = self.add_weight(shape=(), name="gain")

    def call(self, images: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        return self.norm(self.conv(images), training=training) * self.gain


@pytest.fixture
def model() -> keras.Model:
    images = keras.Input((4, 4, 3))
    features = Block("block_10")(Block("block_1")(images))
    return keras.Model(images, keras.layers.Dense(1, name="head")(features))


def test_the_whole_innermost_layer_is_frozen(model: keras.Model) -> None:
    frozen = freeze(model, ["block_1/conv/kernel", "block_1/batch_norm/gamma"])
    assert frozen.layers == ("block_1/conv", "block_1/batch_norm")
    assert frozen.variables == (
        "block_1/conv/kernel",
        "block_1/conv/bias",
        "block_1/batch_norm/gamma",
        "block_1/batch_norm/beta",
        "block_1/batch_norm/moving_mean",
        "block_1/batch_norm/moving_variance",
    )
    assert frozen.num_parameters == 3 * 2 + 2 + 4 * 2
    trained = [variable.path for variable in model.trainable_variables]
    assert trained == [
        "block_1/gain",
        "block_10/gain",
        "block_10/conv/kernel",
        "block_10/conv/bias",
        "block_10/batch_norm/gamma",
        "block_10/batch_norm/beta",
        "head/kernel",
        "head/bias",
    ]
    assert frozen_paths(model) == set(frozen.variables)


def test_owners_are_innermost(model: keras.Model) -> None:
    owners = owning_layers(model)
    assert list(owners) == [variable.path for variable in model.variables]
    assert isinstance(owners["block_1/gain"], Block)
    assert isinstance(owners["block_1/conv/bias"], keras.layers.Conv2D)


def test_a_pattern_matches_from_the_start_of_the_path(model: keras.Model) -> None:
    assert freeze(model, [".*/batch_norm/"]).layers == (
        "block_1/batch_norm",
        "block_10/batch_norm",
    )
    with pytest.raises(ValueError, match="matches no variable from the start of its path") as error:
        freeze(model, ["conv/"])
    assert "the closest are block_1/conv/kernel" in str(error.value)
    assert "(put .* before it to match inside: '.*conv/')" in str(error.value)


def test_every_wrong_pattern_is_told_and_nothing_is_frozen(model: keras.Model) -> None:
    patterns = ["head/", "r'block_1/conv/kernel'", "head/(", "bluck_10/conv/bias"]
    with pytest.raises(ValueError, match="these patterns cannot be frozen") as error:
        freeze(model, patterns)
    message = str(error.value)
    assert "\"r'block_1/conv/kernel'\" matches no variable" in message
    assert "the closest are block_1/conv/kernel" in message
    assert "'head/(' is not a regular expression" in message
    assert "'bluck_10/conv/bias' matches no variable" in message
    assert "the closest are block_10/conv/bias" in message
    assert len(model.trainable_variables) == 12
    assert not frozen_paths(model)


class Part(keras.Layer):
    """Named parts, each a convolution with its normalisation."""

    def __init__(self, name: str, parts: tuple[str, ...]) -> None:
        super().__init__(name=name)
        self.parts = [ConvNorm(2, 1, name=part, make_norm=NORM) for part in parts]

    def build(self, input_shape: Any) -> None:
        for part in self.parts:
            part.build(input_shape)
            input_shape = (*input_shape[:-1], 2)

    def call(self, images: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        for part in self.parts:
            images = part(images, training=training)
        return images


@pytest.fixture
def detector() -> keras.Model:
    images = keras.Input((4, 4, 3))
    features = Part("backbone", ("stem", "stage1", "stage10"))(images)
    return keras.Model(images, Part("head", ("tower",))(Part("neck", ("merge",))(features)))


@pytest.mark.parametrize(
    ("patterns", "paths"),
    [
        (["stem"], ["backbone/stem"]),
        (["stage1"], ["backbone/stage1"]),  # the word, not all that begins with it
        (["stem", "backbone/stage1"], ["backbone/stem", "backbone/stage1"]),
        (["stage1/"], ["backbone/stage1"]),
        (["stage1/norm", "stage1/kernel"], ["backbone/stage1"]),
        (["backbone/stage1.*"], ["backbone/stage1", "backbone/stage10"]),
        (["backbone"], ["backbone/stem", "backbone/stage1", "backbone/stage10"]),
        (["neck", "head"], ["neck/merge", "head/tower"]),
    ],
)
def test_a_part_is_frozen_by_its_name(
    detector: keras.Model, patterns: list[str], paths: list[str]
) -> None:
    """A convolution of 1x1 and its normalisation: a kernel and 4 vectors, standing still alike."""
    frozen = freeze(detector, patterns)
    assert frozen.layers == tuple(f"{path}{norm}" for path in paths for norm in ("", "/norm"))
    assert len(frozen.variables) == 5 * len(paths)
    assert frozen_paths(detector) == set(frozen.variables)
    assert not {v.path for v in detector.trainable_variables} & set(frozen.variables)


def test_a_kernel_takes_its_normalisation_along(detector: keras.Model) -> None:
    frozen = freeze(detector, ["backbone/stem/kernel"])
    assert frozen.layers == ("backbone/stem", "backbone/stem/norm")
    assert frozen.num_parameters == 3 * 2 + 4 * 2


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("stage2", " (did you mean stage1?)"),
        ("backbon", " (did you mean backbone?)"),  # begins the paths of all of it
        ("stag", " (did you mean stage1?)"),
        ("n", ""),
        ("xyz", ""),
    ],
)
def test_a_word_that_names_no_part_is_refused(detector: keras.Model, word: str, guess: str) -> None:
    with pytest.raises(ValueError, match="these patterns cannot be frozen") as error:
        freeze(detector, [word])
    names = "backbone, stem, stage1, stage10, neck, head"
    assert f"{word!r} is not the name of a part{guess}; the parts are {names}" in str(error.value)
    assert not frozen_paths(detector)


def test_frozen_norms_count_as_frozen() -> None:
    """A norm of four vectors is frozen; its kernel is not."""
    images = keras.Input((4, 4, 3))
    block = ConvNorm(
        2,
        1,
        make_norm=partial(NORM, frozen=True),
        name="backbone",
    )
    model = keras.Model(images, block(images))
    frozen = freeze(model, [])
    assert frozen.layers == ("backbone/norm",)
    assert (len(frozen.variables), frozen.num_parameters) == (4, 8)
    assert [variable.path for variable in model.trainable_variables] == ["backbone/kernel"]
    assert "4 of the 4 frozen variables were not loaded" in frozen_at_random(frozen, loaded=())


def test_what_is_frozen_but_not_loaded_is_told(detector: keras.Model) -> None:
    assert frozen_at_random(freeze(detector, []), loaded=()) == ""
    frozen = freeze(detector, ["stem"])
    warning = frozen_at_random(frozen, loaded=())
    assert "5 of the 5 frozen variables were not loaded" in warning
    assert "backbone/stem/kernel" in warning
    assert "1 of the 5" in frozen_at_random(frozen, loaded=frozen.variables[1:])
    assert frozen_at_random(frozen, loaded=frozen.variables) == ""


def test_no_patterns_freeze_nothing(model: keras.Model) -> None:
    assert freeze(model, []) == ((), (), 0)


def backbone_of(kind: str) -> Any:
    if kind == "efficientnet":
        return EfficientNet(variant="lite0", drop_connect_rate=0.9, make_norm=NORM)
    drop_block = partial(DropBlock, keep_prob=0.5, size=1, schedule_steps=0)
    return ResNet(depth=18, drop_block=drop_block, make_norm=NORM)


@pytest.mark.parametrize("kind", ["efficientnet", "resnet"])
@pytest.mark.parametrize("patterns", [["backbone"], [r"backbone/.*(kernel|gamma)"]])
def test_a_frozen_backbone_computes_in_training_what_it_does_in_inference(
    kind: str, patterns: list[str]
) -> None:
    """Norms and drops; a pattern may leave out the seeds of drops."""
    images = keras.Input((32, 32, 3))
    backbone = backbone_of(kind)
    model = keras.Model(images, keras.layers.Dense(1, name="head")(backbone(images)[5]))
    some = np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype(np.float32)
    assert np.any(np.array(backbone(some, training=True)[5]) != np.array(backbone(some)[5]))
    freeze(model, patterns)
    np.testing.assert_array_equal(backbone(some, training=True)[5], backbone(some)[5])


def test_blocks_after_the_frozen_ones_still_drop() -> None:
    """Two of the five stages of a backbone; later ones skip 9 in 160 of the images and more."""
    images = keras.Input((32, 32, 3))
    backbone = backbone_of("efficientnet")
    model = keras.Model(images, keras.layers.Dense(1, name="head")(backbone(images)[5]))
    freeze(model, ["stem", "stage1", "stage2"])
    some = np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype(np.float32)
    first, second, inference = (backbone(some, training=drops) for drops in (True, True, False))
    np.testing.assert_array_equal(first[2], inference[2])
    assert np.any(np.array(first[5]) != np.array(second[5]))
