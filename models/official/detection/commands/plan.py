"""Compiles an experiment's steps for a TPU, without one, and says what they need and can reach.

The real compiler compiles the real training and evaluation step; nothing runs. Expect 1 to 10
minutes for each on two cores. It needs JAX and libtpu, of which nothing else is used:
    pip install --target libtpu_only libtpu==0.0.52
    PYTHONPATH=libtpu_only tpudet plan quickstart --tpu v5e-8
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpudet.detection.commands.experiment_arguments import experiment_config
from tpudet.trainkit.command_line import (
    add_config_arguments,
    new_parser,
    positive_integer,
    run_command,
    writing,
)

if TYPE_CHECKING:
    from tpudet.trainkit.training.tpu_machines import TpuMachine
    from tpudet.trainkit.training.tpu_plan import Step

_EPILOG = """
exit codes: 0 compiles and fits, 2 wrong usage, 3 does not fit, 4 does not compile, 5 libtpu is
missing or its process crashed
"""
_PROCESS = "tpudet.detection.planning"
_COCO_CLASSES = 80


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet plan", __doc__, epilog=_EPILOG)
    add_config_arguments(parser)
    parser.add_argument("--tpu", required=True, metavar="NAME", help="v5e-8, v3-8, v6e-1, ...")
    parser.add_argument(
        "--steps",
        choices=("train", "evaluate", "both"),
        default="both",
        help="which steps to compile (%(default)s)",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="search the largest training batch that fits: at least two compilations more",
    )
    parser.add_argument(
        "--num_classes",
        type=positive_integer,
        metavar="N",
        help="default: the rows of the data set's classes.csv; 80 where there is no data set",
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write what was found there too")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.trainkit.training import tpu_plan
    from tpudet.trainkit.training.tpu_compiler import NoCompilerError, check_compiler
    from tpudet.trainkit.training.tpu_machines import find_tpu

    machine = find_tpu(arguments.tpu)
    config = experiment_config(arguments)
    try:
        check_compiler()
    except NoCompilerError as error:
        print(f"tpudet plan: {error}", file=sys.stderr)
        return tpu_plan.EXIT_NO_COMPILER
    num_devices = min(config.train.num_devices or machine.num_devices, machine.num_devices)
    num_classes = arguments.num_classes or _count_classes(config.data.directory)
    print(
        f"{arguments.config} on {machine.name}: {machine.num_chips} chip(s), {machine.num_cores} "
        f"core(s), {num_devices} device(s); batch {config.train.batch_size}, {num_classes} classes",
        flush=True,
    )
    names = ["train", "evaluate"] if arguments.steps == "both" else [arguments.steps]
    compile_steps = functools.partial(_compile, arguments, num_classes)
    steps = compile_steps(config.train.batch_size, names)
    for step in steps:
        print(f"{step.step} step, batch {step.batch_size}:")
        print(tpu_plan.describe(step, machine, num_devices), flush=True)
    code = tpu_plan.exit_code(steps, machine)
    if "train" in names and (arguments.search or code == tpu_plan.EXIT_DOES_NOT_FIT):
        steps += _search(compile_steps, steps[0], machine, num_devices)
    if arguments.json:
        with writing(arguments.json), open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([{**step._asdict(), "tpu": machine.name} for step in steps], file, indent=2)
    return code


def _compile(
    arguments: argparse.Namespace, num_classes: int, batch_size: int, steps: list[str]
) -> "list[Step]":
    """Compiles steps in a process of its own."""
    from tpudet.trainkit.training.tpu_compiler import compile_steps, compiler_environment
    from tpudet.trainkit.training.tpu_machines import find_tpu

    return compile_steps(
        [sys.executable, "-m", _PROCESS],
        {
            "config": arguments.config,
            "overrides": arguments.overrides,
            "params_override": arguments.params_override,
            "num_classes": num_classes,
            "tpu": arguments.tpu,
            "steps": steps,
            "batch_size": batch_size,
        },
        environment=compiler_environment(find_tpu(arguments.tpu)),
        progress=_show,
    )


def _search(
    compile_steps: "Callable[[int, list[str]], list[Step]]",
    first: "Step",
    machine: "TpuMachine",
    num_devices: int,
) -> "list[Step]":
    """Prints and returns the step with the largest batch that fits, if there is one."""
    from tpudet.trainkit.training.tpu_plan import describe
    from tpudet.trainkit.training.tpu_search import search_batch

    def compile_batch(batch_size: int) -> "Step":
        _show(f"trying batch {batch_size}")
        return compile_steps(batch_size, ["train"])[0]

    best = search_batch(compile_batch, first, machine=machine, num_devices=num_devices)
    if best is None:
        print(f"no batch was found that fits on {num_devices} device(s)")
        return []
    print(f"the largest training batch that was compiled and fits is {best.batch_size}:")
    print(describe(best, machine, num_devices))
    return [best]


def _show(line: str) -> None:
    print(f"... {line}", file=sys.stderr, flush=True)


def _count_classes(directory: str) -> int:
    from tpudet.trainkit.class_list import read_class_list
    from tpudet.trainkit.files.storage import read_text

    text = read_text(f"{directory.rstrip('/')}/classes.csv") if directory else None
    return len(read_class_list(text)) if text else _COCO_CLASSES
