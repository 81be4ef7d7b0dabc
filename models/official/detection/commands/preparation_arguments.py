"""Arguments that several commands of the preparation share."""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpudet.detection.preparation.open_images.challenge import BOUNDARIES, TRAIN_BOXES
from tpudet.trainkit.command_line import add_workers_argument, positive_integer, seed, share
from tpudet.trainkit.files.locations import data_path, storage_path

if TYPE_CHECKING:
    from tpudet.detection.preparation.open_images.part_sets import Workspace, WriteOptions
    from tpudet.detection.preparation.sources.read import Source

SPLITS = ("train", "val", "test")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --format, --annotations, --images and their options."""
    parser.add_argument(
        "--format",
        required=True,
        choices=("coco", "voc", "yolo", "open_images", "table", "mask_folders"),
        help="coco: an instances JSON; voc: a folder of XML files; yolo: a data.yaml; open_images: "
        "a box CSV; table: any CSV or Parquet file, see --columns; mask_folders: a folder per "
        "image, with ID/images and ID/masks, a PNG per object",
    )
    parser.add_argument(
        "--annotations", required=True, metavar="PATH", help="the file or folder; see --format"
    )
    parser.add_argument(
        "--images",
        metavar="DIR",
        help="folder of the images; yolo: what paths in data.yaml are relative to (default: as it "
        "says)",
    )
    _add_table_arguments(parser)
    parser.add_argument(
        "--image_list", metavar="FILE", help="take only these images (VOC: ImageSets/Main/*.txt)"
    )
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="class list, one `id,name` per line; categories of a JSON and names of a data.yaml "
        "are found in it by name (default: categories, names or labels of the annotations)",
    )
    parser.add_argument(
        "--include_unlabeled",
        action="store_true",
        help="open_images, table: also take the images of the folder that have no row",
    )
    parser.add_argument(
        "--include_masks",
        action="store_true",
        help="coco, yolo, open_images, mask_folders: check and write masks",
    )
    parser.add_argument(
        "--ignore_difficult",
        action="store_true",
        help="voc: boxes marked difficult become regions to ignore, as in VOC's own AP "
        "(default: ordinary boxes)",
    )
    add_mask_file_arguments(parser, "open_images: ")
    add_workers_argument(parser)


def add_mask_file_arguments(parser: argparse.ArgumentParser, where: str = "") -> None:
    """Adds --mask_csv and --mask_dir; `where` says when they are used."""
    parser.add_argument(
        "--mask_csv",
        metavar="FILE",
        help=f"{where}masks by box (MaskPath,ImageID,LabelName,BoxXMin,...)",
    )
    parser.add_argument(
        "--mask_dir",
        metavar="DIR",
        help=f"{where}folder of the masks, or of the unpacked archives train-masks-0 to -f",
    )


def _add_table_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--columns",
        type=named_columns,
        metavar="KEY=COLUMN,...",
        help="table: image, the box as xywh, xyxy, yxyx or cxcywh (four numbers in one column), or "
        "as x1,y1,x2,y2, x,y,w,h or cx,cy,w,h (four columns); and, where there are such columns, "
        "class, crowd, width and height of the image; such as "
        "image=image_id,xywh=bbox,class=source",
    )
    parser.add_argument(
        "--coordinates",
        choices=("pixels", "fractions"),
        help="table: unit of the boxes (default: pixels)",
    )


def build_source(arguments: argparse.Namespace) -> "Source":
    """Builds the source from the values of `add_source_arguments`."""
    from tpudet.detection.preparation.sources.read import Source

    return Source(**{name: getattr(arguments, name) for name in Source._fields})


def named_columns(text: str) -> dict[str, str]:
    """Columns of a table by their meaning, as the `type` of an argument: `image=id,xywh=bbox`."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    columns = {key.strip(): name.strip() for key, _, name in pairs}
    if len(columns) < len(pairs) or not all(key and name for key, name in columns.items()):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a list such as image=image_id,xywh=bbox,class=source, each key once"
        )
    return columns


