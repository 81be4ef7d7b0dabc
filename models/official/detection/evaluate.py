"""Evaluates one checkpoint: `python -m detection.evaluate --model_dir DIR [--split test]`.

The experiment is that of the model_dir. The metrics are printed and written to
`<model_dir>/evaluation_<split>_<step>.json`, with a picture of detections beside it.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from detection.command_line import add_backend_argument, run_command, start_logging


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
    arguments = parser.parse_args(argv)
    # Keras reads its backend when it is first imported, so it comes in only now.
    os.environ["KERAS_BACKEND"] = arguments.backend
    start_logging()
    return run_command(lambda: _run(arguments), prefix=parser.prog)


def _run(arguments: argparse.Namespace) -> int:
    from detection import build_detector, experiment, model_dir
    from trainkit.durable_files import write_text
    from trainkit.training import devices

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
