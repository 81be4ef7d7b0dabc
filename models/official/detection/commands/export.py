"""Exports a checkpoint: `python -m tpudet.detection.commands.export --model_dir DIR --export_root DIR`.

The SavedModel takes encoded images, any number at once, and needs nothing of this toolkit. It goes
to `<export_root>/<name of model_dir>-<resolution>`.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from tpudet.detection.commands.experiment_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import run_command, start_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="export_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model_dir", required=True, help="what train wrote")
    parser.add_argument("--export_root", required=True, help="folder for SavedModels")
    parser.add_argument("--step", default="latest", help="step number, latest or best (latest)")
    parser.add_argument(
        "--resolution",
        metavar="SIDE|HEIGHTxWIDTH",
        default="",
        help="canvas in pixels, a multiple of 2^max_level (that of training)",
    )
    parser.add_argument(
        "--boxes",
        choices=("normalized", "pixels"),
        default="normalized",
        help="boxes as fractions of the original picture, or in its pixels (normalized)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing SavedModel")
    add_backend_argument(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    choose_backend(arguments)
    start_logging()
    from tpudet.detection import build_detector
    from tpudet.detection.inference.export import export_saved_model
    from tpudet.trainkit.source_version import git_commit
    from tpudet.trainkit.training import model_dir

    directory = arguments.model_dir.rstrip("/")
    overrides = []
    if arguments.resolution:
        overrides.append(f"data.canvas_size=[{_canvas(arguments.resolution)}]")
    config, class_list_text, classes = model_dir.load_run(directory, overrides=overrides)
    checkpoint = model_dir.find_checkpoint(directory, arguments.step)
    canvas_size = config.data.canvas_size
    resolution = "x".join(str(side) for side in dict.fromkeys(canvas_size))
    export_root, name = arguments.export_root.rstrip("/"), os.path.basename(directory)
    export_dir = f"{export_root}/{name}-{resolution}"
    task = build_detector.build_task(config, num_classes=len(classes), canvas_size=canvas_size)
    model_dir.load_weights(task.model, checkpoint.prefix)
    export_saved_model(
        model=task.model,
        predict=task.predict,
        canvas_size=canvas_size,
        class_list_text=class_list_text,
        directory=export_dir,
        metadata={
            "version": name,
            "step": checkpoint.step,
            "git_commit": git_commit(),
        },
        boxes=arguments.boxes,
        overwrite=arguments.overwrite,
    )
    print(f"{export_dir}: step {checkpoint.step}, canvas {canvas_size[0]}x{canvas_size[1]}")
    return 0


def _canvas(text: str) -> str:
    """Turns `640` into `640, 640` and `512x768` into `512, 768`; the config checks the values."""
    height, _, width = text.partition("x")
    return f"{height}, {width or height}"


if __name__ == "__main__":
    sys.exit(main())
