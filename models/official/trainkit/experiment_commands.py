"""The commands that tasks share: train, evaluate, export, find_lr and show_augmented.

A task's module `experiment` has `train`, `evaluate`, `check_export`, `range_test` and `export`. It
is imported once the backend is chosen, since it imports Keras. That takes seconds, so mistakes in
the config are reported first.
"""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from tpudet.trainkit.backend_arguments import (
    add_backend_argument,
    add_hosts_arguments,
    choose_backend,
)
from tpudet.trainkit.command_line import (
    add_config_arguments,
    new_parser,
    positive_integer,
    report_file,
    run_command,
    start_logging,
)
from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.config.find import run_config
from tpudet.trainkit.files.file_kinds import DRAWING, file_of_kind, refuse_other_kind
from tpudet.trainkit.files.storage import make_folder
from tpudet.trainkit.jobs.child_process import run_child
from tpudet.trainkit.training.preemption import Interrupted, interrupted_by_signals
from tpudet.trainkit.training.stopping import (
    EXIT_FINISHED,
    EXIT_NO_IMPROVEMENT,
    EXIT_START_AGAIN,
    EXIT_TARGET_REACHED,
)
from tpudet.trainkit.training_arguments import (
    add_evaluation_arguments,
    add_range_test_arguments,
    add_training_arguments,
)

if TYPE_CHECKING:
    import numpy as np

Config = TypeVar("Config")  # a task's ExperimentConfig

_EXIT_CODES = """\
The same command resumes a run where it stopped.

exit codes; those from 80 on, and a stop by a signal, leave everything saved:
   0  finished
   1  failed
   2  wrong usage, or another process trains in this model_dir
  75  start it again: stopped by SIGTERM, SIGINT or SIGHUP; another host or a TPU was lost, a
      device hung, or a host did not join; or a checkpoint cannot be read now
  80  --max_hours has elapsed: start it again
  81  train.stop_at is reached
  82  train.patience has run out
"""
_EVALUATION_EXIT_CODES = """\
exit codes: 0 done, 2 wrong usage or unusable input, 75 start it again: another host or a TPU was
lost, or the checkpoint cannot be read now, 130 interrupted
"""
_ENDED = (EXIT_FINISHED, EXIT_TARGET_REACHED, EXIT_NO_IMPROVEMENT)


def experiment_config(config_type: type[Config], arguments: argparse.Namespace) -> Config:
    """Reads the experiment of `add_config_arguments`.

    Raises:
        ConfigError: no experiment is named, or it has mistakes.
    """
    if arguments.config is None:
        raise ConfigError("CONFIG is missing: a VERSION such as quickstart, or a file")
    return load_config(
        config_type,
        arguments.config,
        overrides=arguments.overrides,
        params_override=arguments.params_override,
    )


def run_train(
    argv: Sequence[str] | None,
    description: str | None,
    config_type: type[Config],
    import_experiment: Callable[[], ModuleType],
) -> int:
    """Runs `tpudet train`; returns its exit code."""
    parser = new_parser("tpudet train", description, epilog=_EXIT_CODES)
    add_config_arguments(parser)
    add_backend_argument(parser)
    add_training_arguments(parser)
    parser.add_argument(
        "--export",
        default="",
        metavar="EXPORT_ROOT",
        help="when the run has ended, export its best checkpoint there, as `tpudet export` does; "
        "replaces an earlier SavedModel of this run only",
    )
    add_hosts_arguments(parser)
    return run_command(parser, argv, functools.partial(_train, config_type, import_experiment))


def _train(
    config_type: type[Config],
    import_experiment: Callable[[], ModuleType],
    arguments: argparse.Namespace,
) -> int:
    start_logging(arguments.log_file)
    try:
        with interrupted_by_signals():
            code, exports = _run_training(config_type, import_experiment, arguments)
    except Interrupted as end:
        print(f"tpudet train: ended by {end}; the same command continues the run", file=sys.stderr)
        return end.exit_code
    return _export(arguments) or code if exports else code


def _run_training(
    config_type: type[Config],
    import_experiment: Callable[[], ModuleType],
    arguments: argparse.Namespace,
) -> tuple[int, bool]:
    """Returns the exit code, and whether this process exports what was trained."""
    config = experiment_config(config_type, arguments)
    from tpudet.trainkit.training.jax_hosts import several_hosts

    with several_hosts(arguments):
        choose_backend(arguments)
        experiment = import_experiment()
        model_dir = arguments.model_dir.rstrip("/")
        if arguments.export:
            experiment.check_export(config, model_dir=model_dir, export_root=arguments.export)
            if not arguments.dry_run:
                make_folder(arguments.export)
        code = experiment.train(
            config,
            model_dir=model_dir,
            mode=arguments.mode,
            eval_timeout=arguments.eval_timeout,
            deadline=arguments.deadline,
            dry_run=arguments.dry_run,
        )
        exports = arguments.export and not arguments.dry_run and code in _ENDED and _is_chief()
        if exports:  # again: runs of one name may have trained at the same time
            experiment.check_export(config, model_dir=model_dir, export_root=arguments.export)
    return code, bool(exports)


def _is_chief() -> bool:
    """Whether this is the process that writes the files of a run."""
    if os.environ["KERAS_BACKEND"] != "jax":
        return True
    import jax

    return jax.process_index() == 0


