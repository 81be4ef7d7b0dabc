"""Detects the cores of this machine's CPU and the precision in which it is fast."""

import functools
import os
import re
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager

_REWRITE = "auto_mixed_precision_onednn_bfloat16"  # of TensorFlow's graphs, before they run


def available_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def multiplies_bfloat16() -> bool:
    """Returns whether TensorFlow has the CPU's instructions for bfloat16: AVX-512 BF16 or AMX.

    Only Linux reports them; elsewhere it is False. Without oneDNN TensorFlow does not use them, and
    its sums in bfloat16 lose small terms.
    """
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ("0", "false"):
        return False
    try:
        with open("/proc/cpuinfo") as file:
            return has_bfloat16_flags(file.read())
    except OSError:
        return False


def has_bfloat16_flags(cpuinfo: str) -> bool:
    """Returns whether the first processor in the text of /proc/cpuinfo has these instructions."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return bool(flags) and not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags[1].split())


@functools.cache
def gains_from_bfloat16() -> bool:
    """Returns whether TensorFlow convolves faster in bfloat16 on this CPU, summing in float32.

    Where the CPU has instructions for it one convolution is timed in either precision, a tenth of
    a second. They halve its processor time, and a fifth less is asked for, so that other load does
    not change the result, and with it the weights that a training ends with.
    """
    if not multiplies_bfloat16():
        return False
    import tensorflow as tf

    def seconds(dtype: tf.DType) -> float:
        with tf.device("CPU"):
            images, kernel = tf.ones([1, 40, 40, 128], dtype), tf.ones([3, 3, 128, 128], dtype)
            convolve = functools.partial(tf.nn.conv2d, images, kernel, 1, "SAME")
            timeit.timeit(convolve, number=2)  # the first makes buffers
            return timeit.timeit(convolve, timer=time.process_time, number=10)

    return seconds(tf.bfloat16) < 0.8 * seconds(tf.float32)


@contextmanager
def bfloat16_convolutions() -> Iterator[None]:
    """TensorFlow functions called inside convolve and multiply matrices in bfloat16 on the CPU.

    TensorFlow rewrites their graphs: what lies between convolutions, and what only adds to their
    results or picks from them, is in bfloat16 too. Weights, inputs, outputs and box coordinates
    stay in float32. No function that trains may be called inside.
    """
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options().get(_REWRITE, False)
    tf.config.optimizer.set_experimental_options({_REWRITE: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({_REWRITE: before})
