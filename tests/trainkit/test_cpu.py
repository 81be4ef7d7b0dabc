"""Which CPUs multiply in bfloat16, and convolutions rewritten to it."""

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit import cpu
from tpudet.trainkit.cpu import bfloat16_convolutions, has_bfloat16_flags, multiplies_bfloat16


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse2 avx2 avx512f", False),
        ("fpu avx512f avx512_bf16 avx512_vnni", True),
        ("fpu amx_tile amx_bf16", True),
        ("fpu avx512_bf16_of_another_kind", False),
    ],
)
def test_flags_of_a_processor(flags: str, expected: bool) -> None:
    text = f"processor\t: 0\nmodel name\t: any\nflags\t\t: {flags}\nbugs\t\t: avx512_bf16\n"
    assert has_bfloat16_flags(text) is expected


def test_a_machine_that_tells_no_flags_has_none() -> None:
    assert not has_bfloat16_flags("Features : asimd bf16\n")


def test_convolutions_in_bfloat16_agree_to_its_rounding() -> None:
    """Inside of the block only; 8 bits of mantissa are 0.2 % a number."""
    random = np.random.default_rng(0)
    images = tf.constant(random.normal(size=(1, 16, 16, 32)), tf.float32)
    kernel = tf.constant(random.normal(size=(3, 3, 32, 32)), tf.float32)

    def convolve() -> np.ndarray:
        outputs = tf.function(lambda: tf.nn.conv2d(images, kernel, 1, "SAME"))()
        assert outputs.dtype == tf.float32
        return outputs.numpy()

    exact = convolve()
    with bfloat16_convolutions():
        rounded = convolve()
    np.testing.assert_array_equal(convolve(), exact)
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert error < 0.004
    assert bool(error > 0) == multiplies_bfloat16()


@pytest.mark.parametrize(("flags", "onednn"), [("amx_bf16", "0"), ("amx_bf16", "false"), ("", "1")])
def test_without_onednn_or_instructions_nothing_is_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, flags: str, onednn: str
) -> None:
    """Both precisions are as fast then, and TensorFlow's own sums lose small terms."""
    monkeypatch.setattr(cpu, "has_bfloat16_flags", lambda cpuinfo: bool(flags))
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    monkeypatch.setattr(cpu, "multiplies_bfloat16", multiplies_bfloat16.__wrapped__)
    monkeypatch.setattr(cpu.timeit, "timeit", lambda *_, **__: pytest.fail("it was timed"))
    assert not cpu.multiplies_bfloat16()
    assert not cpu.gains_from_bfloat16()
