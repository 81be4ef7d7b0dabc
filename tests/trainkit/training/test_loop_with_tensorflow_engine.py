"""The loop with the TensorFlow engine: resumed bit for bit, stopped inside one long call."""

import dataclasses
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tpudet.trainkit.training import loop
from tpudet.trainkit.training.checkpoints import list_checkpoints, read_checkpoint
from tpudet.trainkit.training.devices import choose_tensorflow_devices
from tpudet.trainkit.training.evaluator import Evaluation
from tpudet.trainkit.training.optimizers import LARS, Momentum, RMSprop, decayed_variables
from tpudet.trainkit.training.run_log import Ledger
from tpudet.trainkit.training.schedules import Schedule, after_warmup, cosine_cyclic
from tpudet.trainkit.training.tensorflow_engine import TensorFlowEngine

SETTINGS = loop.RunSettings(
    total_steps=10,
    iterations_per_loop=3,
    log_every_steps=2,
    checkpoint_every_steps=3,
    keep_checkpoints=5,
)


class LineTask:
    """Fits y = 3 x, with the model's variables as the only state."""

    def __init__(self) -> None:
        self.model: keras.Model = keras.Sequential(
            [keras.Input([1]), keras.layers.Dense(1, name="line")], name="net"
        )

    def losses(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        return {"loss": tf.reduce_mean((self.model(x, training=True) - y) ** 2)}

    def predict(self, batch: Any) -> Any:
        return self.model(batch[0])


MakeOptimizer = Callable[[Schedule, keras.Model], keras.Optimizer]


def make_momentum(schedule: Schedule, model: keras.Model) -> keras.Optimizer:
    return Momentum(schedule, momentum=0.9, nesterov=False)


def make_rmsprop(schedule: Schedule, model: keras.Model) -> keras.Optimizer:
    return RMSprop(schedule, rho=0.9, momentum=0.9, epsilon=1e-3)


def make_lars(schedule: Schedule, model: keras.Model) -> keras.Optimizer:
    return LARS(
        schedule,
        weight_decay=0.01,
        decayed=decayed_variables(model),
        momentum=0.9,
        trust_coefficient=0.001,
    )


def make_line_engine(make_optimizer: MakeOptimizer = make_momentum) -> TensorFlowEngine:
    def make_dataset(start_record: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(start_record, 2**40).batch(4, drop_remainder=True)

        def example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            x = tf.sin(tf.cast(number, tf.float32))[:, None]
            return x, 3 * x

        return numbers.map(example)

    keras.utils.set_random_seed(0)
    devices = choose_tensorflow_devices("cpu")
    with devices.scope():
        task = LineTask()
        optimizer = make_optimizer(
            after_warmup(
                cosine_cyclic(peak=0.05, trough_step=4),
                warmup_start=0.0,
                peak=0.05,
                warmup_steps=2,
            ),
            task.model,
        )
    return TensorFlowEngine(
        task=task,
        optimizer=optimizer,
        devices=devices,
        make_dataset=make_dataset,
        batch_size=4,
        ema_decay=0.9,
    )


def run_line(
    model_dir: str, engine: TensorFlowEngine, eval_every_steps: int = 4, **changes: int
) -> int:
    def evaluate(step: int) -> Evaluation:
        return Evaluation({"AP50": float(engine.snapshot()["net/line/kernel"][0, 0])}, {})

    return loop.train_and_eval(
        engine=engine,
        model_dir=model_dir,
        settings=dataclasses.replace(SETTINGS, **changes),
        evaluation=loop.EvaluationSettings(
            evaluate=evaluate,
            every_steps=eval_every_steps,
            best_metric="AP50",
            headline=["AP50"],
        ),
    )


@pytest.mark.parametrize(
    ("make_optimizer", "slots"),
    [
        (make_momentum, {"momentum"}),
        (make_rmsprop, {"momentum", "velocity"}),
        (make_lars, {"momentum"}),
    ],
)
def test_the_tensorflow_engine_stopped_and_resumed_ends_bit_for_bit_alike(
    ram_dir: str, make_optimizer: MakeOptimizer, slots: set[str]
) -> None:
    undisturbed = f"{ram_dir}/undisturbed"
    assert run_line(undisturbed, make_line_engine(make_optimizer)) == loop.EXIT_FINISHED
    resumed = f"{ram_dir}/resumed"
    run_line(resumed, make_line_engine(make_optimizer), total_steps=5)
    run_line(resumed, make_line_engine(make_optimizer))
    expected, found = read_checkpoint(undisturbed), read_checkpoint(resumed)
    kernel_slots = {key for key in found if key.startswith("optimizer/net/line/kernel/")}
    assert kernel_slots == {f"optimizer/net/line/kernel/{slot}" for slot in slots}
    assert {"net/line/kernel", "ema/net/line/kernel", "global_step", "records_consumed"} <= set(
        found
    )
    assert int(found["records_consumed"]) == 40
    assert {key: value.tobytes() for key, value in found.items()} == {
        key: value.tobytes() for key, value in expected.items()
    }
    evaluation = [line for line in Ledger(undisturbed).lines() if line["kind"] == "eval"][-1]
    assert evaluation["AP50"] == pytest.approx(float(expected["ema/net/line/kernel"][0, 0]))


def test_a_signal_stops_the_tensorflow_engine_inside_one_long_call(
    ram_dir: str, act_when: Callable[..., threading.Thread]
) -> None:
    engine = make_line_engine()
    never = 300_000  # a minute of steps
    sender = act_when(lambda: engine.step > 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    code = run_line(
        ram_dir,
        engine,
        total_steps=never,
        eval_every_steps=never,
        iterations_per_loop=never,
        log_every_steps=never,
        checkpoint_every_steps=never,
    )
    sender.join()
    assert code == loop.EXIT_START_AGAIN
    assert 0 < engine.step < never
    assert [found.step for found in list_checkpoints(ram_dir)] == [engine.step]
