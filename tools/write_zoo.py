"""Writes docs/zoo.md: parameters and multiply-adds of every shipped experiment."""

import argparse
import ast
import functools
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

import tpudet
from tpudet.detection.config import ExperimentConfig, ModelConfig
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.pyramid_config import IdentityNeckConfig
from tpudet.trainkit.backbones.config import (
    EfficientNetConfig,
    MobileNetV3Config,
    ResNetConfig,
)
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.config.find import config_folder, find_task, list_configs
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import read_text

_EXAMPLES = """examples:
  python tools/write_zoo.py               # counts all models, a quarter of an hour on two cores
  python tools/write_zoo.py --only_new    # counts those that have no row yet
  python tools/write_zoo.py --check       # counts nothing, takes seconds

Exit codes: 0 the table is written or up to date, 1 --check found it out of date, 2 wrong usage or a
config that cannot be read.
"""
NUM_CLASSES = 90  # as COCO's models in papers and model zoos
_TITLE = """\
# Model zoo: parameters and compute

One row per detector under `configs/yaml`, written by `python tools/write_zoo.py`; a test checks the
table against the configs and the sources of the models.

Parameters are the trainable ones, frozen parts included, in millions, for {num_classes} classes;
statistics of batch normalisation do not count. Multiply-adds (often called FLOPs) are those of the
convolutions and fully connected layers for one image of the canvas (height x width), in billions;
of a two-stage detector with all its proposals and detections. A neck is given as filters x
repeats, and its levels if they are not 3 to 7; a head as filters x convolutions of each of its two
towers, that of a two-stage detector as units x layers and the proposals that it looks at. The last
column is the COCO AP that the file expects from published results, if any are
known: no such training was done here."""
_COLUMNS = (
    *("experiment", "backbone", "neck", "head", "canvas"),
    *("parameters, M", "multiply-adds, G", "expected COCO AP"),
)
_COUNTED = slice(5, 7)  # the columns of a `Cost`
# Modules that decide no count, of those where counts are made.
_WITHOUT_COST = {
    *("losses.py", "two_stage_losses.py", "postprocess.py", "foreign_detectors.py"),
    *("foreign_parts.py", "detectron2_names.py", "kerashub_names.py", "mmdetection_names.py"),
    *("tensorflow_names.py", "torchvision_names.py"),
}
_RENDERED_ROW = re.compile(r"^\| \[.*?\]\(\.\./configs/yaml/(.*?)\) \|.*\|$", re.MULTILINE)


class Experiment(NamedTuple):
    """One row without its counted cells."""

    file: str  # below configs/yaml
    config: ExperimentConfig
    expected: str  # the comment from the figure on; empty without a COCO AP


class Cost(NamedTuple):
    """The counted cells of a row, formatted."""

    parameters: str  # millions
    multiply_adds: str  # billions


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "write_zoo",
        "Writes a table of the parameters and multiply-adds of every shipped config.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--check", action="store_true", help="say whether the table is up to date")
    parser.add_argument(
        "--only_new",
        action="store_true",
        help="keep the counts of the rows that are there: for a change that alters none of them, "
        "which a test looks at in seven",
    )
    parser.add_argument("--output", metavar="FILE", default="docs/zoo.md", help="(docs/zoo.md)")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    experiments = read_experiments(config_folder())
    if arguments.check:
        faults = find_faults(read_text(arguments.output) or "", experiments)
        if faults:
            listed = "\n  ".join(faults)
            print(f"write_zoo: {arguments.output} is out of date:\n  {listed}", file=sys.stderr)
            print("  `python tools/write_zoo.py` updates it.", file=sys.stderr)
            return 1
        print(f"{arguments.output} is up to date: {len(experiments)} experiments")
        return 0
    digest = _digest(experiments)  # before counting: the sources may be edited meanwhile
    kept = _costs(read_text(arguments.output) or "") if arguments.only_new else {}
    new = [item for item in experiments if item.file not in kept]
    text = render(experiments, {**kept, **_count_all(new)}, digest)
    storage.make_folder(os.path.dirname(arguments.output) or ".")
    with claimed_file(arguments.output, "w", force=True) as file:
        file.write(text)
    print(f"Wrote {arguments.output}: {len(experiments)} experiments")
    return 0


