"""The precision of a run."""

from typing import Any, cast

import keras
import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.build_engine import build_engine, set_precision
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import choose_tensorflow_devices


def test_float16_is_refused_on_a_cpu() -> None:
    with pytest.raises(UserError, match="mixed_float16, and the run is on a CPU.* Use float32"):
        set_precision(TrainConfig(precision="mixed_float16"), choose_tensorflow_devices("cpu"))
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    ("precision", "policy"), [("auto", "float32"), ("mixed_bfloat16", "mixed_bfloat16")]
)
def test_other_precisions_become_the_policy(precision: str, policy: str) -> None:
    train = TrainConfig(precision=precision)  # pyright: ignore[reportArgumentType]
    set_precision(train, choose_tensorflow_devices("cpu"))
    assert keras.config.dtype_policy().name == policy


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
