"""Blocks with and without gradient checkpointing, and a command that says what each costs.

`test_gradient_checkpointing.py` runs this file in a process of its own: on JAX for gradients and
the bytes that are kept for the backward pass, on TensorFlow for the peak of the process's memory.
"""

import functools
import re
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.drop_block import DropBlock
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.residual import ResidualBlock, ResidualNetwork, basic_convs

NORM = functools.partial(BatchNorm, momentum=0.99, epsilon=1e-3)

CHANNELS = 16


def make_network(*, blocks: int, checkpointing: bool, dropping: bool = True) -> ResidualNetwork:
    """A stem and one stage of blocks with moving statistics, seeds and counters; weights drawn."""
    conv_norm = functools.partial(ConvNorm, make_norm=NORM)
    drop_block = functools.partial(DropBlock, keep_prob=0.9, size=3, schedule_steps=2)

    def block(stage: int, index: int) -> ResidualBlock:
        return ResidualBlock(
            convs=basic_convs(conv_norm, filters=CHANNELS, strides=1),
            shortcut=None,
            drop_block=drop_block if dropping else None,
            seed=10 * index,
            name=f"block{index}",
        )

    network = ResidualNetwork(
        stem=conv_norm(CHANNELS, 3, strides=2, name="conv"),
        blocks_per_stage=[blocks],
        block=block,
        max_level=2,
        symmetric_pooling=False,
        gradient_checkpointing=checkpointing,
        name="backbone",
    )
    network.build((None, None, None, 3))
    rng = np.random.default_rng(0)
    for variable in network.trainable_variables:
        variable.assign(rng.normal(0.5, 0.3, variable.shape))
    return network


def make_images(height: int, width: int, batch: int = 2) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(batch, height, width, 3)).astype(np.float32)


def weighted_sum(network: ResidualNetwork, images: Any) -> Any:
    return keras.ops.mean(keras.ops.square(network(images, training=True)[2]))


def on_jax(results_path: str) -> None:
    import jax

    results: dict[str, Any] = {}
    for checkpointing in (False, True):
        network = make_network(blocks=3, checkpointing=checkpointing)
        images = make_images(32, 48)
        trained, others = network.trainable_variables, network.non_trainable_variables

        def total(values, moving, trained=trained, others=others, network=network, images=images):
            state = [*zip(trained, values), *zip(others, moving)]  # noqa: B905
            with keras.StatelessScope(state_mapping=state) as scope:
                found = weighted_sum(network, images)
            return found, [scope.get_current_value(variable) for variable in others]

        gradient = jax.jit(jax.value_and_grad(total, has_aux=True))
        moving = [v.value for v in others]
        _, moving = gradient([v.value for v in trained], moving)[0]
        # The second time squares go.
        (found, moving), gradients = gradient([v.value for v in trained], moving)
        name = "checkpointed" if checkpointing else "plain"
        results |= {f"{name}/total": found}
        results |= {f"{name}/{v.path}": g for v, g in zip(trained, gradients, strict=True)}
        results |= {f"{name}/{v.path}": x for v, x in zip(others, moving, strict=True)}

        def backward(values, total=total, moving=moving):
            return jax.vjp(lambda values: total(values, moving)[0], values)[1]

        kept = jax.tree.leaves(jax.eval_shape(backward, [v.value for v in trained]))
        results[f"bytes/{name}"] = sum(x.size * x.dtype.itemsize for x in kept)
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in results.items()}
    np.savez(results_path, **arrays)


def peak_memory() -> int:
    """Most MB that this process has had; what `getrusage` says begins with its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


def on_tensorflow() -> None:
    """Prints the peak of memory in MB: after a checkpointed step, and after a plain one."""
    import tensorflow as tf

    images = tf.constant(make_images(2048, 1024, batch=1))
    peaks = []
    for checkpointing in (True, False):
        network = make_network(blocks=12, checkpointing=checkpointing, dropping=False)

        @tf.function(autograph=False)
        def step(network=network):
            with tf.GradientTape() as tape:
                total = weighted_sum(network, images)
            return tape.gradient(total, [v.value for v in network.trainable_variables])

        step()
        peaks.append(peak_memory())
    print(*peaks)


if __name__ == "__main__":
    on_jax(sys.argv[1]) if keras.backend.backend() == "jax" else on_tensorflow()
