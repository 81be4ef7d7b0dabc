"""Draws the learning rate of an experiment over its steps, as a PNG.

With train.total_epochs the steps follow from the training images, so data.directory is needed.
"""

import argparse
import os
from collections.abc import Sequence
from functools import partial

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.config import DataConfig
from tpudet.trainkit.command_line import (
    add_config_arguments,
    new_parser,
    report_file,
    run_command,
)
from tpudet.trainkit.experiment_commands import experiment_config
from tpudet.trainkit.files.file_kinds import (
    DRAWING,
    PNG_METADATA,
    file_of_kind,
    refuse_other_kind,
)

_EXAMPLES = """examples:
  tpudet plot_schedule quickstart
  tpudet plot_schedule my.yaml --output rate.png --set train.total_steps=500
  tpudet plot_schedule r18 --set train.total_epochs=40 --set data.directory=output/converted/cats

exit codes: 0 the image is written, 2 wrong usage or a config that cannot be read
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet plot_schedule", __doc__, epilog=_EXAMPLES)
    add_config_arguments(parser)
    parser.add_argument(
        "--output",
        type=partial(report_file, kind=DRAWING),
        metavar="FILE.png",
        help="file to write (CONFIG's stem + _schedule.png)",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.trainkit.training.run_outlook import with_total_steps
    from tpudet.trainkit.training.schedule_plot import draw_schedule

    config = experiment_config(ExperimentConfig, arguments)
    stem = os.path.basename(arguments.config).removesuffix(".yaml").removesuffix(".yml")
    output = arguments.output or f"{stem}_schedule.png"
    refuse_other_kind(output, DRAWING)
    train = config.train
    if train.total_epochs is not None:
        train = with_total_steps(train, _count_training_images(config.data))
    figure = draw_schedule(
        train, eval_every_steps=config.evaluation.schedule.every_steps, title=stem
    )
    with file_of_kind(output, "wb", DRAWING) as file:
        figure.savefig(file, format="png", dpi=120, metadata=PNG_METADATA)
    return f"Wrote {output}"


def _count_training_images(data: DataConfig) -> int:
    from tpudet.trainkit.record_splits import find_split, first_records
    from tpudet.trainkit.training.model_dir import load_classes

    _, classes = load_classes(data.directory)
    split = find_split(data.directory, data.train_split, [entry.name for entry in classes])
    return sum(first_records(split, data.fraction).records_per_shard)
