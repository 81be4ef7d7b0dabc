"""What patterns select, and what they say when they select nothing."""

from typing import Any

import keras
import pytest

from trainkit.training.freezing import freeze, frozen_paths, owning_layers


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
    assert "near are block_1/conv/kernel" in str(error.value)
    assert "(put .* before it to match inside: '.*conv/')" in str(error.value)


def test_every_wrong_pattern_is_told_and_nothing_is_frozen(model: keras.Model) -> None:
    patterns = ["head/", "r'block_1/conv/kernel'", "head/(", "bluck_10/conv/bias"]
    with pytest.raises(ValueError, match="patterns of what to freeze are wrong") as error:
        freeze(model, patterns)
    message = str(error.value)
    assert "\"r'block_1/conv/kernel'\" matches no variable" in message
    assert "near are block_1/conv/kernel" in message
    assert "'head/(' is not a regular expression" in message
    assert "'bluck_10/conv/bias' matches no variable" in message
    assert "near are block_10/conv/bias" in message
    assert len(model.trainable_variables) == 12
    assert not frozen_paths(model)


def test_no_patterns_freeze_nothing(model: keras.Model) -> None:
    assert freeze(model, []) == ((), (), 0)
