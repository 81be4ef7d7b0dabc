"""The commands that tasks share to learn what a training costs: benchmark_train and plan.

A task's module `step_times` has `open_input`. It is imported once the backend is chosen, since it
imports Keras.
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from tpudet.trainkit.backend_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import add_config_arguments, new_parser, run_command
from tpudet.trainkit.experiment_commands import experiment_config
from tpudet.trainkit.training_arguments import add_plan_arguments, add_step_time_arguments

Config = TypeVar("Config")  # a task's ExperimentConfig

_PLAN_EXIT_CODES = """
exit codes: 0 compiles and fits, 2 wrong usage, 3 does not fit, 4 does not compile, 5 libtpu is
missing or its process crashed
"""


def run_benchmark_train(
    argv: Sequence[str] | None,
    description: str | None,
    config_type: type[Config],
    import_step_times: Callable[[], ModuleType],
) -> int:
    """Runs `tpudet benchmark_train`; returns its exit code."""
    parser = new_parser("tpudet benchmark_train", description)
    add_config_arguments(parser)
    add_backend_argument(parser)
    add_step_time_arguments(parser)
    run = functools.partial(_benchmark_train, config_type, import_step_times)
    return run_command(parser, argv, run)


def _benchmark_train(
    config_type: type[Config],
    import_step_times: Callable[[], ModuleType],
    arguments: argparse.Namespace,
) -> None:
    config: Any = experiment_config(config_type, arguments)
    choose_backend(arguments)
    from tpudet.trainkit.training.step_benchmark import print_times, time_training

    step_times = import_step_times()
    print_times(
        arguments,
        open_input=lambda name: step_times.open_input(name, config),
        time_input=lambda timed_input: time_training(
            config.train,
            timed_input,
            network=arguments.config,
            warmup_steps=arguments.warmup_steps,
            steps=arguments.steps,
        ),
    )


def run_plan(
    argv: Sequence[str] | None,
    description: str | None,
    config_type: type[Config],
    *,
    count_classes: Callable[[Config], int],
    process: str,
) -> int:
    """Runs `tpudet plan`; returns its exit code.

    Args:
        argv: of the command.
        description: of the command.
        config_type: the task's ExperimentConfig.
        count_classes: returns the classes of an experiment, unless --num_classes says them.
        process: the module that compiles in a process of its own.
    """
    parser = new_parser("tpudet plan", description, epilog=_PLAN_EXIT_CODES)
    add_config_arguments(parser)
    add_plan_arguments(parser)

    def run(arguments: argparse.Namespace) -> int:
        from tpudet.trainkit.training.tpu_planner import plan_experiment

        config: Any = experiment_config(config_type, arguments)
        num_classes = arguments.num_classes or count_classes(config)
        return plan_experiment(arguments, config.train, process=process, num_classes=num_classes)

    return run_command(parser, argv, run)
