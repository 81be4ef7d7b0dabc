"""Runs a training in one of its modes: train, eval, or both in turn."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.training import loop
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.evaluator import EvaluationSettings
from tpudet.trainkit.training.run import NonfiniteLossError, RunSettings

Mode = Literal["train", "eval", "train_and_eval"]

EXIT_FAILED = 1

logger = logging.getLogger(__name__)


@contextmanager
def claim_model_dir(model_dir: str, mode: Mode, *, is_chief: bool) -> Iterator[Callable[[], None]]:
    """Claims what a mode writes: the training, its evaluations with `best/`, or both.

    Mode "eval" therefore runs beside mode "train", and no other two processes do.

    Args:
        model_dir: of the run; created if needed.
        mode: of the run.
        is_chief: whether this process writes; others claim nothing.

    Yields:
        A function to call before each write, which raises ClaimError once a claim is lost.

    Raises:
        ClaimError: another process holds a claim; names it.
    """
    kinds = {"train": ("train",), "eval": ("eval",), "train_and_eval": ("train", "eval")}[mode]
    outputs = {"train": f"the training in {model_dir}", "eval": f"the evaluations in {model_dir}"}
    with ExitStack() as stack:
        claims = [
            stack.enter_context(Claim(f"{model_dir}/{kind}.claim.json", output=outputs[kind]))
            for kind in (kinds if is_chief else ())
        ]

        def verify() -> None:
            for claim in claims:
                claim.verify()

        yield verify


def run_mode(
    mode: Mode,
    train: TrainConfig,
    *,
    engine: Engine,
    model_dir: str,
    evaluation: EvaluationSettings | None,
    eval_timeout: float | None = None,
    deadline: float = math.inf,
    advice_if_slow: str = "",
    verify: Callable[[], None] = lambda: None,
) -> int:
    """Trains and evaluates until the run is finished, interrupted, or its loss is not finite.

    Args:
        mode: "eval" evaluates the checkpoints that another process writes.
        train: the config of the run.
        engine: built for this model and input.
        model_dir: of the run.
        evaluation: how the model is evaluated; None for mode "train".
        eval_timeout: seconds without a new checkpoint after which mode "eval" ends; None: never.
        deadline: when to save and stop, by `time.monotonic`.
        advice_if_slow: what to do if the run will take hours, in words.
        verify: from `claim_model_dir`.

    Returns:
        The exit code of the process: 0 finished, 1 failed, and those of `loop` for other ends.

    Raises:
        UserError: several hosts in mode "eval".
    """
    settings = RunSettings(
        total_steps=train.total_steps,
        iterations_per_loop=train.iterations_per_loop,
        log_every_steps=train.log_every_steps,
        checkpoint_every_steps=train.checkpoint_every_steps,
        keep_checkpoints=train.keep_checkpoints,
        deadline=deadline,
        advice_if_slow=advice_if_slow,
        stop_at=train.stop_at,
        patience=train.patience,
        profile=train.profile,
    )
    if mode == "train" and (train.stop_at or train.patience):
        logger.warning("train.stop_at and train.patience have no effect without evaluations")
    if mode == "eval" and engine.num_processes > 1:
        raise UserError(
            f"--mode eval runs on one host, and there are {engine.num_processes}. Start it on a "
            "machine of its own beside --mode train, or train with --mode train_and_eval"
        )
    try:
        if evaluation is None:
            return loop.train(engine=engine, model_dir=model_dir, settings=settings, verify=verify)
        if mode == "eval":
            return loop.evaluate_checkpoints(
                engine=engine,
                model_dir=model_dir,
                total_steps=settings.total_steps,
                evaluation=evaluation,
                timeout_seconds=eval_timeout,
                deadline=deadline,
                verify=verify,
            )
        return loop.train_and_eval(
            engine=engine,
            model_dir=model_dir,
            settings=settings,
            evaluation=evaluation,
            verify=verify,
        )
    except NonfiniteLossError as error:  # its message says all; a traceback would hide it
        logger.error("%s", error)
        return EXIT_FAILED
