"""Evaluates one checkpoint: `python -m tpudet.detection.commands.evaluate --model_dir DIR [--split test]`.

The experiment is that of the model_dir. The metrics are printed and written to
`<model_dir>/evaluation_<split>_<step>.json`, with a picture of detections beside it.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from tpudet.detection.commands.experiment_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import run_command, start_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", required=True, help="what train wrote")
    parser.add_argument("--step", default="latest", help="step number, latest or best (latest)")
    parser.add_argument("--split", default="", help="split to evaluate (data.eval_split)")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="set one value of the experiment, e.g. data.directory=DIR; may be repeated",
    )
    add_backend_argument(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    choose_backend(arguments)
    start_logging()
    from tpudet.detection import build_detector, experiment
    from tpudet.trainkit.files.storage import write_text
    from tpudet.trainkit.training import devices, model_dir

    directory = arguments.model_dir.rstrip("/")
    overrides = list(arguments.overrides)
    if arguments.split:
        overrides.append(f"data.eval_split={arguments.split}")
    config, _, classes = model_dir.load_run(directory, overrides=overrides)
    step, prefix = model_dir.find_checkpoint(directory, arguments.step)
    strategy = devices.choose_strategy(config.train.device)
    experiment.set_precision(config.train, strategy)
    with strategy.scope():
        task = build_detector.build_task(
            config, num_classes=len(classes), canvas_size=config.data.canvas_size
        )
        model_dir.load_weights(task.model, prefix)
    name = f"{directory}/evaluation_{config.data.eval_split}_{step}"
    evaluation = experiment.build_evaluation(
        config,
        task=task,
        classes=classes,
        strategy=strategy,
        picture_path=f"{name}.png",
    )
    metrics = evaluation(step)
    write_text(f"{name}.json", json.dumps({"step": step, **metrics}, indent=2) + "\n")
    for metric, value in metrics.items():
        print(f"{metric}: {value:.4f}")
    print(f"Written to {name}.json and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