def _export(arguments: argparse.Namespace) -> int:
    """Exports the best checkpoint, or the newest of a run without evaluation.

    In a process of its own, because a SavedModel is TensorFlow's and JAX may have trained, and
    without the accelerators, whose memory this process holds.
    """
    from tpudet.trainkit.training.best_checkpoint import read_best_record
    from tpudet.trainkit.weights.tensor_bundle import BEST_FOLDER

    model_dir = arguments.model_dir.rstrip("/")
    step = "best" if read_best_record(f"{model_dir}/{BEST_FOLDER}") else "latest"
    command = [sys.executable, "-m", "tpudet", "export", "--model_dir", model_dir]
    command += ["--export_root", arguments.export, "--step", step, "--overwrite"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        return run_child(command, environment=environment)
    except SystemExit:  # this process was told to end, and the export has ended
        return EXIT_START_AGAIN


def run_evaluate(
    argv: Sequence[str] | None, description: str | None, import_experiment: Callable[[], ModuleType]
) -> int:
    """Runs `tpudet evaluate`; returns its exit code."""
    parser = new_parser("tpudet evaluate", description, epilog=_EVALUATION_EXIT_CODES)
    add_evaluation_arguments(parser)
    add_backend_argument(parser)
    return run_command(parser, argv, functools.partial(_evaluate, import_experiment))


def _evaluate(import_experiment: Callable[[], ModuleType], arguments: argparse.Namespace) -> str:
    model_dir = arguments.model_dir.rstrip("/")
    run_config(model_dir)  # raises before Keras is imported
    choose_backend(arguments)
    start_logging()
    from tpudet.trainkit.training.jax_hosts import ending_if_lost

    with ending_if_lost():
        metrics, path = import_experiment().evaluate(
            model_dir,
            step=arguments.step,
            split=arguments.split,
            overrides=arguments.overrides,
            output=arguments.output,
        )
    lines = [f"{metric}: {value:.4f}" for metric, value in metrics.items()]
    return "\n".join([*lines, f"Written to {path}*"])


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model_dir, --export_root, --step and --overwrite."""
    parser.add_argument("--model_dir", required=True, help="the folder that train wrote")
    parser.add_argument("--export_root", required=True, help="folder for SavedModels")
    parser.add_argument("--step", default="latest", help="step number, latest or best (latest)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing SavedModel")


def run_export(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    import_experiment: Callable[[], ModuleType],
    *,
    options: Sequence[str] = (),
) -> int:
    """Runs `tpudet export`; returns its exit code.

    Args:
        parser: with `add_export_arguments`.
        argv: of the command.
        import_experiment: returns the module whose `export` is called.
        options: arguments of this task that `export` takes by their names.
    """

    def run(arguments: argparse.Namespace) -> str:
        model_dir = arguments.model_dir.rstrip("/")
        run_config(model_dir)  # raises before Keras is imported
        # A SavedModel is TensorFlow's, whichever backend trained the checkpoint.
        os.environ["KERAS_BACKEND"] = "tensorflow"
        start_logging()
        directory, step = import_experiment().export(
            model_dir,
            export_root=arguments.export_root.rstrip("/"),
            step=arguments.step,
            overwrite=arguments.overwrite,
            **{name: getattr(arguments, name) for name in options},
        )
        return f"{directory}: step {step}"

    return run_command(parser, argv, run)


def run_show_augmented(
    argv: Sequence[str] | None,
    description: str | None,
    config_type: type[Config],
    draw: "Callable[[Config, int], np.ndarray]",
    *,
    epilog: str,
) -> int:
    """Runs `tpudet show_augmented`; returns its exit code.

    Args:
        argv: of the command.
        description: of the command.
        config_type: the task's ExperimentConfig.
        draw: from an experiment with batches of one and the number of images to their grid,
            [h, w, 3] uint8.
        epilog: of the command.
    """
    parser = new_parser("tpudet show_augmented", description, epilog=epilog)
    add_config_arguments(parser)
    parser.add_argument(
        "--output",
        type=functools.partial(report_file, kind=DRAWING),
        metavar="FILE.png",
        help="file to write (CONFIG's stem + _augmented.png)",
    )
    parser.add_argument(
        "--num_images", type=positive_integer, default=16, help="images in the grid (16)"
    )

    def run(arguments: argparse.Namespace) -> str:
        from tpudet.trainkit.pages.drawing import encode_png

        config: Any = experiment_config(config_type, arguments)
        stem = os.path.basename(arguments.config).removesuffix(".yaml").removesuffix(".yml")
        output = arguments.output or f"{stem}_augmented.png"
        refuse_other_kind(output, DRAWING)
        # An image is the same in any batch, and with batches of one no more are read than drawn.
        train = dataclasses.replace(config.train, batch_size=1)
        grid = draw(dataclasses.replace(config, train=train), arguments.num_images)
        with file_of_kind(output, "wb", DRAWING) as file:
            file.write(encode_png(grid))
        return f"Wrote {output}"

    return run_command(parser, argv, run)


def run_find_lr(
    argv: Sequence[str] | None,
    description: str | None,
    config_type: type[Config],
    import_experiment: Callable[[], ModuleType],
) -> int:
    """Runs `tpudet find_lr`; returns its exit code."""
    parser = new_parser("tpudet find_lr", description)
    add_config_arguments(parser)
    add_backend_argument(parser)
    add_range_test_arguments(parser)
    return run_command(parser, argv, functools.partial(_find_lr, config_type, import_experiment))


def _find_lr(
    config_type: type[Config],
    import_experiment: Callable[[], ModuleType],
    arguments: argparse.Namespace,
) -> str:
    start_logging()
    config = experiment_config(config_type, arguments)
    choose_backend(arguments)
    from tpudet.trainkit.training.jax_hosts import ending_if_lost
    from tpudet.trainkit.training.lr_finder import write_range_test

    with ending_if_lost():
        found = import_experiment().range_test(
            config,
            start=arguments.start,
            end=arguments.end,
            num_steps=arguments.num_steps,
        )
    return write_range_test(found, arguments.output, title=arguments.config)
