"""Compiles an experiment's steps for a TPU, without one, and says what they need and can reach.

The real compiler compiles the real training and evaluation step; nothing runs. Expect 1 to 10
minutes for each on two cores. It needs JAX and libtpu, of which nothing else is used:
    pip install --target libtpu_only libtpu==0.0.52
    PYTHONPATH=libtpu_only tpudet plan quickstart --tpu v5e-8
"""

import argparse
import json
import sys
from collections.abc import Sequence

from tpudet.detection.commands.experiment_arguments import experiment_config
from tpudet.trainkit.command_line import (
    add_config_arguments,
    new_parser,
    positive_integer,
    run_command,
    writing,
)

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
    from tpudet.trainkit.training.tpu_compiler import NoCompilerError, check_compiler
    from tpudet.trainkit.training.tpu_machines import find_tpu
    from tpudet.trainkit.training.tpu_plan import EXIT_NO_COMPILER
    from tpudet.trainkit.training.tpu_planner import Planner

    machine = find_tpu(arguments.tpu)
    config = experiment_config(arguments)
    try:
        check_compiler()
    except NoCompilerError as error:
        print(f"tpudet plan: {error}", file=sys.stderr)
        return EXIT_NO_COMPILER
    num_devices = min(config.train.num_devices or machine.num_devices, machine.num_devices)
    num_classes = arguments.num_classes or _count_classes(config.data.directory)
    print(
        f"{arguments.config} on {machine.name}: {machine.num_chips} chip(s), {machine.num_cores} "
        f"core(s), {num_devices} device(s); batch {config.train.batch_size}, {num_classes} classes",
        flush=True,
    )
    planner = Planner(
        process=_PROCESS,
        request={
            "config": arguments.config,
            "overrides": arguments.overrides,
            "params_override": arguments.params_override,
            "num_classes": num_classes,
            "tpu": machine.name,
        },
        machine=machine,
        num_devices=num_devices,
    )
    names = ["train", "evaluate"] if arguments.steps == "both" else [arguments.steps]
    steps, code = planner.plan(names, config.train.batch_size, searches=arguments.search)
    if arguments.json:
        with writing(arguments.json), open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([{**step._asdict(), "tpu": machine.name} for step in steps], file, indent=2)
    return code


def _count_classes(directory: str) -> int:
    from tpudet.trainkit.class_list import read_class_list
    from tpudet.trainkit.files.storage import read_text

    text = read_text(f"{directory.rstrip('/')}/classes.csv") if directory else None
    return len(read_class_list(text)) if text else _COCO_CLASSES
