"""Converts a YAML file of the predecessor into the text of an experiment file.

Reads RetinaNets and Mask R-CNNs of tensorflow/tpu `models/official/detection` and of tpu_models,
where each part has a `batch_norm` and levels of its own, not one `batch_norm_activation` for all as
at the end of tensorflow/tpu.
"""

import os
import textwrap
from collections.abc import Sequence

from tpudet.detection.legacy.conversion import AnySettings, convert_settings
from tpudet.detection.legacy.file_names import name_remarks
from tpudet.detection.legacy.mask_rcnn_settings import MaskRCNNSettings
from tpudet.detection.legacy.settings import Settings
from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import Branch, Leaf, parse_tree, read_file, write_yaml

# By section: spellings of other versions of the predecessor, and those of `Settings`.
_SPELLINGS = {
    "batch_norm": {"trainable": "batch_norm_trainable"},
    "dropblock": {"keep_prob": "dropblock_keep_prob", "size": "dropblock_size"},
    "retinanet_head": {
        "num_convs": "retinanet_head_num_convs",
        "num_filters": "retinanet_head_num_filters",
    },
}


def convert_file(path: str) -> tuple[str, str]:
    """Returns the text of an experiment file, and the remarks about it, one per line.

    Raises:
        ConfigError: as `convert_text`; or the file cannot be read.
    """
    text, remarks = convert_text(read_file(path), os.path.basename(path))
    return text, "\n".join(_list_remarks(remarks))


def convert_text(old_text: str, filename: str) -> tuple[str, tuple[str, ...]]:
    """Returns the text of an experiment file, and remarks on what had no effect or is different.

    Args:
        old_text: content of the predecessor's YAML file.
        filename: its name; numbers in it are compared with the content.

    Raises:
        ConfigError: lists every unknown key, wrong value and broken rule, or what has no
            counterpart here.
    """
    repeated: list[str] = []
    written = parse_tree(old_text, filename, repeated=repeated)
    written = _respelled(written)
    settings = decode(_detector(written), written)
    converted = convert_settings(settings, written)
    stem = filename.removesuffix(".yaml").removesuffix(".yml")
    remarks = (
        *(f"{place}; the last one counts" for place in repeated),
        *converted.remarks,
        *name_remarks(stem, settings, converted.frozen_blocks),
    )
    body = write_yaml(converted.values)
    return _header(filename, remarks) + body, remarks


def _detector(written: Branch) -> type[AnySettings]:
    """Returns the settings of the file's `type`, or, without one, of the detector it has keys of.

    tensorflow/tpu took the detector from the command line, so that files may lack a `type`.
    """
    named = written.children.get("type")
    if not isinstance(named, Leaf):
        sections = ("maskrcnn_parser", "rpn_head", "frcnn_head", "mrcnn_head", "roi_sampling")
        return MaskRCNNSettings if any(key in written.children for key in sections) else Settings
    if named.value == "mask_rcnn":
        return MaskRCNNSettings
    if named.value == "retinanet":
        return Settings
    raise ConfigError(
        f"{named.place}: type {named.value} has no counterpart; retinanet and mask_rcnn have one"
    )


def _respelled(tree: Branch, section: str = "") -> Branch:
    """Returns the tree with the spellings that `Settings` knows."""
    spellings = _SPELLINGS.get(section, {})
    children: dict[str, Branch | Leaf] = {}
    for key, value in tree.children.items():
        is_section = isinstance(value, Branch)
        children[spellings.get(key, key)] = _respelled(value, key) if is_section else value
    return Branch(children, tree.place)


def _header(filename: str, remarks: Sequence[str]) -> str:
    stem = filename.removesuffix(".yaml").removesuffix(".yml")
    lines = [
        f"# Purpose: {stem} of the predecessor, converted by tpudet import_legacy_config.",
        "# Command: tpudet train --config THIS_FILE --model_dir DIR \\",
        "#            --set data.directory=DIR_OF_TFRECORDS",
        "# Expect:  no published figure known to the converter; not measured here.",
        "# What is different from there:",
    ]
    lines += [f"# {line}" for line in _list_remarks(remarks)] or ["# - nothing"]
    return "\n".join(lines) + "\n"


def _list_remarks(remarks: Sequence[str]) -> list[str]:
    """Wraps to at most 98 characters; patterns and paths stay whole."""
    wrapper = textwrap.TextWrapper(98, initial_indent="- ", subsequent_indent="  ")
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return [line for remark in remarks for line in wrapper.wrap(remark)]
