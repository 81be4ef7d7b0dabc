"""The command `tpudet predict`: runs SavedModels on folders, images, URLs and videos."""

import argparse
import os
from collections.abc import Sequence

from tpudet.detection.inference.view_settings import DEFAULT_SCALES, ViewSettings, parse_views
from tpudet.detection.submission.fusion.settings import METHODS
from tpudet.trainkit.backend_arguments import add_tensorflow_argument
from tpudet.trainkit.command_line import new_parser, positive_integer, run_command, share
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.locations import data_path

_EPILOG = """\
examples:
  tpudet predict predictions.parquet output/final/quickstart-bccd-640 --images data/test
  tpudet predict predictions.parquet SAVED_MODEL --images a.jpg --images https://host/b.png
  tpudet predict predictions.parquet SAVED_MODEL --images clip.mp4 --every 10 --save_images drawn
  tpudet predict predictions.parquet SAVED_MODEL --shard 2/8     # this machine's part of eight
  tpudet predict predictions.parquet SAVED_MODEL --tta flip,scales
  tpudet predict --models models.yml --cluster auto            # a list of models, on a Ray cluster

models.yml is a list of {dataset, version, step, resolution}. A model is read from
$STORAGE/final/<version>-<dataset>-<resolution> and its predictions are written to
$STORAGE/predictions/<version>-<dataset>-<resolution>.parquet; finished ones are skipped,
if they are of the same images: names and, of local files, sizes are compared, not folders.

A shard of p.parquet is written to p_part_2_of_8.parquet; tpudet join_predicted_parts joins them. A
run that was killed resumes where it stopped when the same command is given again; images whose
files have another size now are predicted again. Two calls of the model run at a time: if memory
does not suffice, lower --batch_size. Images that cannot be read are named on the screen. Frame 120
of clip.mp4 gets the image id clip_000120.

exit codes: 0 done, 1 no image could be predicted, 2 wrong arguments or input, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet predict",
        "Run the newest SavedModel of a directory, or a list of models, on images.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "predictions",
        metavar="PREDICTIONS",
        nargs="?",
        help="file to write: .pkl a pickle, else Parquet",
    )
    parser.add_argument(
        "saved_model",
        metavar="SAVED_MODEL",
        nargs="?",
        help="a SavedModel, or a folder that has some; the newest is taken",
    )
    parser.add_argument(
        "--destination", metavar="PREDICTIONS", help="another way to name PREDICTIONS"
    )
    parser.add_argument("--models", metavar="FILE", help="a list of models instead; see below")
    add_tensorflow_argument(parser)
    _add_input_arguments(parser)
    parser.add_argument("--ids", metavar="FILE", help="take only these image ids, one per line")
    parser.add_argument("--shard", metavar="I/N", help="take part I of N of the images")
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="run on a Ray cluster: auto, or HOST:PORT"
    )
    parser.add_argument(
        "--batch_size", type=positive_integer, default=8, help="images per call [%(default)s]"
    )
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=2 * (os.cpu_count() or 1),
        help="reading threads [%(default)s]",
    )
    parser.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of networks on CPUs; auto is bfloat16 where this CPU is faster with it, and "
        "float32 with --cluster and --shard [%(default)s]",
    )
    _add_view_arguments(parser)
    _add_drawing_arguments(parser)
    parser.add_argument(
        "-f",
        "--force",
        "--overwrite",
        dest="overwrite",
        action="store_true",
        help="replace PREDICTIONS, and parts left by a run with another model or other images",
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would be done")
    return run_command(parser, argv, _run)


def _add_input_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images",
        metavar="PATH",
        action="append",
        help="folder of images, image file, URL of one, or video; may be repeated [$DATA/test, "
        f"here {data_path('test')}]",
    )
    parser.add_argument(
        "--every",
        type=positive_integer,
        default=1,
        metavar="N",
        help="take every Nth frame of videos [%(default)s]",
    )


def _add_drawing_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--save_images",
        metavar="DIR",
        help="also write every image with its detections drawn in; the drawings of an earlier run "
        "in DIR are removed, other files in it stay. Those of a shard go to DIR_part_2_of_8",
    )
    parser.add_argument(
        "--min_score",
        type=share,
        default=0.3,
        metavar="X",
        help="of the detections that --save_images draws [%(default)s]",
    )


def _add_view_arguments(parser: argparse.ArgumentParser) -> None:
    default = ViewSettings()
    group = parser.add_argument_group("test-time augmentation")
    group.add_argument(
        "--tta", metavar="KINDS", help="also detect in mirrored and scaled views: flip,scales"
    )
    group.add_argument(
        "--tta_scales",
        metavar="SCALES",
        help=f"besides 1; above 1 in overlapping crops [{','.join(map(str, DEFAULT_SCALES))}]",
    )
    group.add_argument(
        "--tta_method", choices=METHODS, help=f"how views are merged [{default.method}]"
    )
    group.add_argument(
        "--tta_iou",
        type=share,
        help=f"overlap of boxes that are merged [{default.iou}]",
    )


def _run(arguments: argparse.Namespace) -> int | str:
    from tpudet.detection.inference import predict
    from tpudet.detection.inspection.save_images import check_image_folder, save_images
    from tpudet.trainkit.image_folder import parse_shard, shard_output_path

    names = _names(arguments)
    shard = parse_shard(arguments.shard) if arguments.shard else None
    options = {
        "images": arguments.images or [data_path("test")],
        "every": arguments.every,
        "ids": arguments.ids,
        "shard": shard,
        "views": _views(arguments),
        "in_bfloat16": predict.choose_bfloat16(
            arguments.precision, is_shared=bool(arguments.cluster or arguments.shard)
        ),
        "overwrite": arguments.overwrite,
    }
    if arguments.models:
        any_precision = arguments.precision == "auto"
        tasks = predict.plan_models(arguments.models, any_precision=any_precision, **options)
    else:
        tasks = predict.plan_folder(*names, **options)
    drawings = arguments.save_images or ""
    if shard:
        drawings = shard_output_path(drawings.rstrip("/"), shard)
    for task in tasks if arguments.save_images else ():
        check_image_folder(drawings, task.images)
    if arguments.dry_run:
        return predict.describe_tasks(tasks, overwrite=arguments.overwrite)
    code = predict.run_and_report(
        tasks,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        cluster=arguments.cluster,
        overwrite=arguments.overwrite,
    )
    for task in tasks if arguments.save_images else ():
        print(
            save_images(
                task.predictions_path,
                task.images,
                drawings,
                min_score=arguments.min_score,
                workers=arguments.workers,
            )
        )
    return code


def _names(arguments: argparse.Namespace) -> list[str]:
    """Returns PREDICTIONS and SAVED_MODEL; none with --models."""
    names = [name for name in (arguments.predictions, arguments.saved_model) if name]
    if arguments.destination:
        names.insert(0, arguments.destination)
    if arguments.models:
        if arguments.save_images:
            raise UserError("--save_images draws the predictions of one model, not of --models")
        if names:
            raise UserError("--models names the models and their predictions: give no PREDICTIONS")
    elif len(names) != 2:
        raise UserError("give PREDICTIONS and SAVED_MODEL, or --models FILE")
    return names


def _views(arguments: argparse.Namespace) -> ViewSettings | None:
    scales = None
    try:
        if arguments.tta_scales is not None:
            scales = [float(text) for text in arguments.tta_scales.split(",")]
    except ValueError as error:
        raise UserError(f"--tta_scales {arguments.tta_scales}: {error}") from error
    return parse_views(
        arguments.tta, scales=scales, method=arguments.tta_method, iou=arguments.tta_iou
    )