def read_experiments(folder: Path) -> list[Experiment]:
    """Reads every detector's config below `folder` except base/, sorted by path.

    Raises:
        ConfigError: a config that cannot be read, or no config at all.
    """
    paths = [
        path
        for path in list_configs(folder)
        if path.parent.name != "base" and find_task(str(path)) == "detection"
    ]
    if not paths:
        raise ConfigError(f"{folder} holds no experiment, no file that ends in .yaml.")
    return [
        Experiment(
            path.relative_to(folder).as_posix(),
            load_config(ExperimentConfig, str(path)),
            _expected(path.read_text()),
        )
        for path in paths
    ]


def _expected(text: str) -> str:
    found = re.search(r"^# Expect: +COCO AP (\d.*(?:\n# {2,}.*)*)", text, re.MULTILINE)
    return re.sub(r"\n# +", " ", found[1]).rstrip(".") if found else ""


def count(config: ExperimentConfig) -> Cost:
    """Builds the experiment's model and counts; takes seconds for the largest."""
    # These import Keras, which --check does without.
    from model_cost import count_flops, count_parameters, predict_images

    from tpudet.detection.build_detector import build_task

    canvas = config.data.canvas_size
    task = build_task(config, num_classes=NUM_CLASSES, canvas_size=canvas)
    parameters = count_parameters(task.model)
    multiply_adds = count_flops(functools.partial(predict_images, task.predict), canvas)
    return Cost(f"{parameters / 1e6:.1f}", f"{multiply_adds / 1e9:.1f}")


def _count_all(experiments: Sequence[Experiment]) -> dict[str, Cost]:
    distinct = {_architecture(item.config): item.config for item in experiments}
    shown = tqdm(distinct.items(), desc="counting", unit="model")
    costs = {architecture: count(config) for architecture, config in shown}
    return {item.file: costs[_architecture(item.config)] for item in experiments}


def _architecture(config: ExperimentConfig) -> tuple[Any, ...]:
    """Returns all config values that decide a model's counts."""
    model = config.model
    shared = (model.min_level, model.max_level, model.backbone, model.neck, model.anchors)
    if isinstance(model, MaskRCNNConfig):
        heads = (model.rpn, model.roi_align, model.box_head, model.mask_head, model.postprocess)
        stages = (model.include_mask, model.cascade, model.batch_norm is None)
        return (*shared, *heads, *stages, config.data.canvas_size)
    return (*shared, model.head, config.data.canvas_size)


def _digest(experiments: Sequence[Experiment]) -> str:
    """Returns a digest of all that decides a count: architectures and the code that builds them."""
    sources = Path(tpudet.__file__).parent
    paths = [Path(__file__).with_name("model_cost.py"), sources / "detection/build_detector.py"]
    for folder in ("detection/modeling", "trainkit/backbones"):
        paths += sorted((sources / folder).glob("*.py"))
    found = hashlib.sha256()
    for path in paths:
        if path.name not in _WITHOUT_COST:
            found.update(code_alone(path.read_text()).encode())
    for item in experiments:
        found.update(f"{item.file} {_architecture(item.config)}\n".encode())
    return found.hexdigest()[:16]


