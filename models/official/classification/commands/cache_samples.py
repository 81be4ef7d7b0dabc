"""Writes the training samples of an experiment as a cache: decoded, cropped, resized, augmented.

Decoding then costs nothing during training; a sample takes height x width x 3 bytes, and the size
is printed before anything is written. The same command resumes an interrupted run.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import (
    add_config_arguments,
    natural_number,
    new_parser,
    run_command,
)
from tpudet.trainkit.experiment_commands import experiment_config

_EPILOG = """\
With --variants N the cache holds each image N times, cropped, flipped and augmented like in the
first N epochs of a run; what mixes images stays random. With 0, the default, it holds the centre of
each image once, and flip and augmentations stay random; data.random_crop and data.random_affine
must be null. Training refuses a cache that was made of other records or with other settings.

examples:
  tpudet cache_samples effnetlite0_112 --set data.directory=DIR --output CACHE --variants 4
  tpudet train effnetlite0_112 --model_dir RUN --set data.directory=DIR \\
      --set data.cache=CACHE

exit codes: 0 done, 2 wrong arguments or inputs, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet cache_samples", __doc__, epilog=_EPILOG)
    add_config_arguments(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the cache")
    parser.add_argument(
        "--variants",
        type=natural_number,
        default=0,
        metavar="N",
        help="samples cached per image (0: its centre, unaugmented)",
    )
    parser.add_argument("--dry_run", action="store_true", help="only print the size")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a cache of other records or settings"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.classification.config import ExperimentConfig
    from tpudet.classification.data.splits import find_joined_split
    from tpudet.classification.preparation.write_cache import CachePlan, write_cache
    from tpudet.trainkit.training.model_dir import load_classes

    config = experiment_config(ExperimentConfig, arguments)
    _, classes = load_classes(config.data.directory, config.data.classes)
    split = find_joined_split(config.data.directory, config.data.train_split, classes)
    plan = CachePlan(
        data=config.data,
        output=arguments.output.rstrip("/"),
        shards=split.shards,
        records_per_shard=split.records_per_shard,
        num_classes=len(classes),
        variants=arguments.variants,
        seed=config.train.seed,
    )
    estimate = (
        f"{plan.output}: {plan.num_samples} samples take {plan.num_bytes / (1 << 20):,.1f} MiB"
    )
    if arguments.dry_run:
        return estimate
    print(estimate, flush=True)
    return write_cache(plan, overwrite=arguments.overwrite)
