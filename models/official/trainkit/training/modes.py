"""Runs a training in one of its modes: train, eval, or both in turn."""

import logging
from typing import Literal

from tpudet.trainkit.training import loop
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.evaluator import EvaluationSettings
from tpudet.trainkit.training.run import NonfiniteLossError, RunSettings

Mode = Literal["train", "eval", "train_and_eval"]

EXIT_FAILED = 1

logger = logging.getLogger(__name__)


def run_mode(
    mode: Mode,
    train: TrainConfig,
    *,
    engine: Engine,
    model_dir: str,
    evaluation: EvaluationSettings | None,
    eval_timeout: float | None = None,
) -> int:
    """Trains and evaluates until the run is finished, interrupted, or its loss is not finite.

    Args:
        mode: "eval" evaluates the checkpoints that another process writes.
        train: the config of the run.
        engine: built for this model and input.
        model_dir: of the run.
        evaluation: how the model is evaluated; None for mode "train".
        eval_timeout: seconds without a new checkpoint after which mode "eval" ends; None: never.

    Returns:
        The exit code of the process: 0 finished, 75 stopped by a signal, 1 failed.
    """
    settings = RunSettings(
        total_steps=train.total_steps,
        iterations_per_loop=train.iterations_per_loop,
        log_every_steps=train.log_every_steps,
        checkpoint_every_steps=train.checkpoint_every_steps,
        keep_checkpoints=train.keep_checkpoints,
    )
    try:
        if evaluation is None:
            return loop.train(engine=engine, model_dir=model_dir, settings=settings)
        if mode == "eval":
            return loop.evaluate_checkpoints(
                engine=engine,
                model_dir=model_dir,
                total_steps=settings.total_steps,
                evaluation=evaluation,
                timeout_seconds=eval_timeout,
            )
        return loop.train_and_eval(
            engine=engine, model_dir=model_dir, settings=settings, evaluation=evaluation
        )
    except NonfiniteLossError as error:  # its message says all; a traceback would hide it
        logger.error("%s", error)
        return EXIT_FAILED
