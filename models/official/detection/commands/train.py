"""Trains and evaluates: `python -m tpudet.detection.commands.train --config VERSION --model_dir DIR`.

The same command goes on where a run was stopped. Exit codes: 0 finished, 2 wrong usage, 75 stopped
by SIGTERM or SIGINT with its state saved (start it again), 1 failed.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpudet.detection.commands.experiment_arguments import (
    add_backend_argument,
    add_experiment_arguments,
    choose_backend,
    experiment_config,
)
from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.command_line import run_command, start_logging

if TYPE_CHECKING:
    from tpudet.detection.evaluation.split import SplitEvaluation
    from tpudet.detection.experiment import Training
    from tpudet.trainkit.training.tensorflow_engine import TensorFlowEngine

logger = logging.getLogger(__name__)
HEADLINE = ("AP", "AP50")
EXIT_FAILED = 1  # a loss that is not finite; its message needs no traceback


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_experiment_arguments(parser)
    add_backend_argument(parser)
    parser.add_argument("--model_dir", required=True, help="checkpoints, log and metrics go here")
    parser.add_argument(
        "--mode",
        choices=("train", "eval", "train_and_eval"),
        default="train_and_eval",
        help="eval waits for the checkpoints that another process writes (train_and_eval)",
    )
    parser.add_argument(
        "--eval_timeout",
        type=float,
        metavar="SECONDS",
        help="mode eval gives up after so long without a new checkpoint (never)",
    )
    parser.add_argument("--log_file", default="", help="local file that the log is appended to")
    parser.add_argument(
        "--dry_run", action="store_true", help="build everything, say what would happen, and stop"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    choose_backend(arguments)
    start_logging(arguments.log_file)
    from tpudet.detection import experiment
    from tpudet.trainkit.training import devices, loop, model_dir
    from tpudet.trainkit.training.checkpoints import list_checkpoints
    from tpudet.trainkit.weights import pretrained

    directory = arguments.model_dir.rstrip("/")
    config = pretrained.settle(experiment_config(arguments), directory)
    train, begins = config.train, not list_checkpoints(directory)
    split = experiment.find_split(config.data, config.data.train_split)
    class_list_text, classes = model_dir.read_classes(config.data.directory)
    class_names = [entry.name for entry in classes]
    experiment.check_classes(config.data, config.data.train_split, class_names)
    strategy = devices.choose_strategy(train.device)
    training = experiment.build_training(
        config,
        classes=classes,
        train_split=split,
        strategy=strategy,
        begin=begins and arguments.mode != "eval",
    )
    num_records = sum(split.records_per_shard)
    _describe(config, training, num_records, len(classes), strategy.num_replicas_in_sync, begins)
    if arguments.dry_run:
        return 0
    evaluate = None
    if arguments.mode != "train":
        evaluate = experiment.build_evaluation(
            config,
            task=training.task,
            classes=classes,
            strategy=strategy,
            picture_path=f"{directory}/detections.png",
        )
    model_dir.describe_run(directory, config, class_list_text)
    if train.weights and training.loaded:
        pretrained.write_report(directory, train.weights.path, training.loaded)
    try:
        return _run_mode(arguments, config, training.engine, evaluate)
    except loop.NonfiniteLossError as error:
        logger.error("%s", error)
        return EXIT_FAILED


def _run_mode(
    arguments: argparse.Namespace,
    config: ExperimentConfig,
    engine: "TensorFlowEngine",
    evaluate: "SplitEvaluation | None",
) -> int:
    from tpudet.trainkit.training import loop

    train = config.train
    common: dict[str, Any] = {
        "engine": engine,
        "model_dir": arguments.model_dir.rstrip("/"),
        "total_steps": train.total_steps,
    }
    saving: dict[str, Any] = {
        "iterations_per_loop": train.iterations_per_loop,
        "log_every_steps": train.log_every_steps,
        "checkpoint_every_steps": train.checkpoint_every_steps,
        "keep_checkpoints": train.keep_checkpoints,
    }
    evaluating: dict[str, Any] = {
        "evaluate": evaluate,
        "headline": HEADLINE,
        "best_metric": config.evaluation.schedule.best_metric,
        "eval_every_steps": config.evaluation.schedule.every_steps,
    }
    match arguments.mode:
        case "train":
            return loop.train(**common, **saving)
        case "eval":
            timeout = arguments.eval_timeout
            return loop.evaluate_checkpoints(**common, **evaluating, timeout_seconds=timeout)
        case _:
            return loop.train_and_eval(**common, **saving, **evaluating)


def _describe(
    config: ExperimentConfig,
    training: "Training",
    num_records: int,
    num_classes: int,
    num_devices: int,
    begins: bool,
) -> None:
    """Says what will be trained on what, before hours are spent on it."""
    from tpudet.trainkit.training.build_optimizer import warmup_warning
    from tpudet.trainkit.training.freezing import frozen_at_random

    train, model = config.train, training.task.model
    logger.info(
        "%s: %s parameters, %d classes, canvas %dx%d, precision %s, %d devices",
        config.model.kind,
        f"{model.count_params():,}",
        num_classes,
        *config.data.canvas_size,
        model.dtype_policy.name,
        num_devices,
    )
    logger.info(
        "%d training images; %d steps of %d images are %.1f epochs",
        num_records,
        train.total_steps,
        train.batch_size,
        train.total_steps * train.batch_size / max(num_records, 1),
    )
    if warning := warmup_warning(train):
        logger.warning("%s", warning)
    frozen = training.frozen
    if frozen.layers:
        logger.info(
            "Frozen: %d layers, %s parameters: %s",
            len(frozen.layers),
            f"{frozen.num_parameters:,}",
            ", ".join(frozen.layers),
        )
        loaded = training.loaded.loaded if training.loaded else ()
        if begins and (warning := frozen_at_random(frozen, loaded)):
            logger.warning("%s", warning)


if __name__ == "__main__":
    sys.exit(main())
