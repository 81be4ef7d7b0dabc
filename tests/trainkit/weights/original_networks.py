"""The original TensorFlow 1 networks, stated in the order in which their code made the layers.

`Layers` names variables as TensorFlow 1 did: a layer's name, and a number from its second use in
a scope on. Variables get random values when they are first asked for.
"""

import numpy as np
import tensorflow as tf


class Layers:
    """Makes variables by name, and applies them."""

    def __init__(self, draw, epsilon):
        self.draw = draw
        self.epsilon = epsilon
        self.rng = np.random.default_rng(0)
        self.values = {}
        self.uses = {}

    def variable(self, layer, part, shape):
        name = f"{layer}/{part}"
        self.values[name] = self.draw(name, shape, self.rng)
        return self.values[name]

    def unique(self, scope, name):
        number = self.uses[scope, name] = self.uses.get((scope, name), -1) + 1
        return f"{scope}{name}_{number}" if number else f"{scope}{name}"

    def conv(self, scope, inputs, filters, size, strides=1, fixed_padding=False, bias=False):
        layer = self.unique(scope, "conv2d")
        kernel = self.variable(layer, "kernel", (size, size, inputs.shape[-1], filters))
        padding = "SAME"
        if fixed_padding and strides > 1:  # of `conv2d_fixed_padding`
            before = (size - 1) // 2
            side = [before, size - 1 - before]
            inputs, padding = tf.pad(inputs, [[0, 0], side, side, [0, 0]]), "VALID"
        outputs = tf.nn.conv2d(inputs, kernel, strides, padding)
        return outputs + self.variable(layer, "bias", (filters,)) if bias else outputs

    def depthwise(self, scope, inputs, size, strides):
        layer = self.unique(scope, "depthwise_conv2d")
        kernel = self.variable(layer, "depthwise_kernel", (size, size, inputs.shape[-1], 1))
        return tf.nn.depthwise_conv2d(inputs, kernel, [1, strides, strides, 1], "SAME")

    def norm(self, scope, inputs, name="batch_normalization"):
        layer = self.unique(scope, name)
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (
            self.variable(layer, part, inputs.shape[-1:]) for part in parts
        )
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, self.epsilon)


def resnet50(layers, inputs, scope=""):
    """Features of levels 2 to 5; each first block makes its projection before the rest."""
    outputs = layers.conv(scope, inputs, 64, 7, strides=2, fixed_padding=True)
    outputs = tf.nn.relu(layers.norm(scope, outputs))
    outputs = tf.nn.max_pool2d(outputs, 3, 2, "SAME")
    features = {}
    for level, (filters, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for block in range(count):
            strides = 2 if block == 0 and level > 2 else 1
            shortcut = outputs
            if block == 0:
                shortcut = layers.conv(scope, outputs, 4 * filters, 1, strides, fixed_padding=True)
                shortcut = layers.norm(scope, shortcut)
            outputs = layers.conv(scope, outputs, filters, 1)
            outputs = tf.nn.relu(layers.norm(scope, outputs))
            outputs = layers.conv(scope, outputs, filters, 3, strides, fixed_padding=True)
            outputs = tf.nn.relu(layers.norm(scope, outputs))
            outputs = layers.norm(scope, layers.conv(scope, outputs, 4 * filters, 1))
            outputs = tf.nn.relu(outputs + shortcut)
        features[level] = outputs.numpy()
    return features


def efficientnet_b0(layers, inputs, scope="efficientnet-b0/", norm="tpu_batch_normalization"):
    """Features of levels 2 to 5. Blocks: repeats, kernel, strides, expansion, filters."""
    stem = f"{scope}stem/"
    outputs = layers.conv(stem, inputs, 32, 3, strides=2)
    outputs = tf.nn.silu(layers.norm(stem, outputs, norm))
    stages = (
        *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
        *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
    )
    features, index = {}, 0
    for stage, (repeats, size, strides, expansion, filters) in enumerate(stages, start=1):
        for repeat in range(repeats):
            block = f"{scope}blocks_{index}/"
            inputs = outputs
            if expansion > 1:
                outputs = layers.conv(block, outputs, inputs.shape[-1] * expansion, 1)
                outputs = tf.nn.silu(layers.norm(block, outputs, norm))
            outputs = layers.depthwise(block, outputs, size, 1 if repeat else strides)
            outputs = tf.nn.silu(layers.norm(block, outputs, norm))
            squeezed = tf.reduce_mean(outputs, [1, 2], keepdims=True)
            narrow = max(1, inputs.shape[-1] // 4)
            squeezed = tf.nn.silu(layers.conv(f"{block}se/", squeezed, narrow, 1, bias=True))
            excited = layers.conv(f"{block}se/", squeezed, outputs.shape[-1], 1, bias=True)
            outputs = tf.sigmoid(excited) * outputs
            outputs = layers.norm(block, layers.conv(block, outputs, filters, 1), norm)
            if repeat:
                outputs = outputs + inputs
            index += 1
        level = {2: 2, 3: 3, 5: 4, 7: 5}.get(stage)
        if level:
            features[level] = outputs.numpy()
    return features
