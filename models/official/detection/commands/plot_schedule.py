"""Draws the learning rate of an experiment over its steps, as a PNG."""

import argparse
import os
from collections.abc import Sequence

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.command_line import add_config_arguments, new_parser, run_command, writing
from tpudet.trainkit.experiment_commands import experiment_config

_EXAMPLES = """examples:
  tpudet plot_schedule quickstart
  tpudet plot_schedule my.yaml --output rate.png --set train.total_steps=500

exit codes: 0 the image is written, 2 wrong usage or a config that cannot be read
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet plot_schedule", __doc__, epilog=_EXAMPLES)
    add_config_arguments(parser)
    parser.add_argument(
        "--output", metavar="FILE.png", help="file to write (CONFIG's stem + _schedule.png)"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.trainkit.files.storage import whole_file
    from tpudet.trainkit.training.schedule_plot import draw_schedule

    config = experiment_config(ExperimentConfig, arguments)
    stem = os.path.basename(arguments.config).removesuffix(".yaml").removesuffix(".yml")
    output = arguments.output or f"{stem}_schedule.png"
    figure = draw_schedule(
        config.train, eval_every_steps=config.evaluation.schedule.every_steps, title=stem
    )
    with writing(output), whole_file(output, "wb") as file:
        figure.savefig(file, format="png", dpi=120)
    return f"Wrote {output}"
