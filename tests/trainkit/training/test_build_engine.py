"""The precision of a run."""

from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import devices
from tpudet.trainkit.training.build_engine import build_engine, resolve_precision, set_precision
from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import choose_tensorflow_devices


def test_float16_is_refused_on_a_cpu() -> None:
    message = "mixed_float16, and the run is on a CPU.* Use float32 or mixed_bfloat16"
    with pytest.raises(UserError, match=message):
        set_precision(TrainConfig(precision="mixed_float16"), choose_tensorflow_devices("cpu"))
    assert keras.config.dtype_policy().name == "float32"


def test_what_a_gpu_trained_in_float16_is_evaluated_in_float32_on_a_cpu() -> None:
    train = TrainConfig(precision="mixed_float16")
    set_precision(train, choose_tensorflow_devices("cpu"), trains=False)
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    ("precision", "policy"), [("auto", "float32"), ("mixed_bfloat16", "mixed_bfloat16")]
)
def test_other_precisions_become_the_policy(precision: str, policy: str) -> None:
    train = TrainConfig(precision=precision)  # pyright: ignore[reportArgumentType]
    set_precision(train, choose_tensorflow_devices("cpu"))
    assert keras.config.dtype_policy().name == policy


@pytest.mark.parametrize("gains", [True, False])
def test_auto_becomes_what_suits_the_devices_and_a_resumed_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gains: bool
) -> None:
    """Begun on one device and resumed on another; an attempt that saved nothing binds nobody."""
    other = {True: "mixed_bfloat16", False: "float32"}
    monkeypatch.setattr(devices, "choose_precision", lambda *device: other[gains])
    model_dir, auto = str(tmp_path), TrainConfig()
    began = resolve_precision(auto, choose_tensorflow_devices("cpu"), model_dir)
    assert began.precision == other[gains]
    (tmp_path / "config.yaml").write_text(f"train: {{precision: {began.precision}, seed: 1}}\n")

    monkeypatch.setattr(devices, "choose_precision", lambda *device: other[not gains])
    moved = choose_tensorflow_devices("cpu")
    assert resolve_precision(auto, moved, model_dir).precision == other[not gains]
    checkpoints = Checkpoints(model_dir, keep=1)
    checkpoints.prepare()
    checkpoints.save({"global_step": np.asarray(7, np.int64)})
    checkpoints.wait()
    assert resolve_precision(auto, moved, model_dir).precision == other[gains]
    asked = TrainConfig(precision="float32")
    assert resolve_precision(asked, moved, model_dir) == asked


def test_a_run_of_before_this_was_said_takes_what_suits_the_devices(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("train: {precision: auto}\n")
    found = resolve_precision(TrainConfig(), choose_tensorflow_devices("cpu"), str(tmp_path))
    assert found.precision == "float32"


@pytest.mark.parametrize("changes", [{"accumulate_steps": 2}, {"shard_state": True}])
def test_what_only_jax_has_is_refused_on_tensorflow(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="both need --backend jax"):
        build_engine(
            cast(Any, None),
            TrainConfig(**changes),
            devices=choose_tensorflow_devices("cpu"),
            make_dataset=cast(Any, None),
            record_numbers=cast(Any, None),
        )


def test_float16_is_refused_with_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a TPU as well, where it is not computed."""
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(UserError, match="no loss scaling.* Use mixed_bfloat16, which TPUs"):
        set_precision(TrainConfig(precision="mixed_float16"), choose_tensorflow_devices("cpu"))


def test_a_run_in_float16_is_evaluated_beside_the_training_on_a_cpu() -> None:
    train, cpu = TrainConfig(precision="mixed_float16"), choose_tensorflow_devices("cpu")
    assert resolve_precision(train, cpu, None, trains=False).precision == "float32"
    assert resolve_precision(train, cpu, None).precision == "mixed_float16"  # which is refused
