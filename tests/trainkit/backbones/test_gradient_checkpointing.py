import os
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.gradient_checkpointing import call_checkpointed
from tpudet.trainkit.backbones.inverted_residual import InvertedResidualBlock
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.mobilenet_v3 import MobileNetV3
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.backbones.seresnext import SEResNeXt

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)

BLOCKS = Path(__file__).with_name("checkpointed_blocks.py")


@pytest.fixture(scope="module")
def blocks():
    """The functions of checkpointed_blocks.py, which is also a command."""
    return SimpleNamespace(**runpy.run_path(str(BLOCKS)))


def run_blocks(backend, *args):
    process = subprocess.run(
        [sys.executable, BLOCKS, *args],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles faster
        },
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process.stdout


def three_steps(blocks, *, checkpointing, traced):
    network = blocks.make_network(blocks=2, checkpointing=checkpointing)
    images = tf.constant(blocks.make_images(16, 24))
    trained = network.trainable_variables

    def step():
        with tf.GradientTape() as tape:
            total = blocks.weighted_sum(network, images)
        gradients: Any = tape.gradient(total, [v.value for v in trained])
        for variable, gradient in zip(trained, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return total

    step = tf.function(step, autograph=False) if traced else step
    totals = {f"total{index}": step().numpy() for index in range(3)}
    return totals | {v.path: v.numpy() for v in network.variables}


@pytest.fixture(scope="module")
def plain(blocks):
    return three_steps(blocks, checkpointing=False, traced=False)


@pytest.mark.parametrize("traced", [True, False])
def test_three_steps_end_with_the_same_variables(blocks, plain, traced):
    """Weights to 1e-5; statistics moved three times, seeds and counters three steps on."""
    found = three_steps(blocks, checkpointing=True, traced=traced)
    assert found.keys() == plain.keys()
    for path, value in found.items():
        np.testing.assert_allclose(value, plain[path], rtol=1e-5, atol=1e-6, err_msg=path)
    assert found["backbone/stage1/block0/drop_block_conv1/calls"] == 3
    seeds = [value for path, value in found.items() if "seed" in path]
    assert len(seeds) == 2 * 3
    assert all(state[1] == 3 for state in seeds)


def assigned(blocks, frozen):
    """The values that a checkpointed step in a graph assigns, by path."""
    network = blocks.make_network(blocks=2, checkpointing=True)
    for layer in network._flatten_layers():
        if re.search(frozen, layer.path):
            layer.trainable = False
    images = tf.constant(blocks.make_images(16, 24))
    step = tf.function(lambda: network(images, training=True)[2], autograph=False)
    operations = step.get_concrete_function().graph.get_operations()
    handles = [op.inputs[0] for op in operations if op.type.startswith(("Assign", "ResourceApply"))]
    captures = {id(inner): outer for outer, inner in step.get_concrete_function().graph.captures}
    by_handle = {id(v.value.handle): v.path for v in network.variables}
    return sorted(by_handle[id(captures[id(handle)])] for handle in handles)


def test_only_what_moves_is_assigned(blocks):
    """Seeds, counters and moving statistics; of frozen norms no statistics, of a block nothing."""
    free = assigned(blocks, "nothing")
    assert len(free) == 2 + 2 * (2 * 2 + 3 * 2)
    assert not [path for path in free if path.endswith(("kernel", "gamma", "beta"))]
    for frozen, resting in (
        ("backbone/stage1/block0$", 2 * 2 + 3 * 2),
        ("stage1/block0/.*/norm$", 2 * 2),
    ):
        found = assigned(blocks, frozen)
        assert len(free) - len(found) == resting, frozen
        of_block = {path for path in free if "block0" in path}
        statistics = {path for path in of_block if "moving" in path}
        assert set(free) - set(found) == (of_block if resting > 4 else statistics)


@pytest.mark.parametrize("name", ["efficientnet", "mobilenet_v3", "resnet"])
def test_switch_reaches_every_block(name, monkeypatch):
    """Every block goes through it in training, none in inference."""
    make: Any = {
        "efficientnet": lambda: EfficientNet(
            variant="lite0", drop_connect_rate=0.2, gradient_checkpointing=True, make_norm=NORM
        ),
        "mobilenet_v3": lambda: MobileNetV3(
            max_level=4, gradient_checkpointing=True, make_norm=NORM
        ),
        "resnet": lambda: ResNet(depth=18, gradient_checkpointing=True, make_norm=NORM),
    }[name]
    called = []

    def recorded(layer, *inputs):
        called.append(layer.path)
        return layer(*inputs, training=True)

    module = "residual" if name == "resnet" else name
    monkeypatch.setattr(f"tpudet.trainkit.backbones.{module}.call_checkpointed", recorded)
    backbone = make()
    images = tf.zeros((1, 32, 32, 3))
    backbone(images)
    assert not called
    tf.function(backbone, autograph=False).get_concrete_function(images, training=True)
    blocks = {v.path.rsplit("/", 2)[0] for v in backbone.variables if v.path.endswith("/kernel")}
    blocks = {"/".join(path.split("/")[:3]) for path in blocks if "stage" in path}
    assert sorted(called) == sorted(blocks)
    assert SEResNeXt(depth=50, gradient_checkpointing=True, make_norm=NORM).gradient_checkpointing


def test_block_with_drop_connect_is_the_same():
    """Which images skip the block is drawn outside and handed in; two of four do."""
    block = InvertedResidualBlock(
        kernel_size=3,
        strides=1,
        filters_in=8,
        filters_expanded=48,
        filters_out=8,
        activation="silu",
        squeezed=2,
        drop_rate=0.5,
        # Statistics stay, or the second time would be rounded otherwise.
        conv_norm=partial(ConvNorm, make_norm=partial(NORM, momentum=1.0)),
        name="block",
    )
    block.build((None, None, None, 8))
    images = tf.constant(np.random.default_rng(0).normal(size=(4, 6, 6, 8)).astype(np.float32))
    drawn = tf.constant([0.1, 0.9, 0.8, 0.2])
    results = []
    for call in (
        lambda *args: block(*args, training=True),
        lambda *a: call_checkpointed(block, *a),
    ):
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs: Any = call(images, drawn)
            total = tf.reduce_sum(tf.square(outputs))
        sources = [images, *(v.value for v in block.trainable_variables)]
        results.append([outputs.numpy(), *(g.numpy() for g in tape.gradient(total, sources))])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
    skipped = np.all(results[1][0] == images.numpy(), axis=(1, 2, 3))
    assert skipped.tolist() == [True, False, False, True]


def test_jax_gives_the_same_and_keeps_less(tmp_path):
    """Kept for the backward pass of three blocks: under half of the bytes."""
    run_blocks("jax", tmp_path / "results.npz")
    with np.load(tmp_path / "results.npz") as results:
        found = dict(results)
    plain = {name: value for name, value in found.items() if name.startswith("plain/")}
    assert len(plain) == 1 + 3 + 2 + 3 * (2 * 5 + 3 * 2)
    for name, value in plain.items():
        other = found[name.replace("plain/", "checkpointed/")]
        np.testing.assert_allclose(other, value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert found["bytes/checkpointed"] < 0.5 * found["bytes/plain"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_tensorflow_needs_less_memory():
    """Peak of a step through twelve blocks of 512x256x16, 8 MiB a tensor: 100 MB less."""
    checkpointed, plain = map(int, run_blocks("tensorflow").split())
    assert plain - checkpointed > 100
