"""Compares the gradients of each kind of layer in reduced precision with those in float32.

For each Keras dtype policy and variable it prints the norm of the difference relative to the norm
in float32. Inputs and upstream gradients are rounded to the policy's precision first and are the
same for both, so that the table shows what the layer itself loses: rounding of activations costs
well below 1 %, sums that lose their small terms cost 50 % and more. JAX has one policy: it is not
trained with in float16.

With `--model_dir` it does so for a whole detector that `tpudet train` has trained, in bfloat16, on
batches of its training data. Each layer rounds what it hands on, so the gradients of a batch differ
by more than those of a layer. Whether that noise has a direction, in which it would add up over
steps, is shown by the share of the mean gradient in float32 that the mean in bfloat16 has: without
a direction it is 1.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

POLICIES = ("mixed_bfloat16", "mixed_float16")
CHANNELS = 64
_BOXES = 512  # of an image, around two objects: as many as two-stage detectors are trained on


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--side", type=int, default=80, help="of the feature maps in pixels")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--backend", choices=("tensorflow", "jax"), default="tensorflow")
    parser.add_argument("--model_dir", help="compare a trained detector instead, on TensorFlow")
    parser.add_argument("--step", default="latest", help="its checkpoint (%(default)s)")
    parser.add_argument("--batches", type=int, default=6, help="of its training data (%(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.backend == "jax":
        os.environ["KERAS_BACKEND"] = "jax"
    if arguments.model_dir:
        compare_trained(arguments.model_dir, step=arguments.step, num_batches=arguments.batches)
        return 0
    policies = POLICIES if arguments.backend == "tensorflow" else POLICIES[:1]
    print("| layer | variable | " + " | ".join(policies) + " |")
    print("|---" * (len(policies) + 2) + "|")
    for name, build in layers().items():
        errors = [
            gradient_errors(build, policy, side=arguments.side, batch_size=arguments.batch_size)
            for policy in policies
        ]
        for variable in errors[0]:
            cells = " | ".join(f"{100 * found[variable]:.2g} %" for found in errors)
            print(f"| {name} | {variable} | {cells} |")
    return 0


def layers() -> dict[str, Callable[[], Any]]:
    """Returns builders of the layers by name; each maps `CHANNELS` channels to as many."""
    import functools

    from tpudet.detection.modeling.bifpn import Fusion
    from tpudet.detection.modeling.roi_heads import FullyConnected, Upsample
    from tpudet.trainkit.backbones.batch_norm import BatchNorm
    from tpudet.trainkit.backbones.layers import Conv, ConvNorm

    make_norm = functools.partial(BatchNorm, momentum=0.9, epsilon=1e-3)
    conv_norm = functools.partial(ConvNorm, make_norm=make_norm)
    predict = functools.partial(Conv, CHANNELS, 3, float32_outputs=True, name="predict")
    return {
        "predictor": predict,
        "separable predictor": functools.partial(predict, kind="separable"),
        "3x3 convolution": functools.partial(Conv, CHANNELS, 3, name="conv"),
        "1x1 convolution": functools.partial(Conv, CHANNELS, 1, name="conv"),
        "depthwise convolution": functools.partial(Conv, CHANNELS, 5, kind="depthwise"),
        "3x3 convolution, norm": functools.partial(conv_norm, CHANNELS, 3, activation="silu"),
        "depthwise convolution, norm": functools.partial(
            conv_norm, CHANNELS, 3, kind="depthwise", activation="silu"
        ),
        "fully connected": functools.partial(FullyConnected, CHANNELS, name="dense"),
        "transposed convolution": functools.partial(Upsample, CHANNELS, name="upsample"),
        "squeeze and excitation": _Squeezed,
        "RoIAlign": _Pooled,
        "fusion of BiFPN": lambda: _Fused(
            Fusion(
                input_levels=(3, 3),
                level=3,
                num_filters=CHANNELS,
                conv_norm=functools.partial(conv_norm, CHANNELS),
                name="fusion",
            )
        ),
    }


class _Fused:
    """A fusion of two maps that are made from one."""

    def __init__(self, fusion: Any) -> None:
        self._fusion = fusion

    def build(self, shape: tuple[int | None, ...]) -> None:
        self._fusion.build([shape, shape])

    @property
    def trainable_variables(self) -> list[Any]:
        return self._fusion.trainable_variables

    def __call__(self, inputs: Any, training: bool) -> Any:
        return self._fusion([inputs, inputs[:, ::-1]], training=training)


class _Squeezed:
    """Squeeze and excitation alone, its gates nearly open: 0.993, where their slope is small."""

    def __init__(self) -> None:
        from tpudet.trainkit.backbones.layers import Conv

        self._squeeze, self._excite = Conv(8, 1, name="squeeze"), Conv(CHANNELS, 1, name="excite")

    def build(self, shape: tuple[int | None, ...]) -> None:
        self._squeeze.build((None, 1, 1, shape[-1]))
        self._excite.build((None, 1, 1, 8))
        self._excite.bias.assign(np.full(CHANNELS, 5.0))

    @property
    def trainable_variables(self) -> list[Any]:
        return [*self._squeeze.trainable_variables, *self._excite.trainable_variables]

    def __call__(self, inputs: Any) -> Any:
        from tpudet.trainkit.backbones.layers import squeeze_and_excite

        return squeeze_and_excite(inputs, self._squeeze, self._excite, activation="silu")


class _Pooled:
    """A map made by a 1x1 convolution, pooled below boxes around two objects of each image."""

    def __init__(self) -> None:
        from tpudet.trainkit.backbones.layers import Conv

        self._conv = Conv(CHANNELS, 1, name="lateral")

    def build(self, shape: tuple[int | None, ...]) -> None:
        self._conv.build(shape)

    @property
    def trainable_variables(self) -> list[Any]:
        return self._conv.trainable_variables

    def __call__(self, inputs: Any) -> Any:
        import keras

        from tpudet.detection.ops.roi_align import roi_align

        batch, side = inputs.shape[:2]
        random = np.random.default_rng(2)
        objects = np.array([[0.1, 0.2, 0.4, 0.6], [0.5, 0.3, 0.9, 0.7]])[np.arange(_BOXES) % 2]
        boxes = 8 * side * (objects + random.normal(0, 0.02, (batch, _BOXES, 4)))
        maps = {3: self._conv(inputs)}
        boxes = keras.ops.convert_to_tensor(boxes, "float32")
        return roi_align(maps, boxes, output_size=7, sampling_ratio=2, aligned=True)


def gradient_errors(
    build: Callable[[], Any], policy: str, *, side: int, batch_size: int
) -> dict[str, float]:
    """Returns the relative error of each variable's gradient, by the end of its path.

    Args:
        build: makes the layer.
        policy: Keras dtype policy.
        side: height and width of its input in pixels.
        batch_size: B.
    """
    from keras import ops

    half = policy.removeprefix("mixed_")
    shape = (batch_size, side, side, CHANNELS)
    inputs = ops.cast(np.random.default_rng(0).normal(0.5, 1.0, shape), half)
    exact = _gradients(build, "float32", ops.cast(inputs, "float32"), half)
    found = _gradients(build, policy, inputs, half)
    return {path: _relative_error(found[path], exact[path]) for path in exact}


def _gradients(
    build: Callable[[], Any], policy: str, inputs: Any, half: str
) -> Mapping[str, np.ndarray]:
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    try:
        layer = build()
        layer.build((None, None, None, CHANNELS))
    finally:
        keras.config.set_dtype_policy(before)
    variables = layer.trainable_variables
    training = {"training": True} if "norm" in "".join(v.path for v in variables) else {}
    differentiate = (
        _differentiate_jax if os.environ.get("KERAS_BACKEND") == "jax" else _differentiate
    )
    found = differentiate(lambda inputs: layer(inputs, **training), inputs, variables, half)
    paths = [variable.path.partition("/")[2] for variable in variables]
    if len(set(paths)) < len(paths):  # of several layers
        paths = [variable.path for variable in variables]
    return dict(zip(paths, found, strict=True))


def _upstream(shape: Sequence[int], half: str) -> Any:
    """As of a class that is absent nearly everywhere: small numbers of one sign."""
    from keras import ops

    return ops.cast(np.random.default_rng(1).uniform(0, 0.02, shape), half)


def _differentiate(
    call: Callable[[Any], Any], inputs: Any, variables: Sequence[Any], half: str
) -> list[np.ndarray]:
    import tensorflow as tf

    @tf.function(autograph=False)
    def compute(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = call(inputs)
        upstream = tf.cast(_upstream(outputs.shape, half), outputs.dtype)
        return tape.gradient(outputs, [variable.value for variable in variables], upstream)

    return [found.numpy() for found in compute(inputs)]


def _differentiate_jax(
    call: Callable[[Any], Any], inputs: Any, variables: Sequence[Any], half: str
) -> list[np.ndarray]:
    import jax
    import keras

    @jax.jit
    def compute(inputs: Any, values: Any) -> Any:
        def outputs_of(values: Any) -> Any:
            mapping = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return call(inputs)

        outputs, pull_back = jax.vjp(outputs_of, values)
        return pull_back(_upstream(outputs.shape, half).astype(outputs.dtype))[0]

    return [np.asarray(g) for g in compute(inputs, [variable.value for variable in variables])]


class GradientNoise(NamedTuple):
    """The gradients of a variable in bfloat16 beside those in float32, over some batches."""

    relative_error: float  # of one batch, the mean of all
    share: float  # of the mean gradient in float32 that the mean in bfloat16 has


def compare_trained(model_dir: str, *, step: str, num_batches: int) -> None:
    """Prints the ranges of both measures over all kernels, and over all scales and shifts."""
    gradients = {
        policy: _detector_gradients(model_dir, step, num_batches, policy)
        for policy in ("float32", "mixed_bfloat16")
    }
    noise = {
        path: gradient_noise(exact, gradients["mixed_bfloat16"][path])
        for path, exact in gradients["float32"].items()
    }
    print("| variables | error of a batch, median (largest) | share of the mean gradient |")
    print("|---|---|---|")
    for kind, names in {"kernels": ("kernel",), "gamma and beta": ("gamma", "beta")}.items():
        found = [value for path, value in noise.items() if path.endswith(names)]
        errors = [100 * one.relative_error for one in found]
        shares = [one.share for one in found]
        print(
            f"| {len(found)} {kind} | {np.median(errors):.1f} % ({max(errors):.1f} %) | "
            f"{min(shares):.3f} to {max(shares):.3f} |"
        )


def gradient_noise(exact: np.ndarray, found: np.ndarray) -> GradientNoise:
    """Compares gradients [batches, ...], not 0."""
    errors = [_relative_error(one, other) for one, other in zip(found, exact, strict=True)]
    mean, other_mean = exact.mean(axis=0), found.mean(axis=0)
    return GradientNoise(float(np.mean(errors)), float((mean * other_mean).sum() / (mean**2).sum()))


def _detector_gradients(
    model_dir: str, step: str, num_batches: int, policy: str
) -> dict[str, np.ndarray]:
    import keras
    import tensorflow as tf

    from tpudet.detection.build_detector import build_train_dataset, restore_task
    from tpudet.detection.config import load_experiment
    from tpudet.trainkit.record_splits import find_split
    from tpudet.trainkit.training.model_dir import load_run, select_checkpoint

    run = load_run(model_dir, load_experiment)
    data = run.config.data
    split = find_split(data.directory, data.train_split, [entry.name for entry in run.classes])
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        task = restore_task(run, select_checkpoint(model_dir, step))
    finally:
        keras.config.set_dtype_policy(before)
    variables = task.model.trainable_variables

    @tf.function(autograph=False)
    def compute(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = task.losses(batch)["loss"]
        return tape.gradient(loss, [variable.value for variable in variables])

    found = [
        compute(batch) for batch in build_train_dataset(run.config, split, 0).take(num_batches)
    ]
    values = [np.stack([one.numpy() for one in batches]) for batches in zip(*found, strict=True)]
    return {v.path: value.astype(np.float64) for v, value in zip(variables, values, strict=True)}


def _relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