def code_alone(source: str) -> str:
    """Returns Python code without comments, docstrings and layout, which decide no count."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        described = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if described and ast.get_docstring(node):
            del node.body[0]
    return ast.unparse(tree)


def render(experiments: Sequence[Experiment], costs: Mapping[str, Cost], digest: str) -> str:
    """Returns the file's text, one table per folder.

    Args:
        experiments: in the order of the rows.
        costs: by `Experiment.file`; must hold all of them.
        digest: of what was counted.
    """
    lines, folder = [_TITLE.format(num_classes=NUM_CLASSES)], ""
    for item in experiments:
        if Path(item.file).parent.name != folder:
            folder = Path(item.file).parent.name
            lines += ["", f"## {folder}", "", _row(_COLUMNS)]
            lines += [_row(["---"] * 5 + ["---:"] * 2 + ["---"])]
        name = f"[{Path(item.file).stem}](../configs/yaml/{item.file})"
        lines.append(_row([name, *_described(item.config), *costs[item.file], item.expected]))
    lines += ["", f"<!-- counted from {digest} -->", ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _described(config: ExperimentConfig) -> list[str]:
    model, (height, width) = config.model, config.data.canvas_size
    backbone, neck = model.backbone, model.neck
    match backbone:
        case EfficientNetConfig():
            first = f"EfficientNet-{backbone.variant}"
        case ResNetConfig():
            first = f"ResNet-{backbone.depth}"
            if backbone.groups > 1:
                first = f"ResNeXt-{backbone.depth}, {backbone.groups} groups"
        case MobileNetV3Config():
            first = "MobileNetV3-Large"
        case _:
            first = f"SE-ResNeXt-{backbone.depth}"
    names = {"fpn": "FPN", "nas_fpn": "NAS-FPN", "bifpn": "BiFPN", "identity": "none"}
    second = names[neck.kind]
    if not isinstance(neck, IdentityNeckConfig):
        second += f" {neck.num_filters}"
        second += f" x {neck.num_repeats}" if hasattr(neck, "num_repeats") else ""
    second += ", separable" if getattr(neck, "separable", neck.kind == "bifpn") else ""
    second += ", DropBlock" if getattr(neck, "drop_block", None) else ""
    if (model.min_level, model.max_level) != (3, 7):
        second += f", levels {model.min_level} to {model.max_level}"
    return [first, second, _described_head(model), f"{height} x {width}"]


def _described_head(model: ModelConfig) -> str:
    if isinstance(model, MaskRCNNConfig):
        head = model.box_head
        what = "boxes and masks" if model.include_mask else "boxes"
        stages = "three stages, " if model.cascade else ""
        return f"{stages}{head.num_units} x {head.num_dense}, {what} of {model.rpn.max_proposals}"
    head = model.head
    return f"{head.num_filters} x {head.num_convs}" + (", separable" if head.separable else "")


def find_faults(text: str, experiments: Sequence[Experiment]) -> list[str]:
    """Returns messages about what is out of date in the table; none if it is current.

    Nothing is counted: the table holds the digest of the configs and sources it was counted from.

    Args:
        text: the table; empty if there is no file.
        experiments: those that the table should have.
    """
    if not text:
        return ["there is no such file"]
    rows = _rows_by_file(text)
    files = [item.file for item in experiments]
    faults = [f"{file} has no row" for file in files if file not in rows]
    faults += [f"{file} has a row and does not exist" for file in rows if file not in files]
    if faults:
        return faults
    digest = _digest(experiments)
    wanted = render(experiments, _costs(text), digest)
    wanted_rows = _rows_by_file(wanted)
    faults = [f"the row of {file} has changed" for file in files if rows[file] != wanted_rows[file]]
    if not faults and digest not in text:
        return ["the configs or the sources of the models have changed since it was counted"]
    if not faults and wanted != text:
        return ["something beside the rows is different"]
    return faults


def _costs(text: str) -> dict[str, Cost]:
    return {file: Cost(*cells[_COUNTED]) for file, cells in _rows_by_file(text).items()}


def _rows_by_file(text: str) -> dict[str, list[str]]:
    rows = {row[1]: row[0].split(" | ") for row in _RENDERED_ROW.finditer(text)}
    return {file: cells for file, cells in rows.items() if len(cells) == len(_COLUMNS)}


if __name__ == "__main__":
    sys.exit(main())