def add_writing_arguments(
    parser: argparse.ArgumentParser,
    *,
    image_check: str,
    seed_of: str = "order and copies",
    default_copies: str = "no limit",
) -> None:
    """Adds --max_copies, --seed, --cluster, --image_check, --allow_empty and --overwrite.

    Args:
        parser: of the command.
        image_check: default of --image_check.
        seed_of: the random choices that --seed decides, for its help.
        default_copies: the limit without --max_copies, for its help.
    """
    parser.add_argument(
        "--max_copies",
        type=positive_integer,
        metavar="N",
        help="write no image more often than this, even if a class stays short (default: "
        f"{default_copies})",
    )
    parser.add_argument("--seed", type=seed, default=0, help=f"of {seed_of} (default 0)")
    parser.add_argument(
        "--cluster",
        metavar="auto|ADDRESS",
        help="write the shards on a Ray cluster whose nodes all reach the same paths: the one at "
        "ADDRESS (host:port); auto: the one of RAY_ADDRESS or of this machine, else a new one on "
        "this machine",
    )
    parser.add_argument(
        "--image_check",
        choices=("full", "headers"),
        default=image_check,
        help="full: decode every image; headers: read only the structure of JPEGs, several times "
        f"faster (default {image_check})",
    )
    parser.add_argument(
        "--allow_empty",
        action="store_true",
        help="also write a set that loses all its boxes or all of a class, and train without boxes",
    )
    add_overwrite_argument(parser, "a finished set made from other inputs")


def add_overwrite_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --overwrite, which replaces `what`."""
    parser.add_argument("--overwrite", action="store_true", help=f"replace {what}")


def add_positionals(parser: argparse.ArgumentParser, *arguments: tuple[str, str, str, str]) -> None:
    """Adds optional positionals, each given by its name, metavar, default and help."""
    for name, metavar, default, text in arguments:
        parser.add_argument(
            name, metavar=metavar, nargs="?", default=default, help=f"{text} (default: %(default)s)"
        )


def add_paths(parser: argparse.ArgumentParser, *arguments: tuple[str, str, str]) -> None:
    """Adds options for paths, each given by its name without dashes, default and help."""
    for name, default, text in arguments:
        parser.add_argument(
            f"--{name}", default=default, metavar="PATH", help=f"{text} (default: %(default)s)"
        )


def add_confidence_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --min_conf and --classes."""
    parser.add_argument(
        "--min_conf",
        type=share,
        default=0.9,
        metavar="X",
        help="only scores above it are taken (default: %(default)s)",
    )
    parser.add_argument("--classes", metavar="FILE", help="take only predictions of these classes")


def add_boundaries_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --boundaries."""
    parser.add_argument(
        "--boundaries",
        type=_integers,
        default=BOUNDARIES,
        metavar="0,N,...",
        help="ranks, by ascending number of images, where groups of classes begin and the last one "
        f"ends (default: {','.join(map(str, BOUNDARIES))})",
    )


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} is not a list of integers such as {','.join(map(str, BOUNDARIES))}"
        ) from None


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the commands that write the parts of a preset."""
    add_paths(
        parser,
        ("train_boxes", data_path(TRAIN_BOXES), "box CSV, for `boxes: all`"),
        ("train_images", data_path("train"), "folder of the training images"),
        ("prepared_dir", storage_path("prepared"), "folder that prepare_datasets wrote"),
        ("converted_dir", storage_path("converted"), "folder for the sets"),
        ("segmentation_dir", data_path(), "folder of the tables of the segmentation track"),
        ("train_masks", data_path("train_masks"), "folder of the masks of the training images"),
        ("validation_masks", data_path("validation_masks"), "the same of the validation images"),
    )
    parser.add_argument(
        "--presets",
        metavar="FILE",
        help="YAML of the presets (default: configs/open_images/presets.yaml, here or of tpudet)",
    )
    parser.add_argument(
        "--parts", nargs="+", metavar="PART", help="only these (default: all of the preset)"
    )
    parser.add_argument(
        "--num_shards",
        type=positive_integer,
        metavar="N",
        help="files per training set (default: as the preset says)",
    )
    parser.add_argument(
        "--skip_missing",
        action="store_true",
        help="leave out images whose files are missing, and list them in the manifest",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="list what would be done, with class counts before and after; write nothing",
    )
    add_workers_argument(parser)
    add_writing_arguments(parser, image_check="headers", default_copies="as the preset says")


def build_workspace(arguments: argparse.Namespace) -> "Workspace":
    """Builds the workspace from the values of `add_part_arguments`."""
    from tpudet.detection.preparation.open_images.part_sets import Workspace

    names = [field.name for field in dataclasses.fields(Workspace)]
    return Workspace(**_pick(arguments, names))


def build_write_options(arguments: argparse.Namespace) -> "WriteOptions":
    """Builds the options of writing from the values of `add_part_arguments`."""
    from tpudet.detection.preparation.open_images.part_sets import WriteOptions

    names = (
        "num_shards",
        "max_copies",
        "seed",
        "skip_missing",
        "workers",
        "cluster",
        "overwrite",
        "allow_empty",
    )
    return WriteOptions(**_pick(arguments, names), check_pixels=arguments.image_check == "full")


def _pick(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}
