"""Runs a training in one of its modes: train, eval, or both in turn."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.record_splits import Split, watch_files
from tpudet.trainkit.training import loop
from tpudet.trainkit.training.build_engine import keep_compiled_steps
from tpudet.trainkit.training.build_training import Training
from tpudet.trainkit.training.checkpoints import check_newest
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.evaluator import EvaluationSettings, comparable
from tpudet.trainkit.training.kept_settings import require_kept_settings
from tpudet.trainkit.training.loggers import check_loggers
from tpudet.trainkit.training.model_dir import claim_path, compare_run, write_run_files
from tpudet.trainkit.training.run import NonfiniteLossError, RunSettings
from tpudet.trainkit.training.stopping import EXIT_FAILED
from tpudet.trainkit.weights.pretrained import write_load_report

Mode = Literal["train", "eval", "train_and_eval"]
Config = TypeVar("Config")  # a task's ExperimentConfig

logger = logging.getLogger(__name__)


def run_training(
    config: Any,
    training: Training[Any],
    *,
    mode: Mode,
    model_dir: str,
    class_list_text: str,
    train_split: Split,
    load_config: Callable[[str], Any],
    evaluation: EvaluationSettings | None,
    eval_timeout: float | None = None,
    deadline: float = math.inf,
    advice_if_slow: str = "",
) -> int:
    """Claims the model_dir, describes the run in it, and trains and evaluates to an end.

    Args:
        config: the experiment of a task, without `auto`.
        training: built from it.
        mode: "eval" evaluates the checkpoints that another process writes.
        model_dir: of the run; created if needed.
        class_list_text: contents of classes.csv.
        train_split: the records to train on.
        load_config: reads the `config.yaml` at a path.
        evaluation: how the model is evaluated; None for mode "train".
        eval_timeout: seconds without a new checkpoint after which mode "eval" ends; None: never.
        deadline: when to save and stop, by `time.monotonic`.
        advice_if_slow: what to do if the run will take hours, in words.

    Returns:
        The exit code of the process: 0 finished, 1 failed, and those of `loop` for other ends.

    Raises:
        UserError: as `claim_model_dir` and `compare_run`, or the mode or a logger cannot be used.
    """
    engine, is_chief = training.engine, training.engine.is_chief
    _check_mode(mode, config.train, engine)
    with claim_model_dir(model_dir, mode, is_chief=is_chief) as verify:
        evaluation = evaluation and comparable(evaluation, model_dir, config.measured)
        _describe(mode, model_dir, config, class_list_text, training, load_config)
        keep_compiled_steps(model_dir)
        where: dict[str, Any] = {"engine": engine, "model_dir": model_dir, "verify": verify}
        settings = _run_settings(config.train, train_split, deadline, advice_if_slow)
        try:
            if evaluation is None:
                every_steps = config.evaluation.schedule.every_steps
                return loop.train(settings=settings, evaluate_every_steps=every_steps, **where)
            if mode == "train_and_eval":
                return loop.train_and_eval(settings=settings, evaluation=evaluation, **where)
            where["verify"] = _verify_settings_too(verify, model_dir, config, load_config)
            return loop.evaluate_checkpoints(
                total_steps=settings.total_steps,
                evaluation=evaluation,
                timeout_seconds=eval_timeout,
                deadline=deadline,
                **where,
            )
        except NonfiniteLossError as error:  # its message says all; a traceback would hide it
            logger.error("%s", error)
            return EXIT_FAILED


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
            stack.enter_context(Claim(claim_path(model_dir, kind), output=outputs[kind]))
            for kind in (kinds if is_chief else ())
        ]

        def verify() -> None:
            for claim in claims:
                claim.verify()

        yield verify


def _verify_settings_too(
    verify: Callable[[], None],
    model_dir: str,
    config: Config,
    load_config: Callable[[str], Config],
) -> Callable[[], None]:
    """Adds to the check before each write of mode "eval", whose trainer may begin after it."""

    def check() -> None:
        verify()
        require_kept_settings(model_dir, config, load_config, trains=False)

    return check


def _describe(
    mode: Mode,
    model_dir: str,
    config: Config,
    class_list_text: str,
    training: Training[Any],
    load_config: Callable[[str], Config],
) -> None:
    """Logs what changed in the run, and describes it in its model_dir.

    Unless the checkpoints there are of another model, or of settings that it must keep. In mode
    "eval" the config is the trainer's.
    """
    require_kept_settings(model_dir, config, load_config, trains=mode != "eval")
    unlogged = ("train.precision",) if mode == "eval" else ()  # a CPU evaluates float16 runs
    compare_run(model_dir, config, class_list_text, load_config, unlogged=unlogged)
    if mode == "eval":
        return
    check_newest(model_dir, training.engine.signature())
    if not training.engine.is_chief:
        return
    write_run_files(model_dir, config, class_list_text)
    if training.pretrained and training.loaded:
        write_load_report(model_dir, training.pretrained.config.path, training.loaded)


def _check_mode(mode: Mode, train: TrainConfig, engine: Engine) -> None:
    if mode == "train" and (train.stop_at or train.patience):
        logger.warning("train.stop_at and train.patience have no effect without evaluations")
    if mode == "eval" and engine.num_processes > 1:
        raise UserError(
            f"--mode eval runs on one host, and there are {engine.num_processes}. Start it on a "
            "machine of its own beside --mode train, or train with --mode train_and_eval"
        )
    if engine.is_chief and mode != "eval":
        check_loggers(train.loggers)


def _run_settings(
    train: TrainConfig, train_split: Split, deadline: float, advice_if_slow: str
) -> RunSettings:
    return RunSettings(
        total_steps=train.total_steps,
        iterations_per_loop=train.iterations_per_loop,
        log_every_steps=train.log_every_steps,
        checkpoint_every_steps=train.checkpoint_every_steps,
        keep_checkpoints=train.keep_checkpoints,
        training_records=train_split.digest,
        records_replaced=watch_files(train_split),
        deadline=deadline,
        advice_if_slow=advice_if_slow,
        stop_at=train.stop_at,
        patience=train.patience,
        profile=train.profile,
        loggers=train.loggers,
    )
