"""Converts a predecessor's experiment: `python -m tpudet.detection.commands.import_legacy_config OLD.yaml`.

Reads RetinaNet experiments of tensorflow/tpu `models/official/detection` and of tpu_models, where
each part has a `batch_norm` and levels of its own, not one `batch_norm_activation` for all as at
the end of tensorflow/tpu.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.legacy.conversion import convert
from tpudet.detection.legacy.file_names import name_remarks
from tpudet.detection.legacy.settings import Settings
from tpudet.trainkit.command_line import run_command, writing
from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import Branch, Leaf, parse_tree, write_yaml
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import read_text, write_text

_EXAMPLES = """examples:
  scripts/import_legacy_config.py 4.1.0_effnet_b5_45k_90k_1024_batch_32.yaml
  scripts/import_legacy_config.py OLD.yaml --output configs/yaml/retinanet/4.1.0_b5.yaml

The experiment goes to --output, else to standard output; what had no effect in the old file, and
what became of it, goes to standard error and into the comment of the new one.

Exit codes: 0 converted, 2 wrong usage, a key that the predecessor did not have while each part
had its own batch_norm, or a value that has no counterpart.
"""
# Section: spellings that differ between versions of the predecessor, and the one in `Settings`.
_SPELLINGS = {
    "batch_norm": {"trainable": "batch_norm_trainable"},
    "dropblock": {"keep_prob": "dropblock_keep_prob", "size": "dropblock_size"},
    "retinanet_head": {
        "num_convs": "retinanet_head_num_convs",
        "num_filters": "retinanet_head_num_filters",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="import_legacy_config",
        description="Converts a RetinaNet YAML of tensorflow/tpu or tpu_models into one of ours.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("old", metavar="OLD.yaml", help="a file or bucket path")
    parser.add_argument("--output", metavar="NEW.yaml", default="", help="what is written")
    parser.add_argument("-f", "--force", action="store_true", help="replace NEW.yaml if it exists")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    old, output, force = arguments.old, arguments.output, arguments.force
    if output and storage.exists(output) and not force:
        raise FileExistsError(f"{output} exists; --force replaces it")
    try:
        old_text = read_text(old)
    except OSError as error:
        raise ConfigError(f"{old} cannot be read: {storage.reason(error)}") from error
    if old_text is None:
        raise FileNotFoundError(f"{old} is not there")
    text, remarks = converted_text(old_text, os.path.basename(old))
    if output:
        with writing(output):
            write_text(output, text)
    else:
        print(text, end="")
    print("\n".join(_listed(remarks)), file=sys.stderr)
    return 0


def converted_text(old_text: str, filename: str) -> tuple[str, tuple[str, ...]]:
    """Returns the text of our experiment file, and remarks on what had no effect or is different.

    Args:
        old_text: content of the predecessor's YAML file.
        filename: its name; what it says of the content is compared with it.

    Raises:
        ConfigError: lists every unknown key, wrong value and broken rule, or what has no
            counterpart here.
    """
    repeated: list[str] = []
    written = parse_tree(old_text, filename, repeated=repeated)
    written = _respelled(written)
    settings = decode(Settings, written)
    converted = convert(settings, written)
    stem = filename.removesuffix(".yaml").removesuffix(".yml")
    remarks = (
        *(f"{place}; what comes last counts" for place in repeated),
        *converted.remarks,
        *name_remarks(stem, settings, converted.frozen_blocks),
    )
    body = write_yaml(converted.values)
    decode(ExperimentConfig, parse_tree(body, f"{filename} as our config"))
    return _header(filename, remarks) + body, remarks


def _respelled(tree: Branch, section: str = "") -> Branch:
    """The tree with the spellings that `Settings` knows."""
    spellings = _SPELLINGS.get(section, {})
    children: dict[str, Branch | Leaf] = {}
    for key, value in tree.children.items():
        is_section = isinstance(value, Branch)
        children[spellings.get(key, key)] = _respelled(value, key) if is_section else value
    return Branch(children, tree.place)


def _header(filename: str, remarks: Sequence[str]) -> str:
    stem = filename.removesuffix(".yaml").removesuffix(".yml")
    lines = [
        f"# Purpose: {stem} of the predecessor, converted by import_legacy_config.py.",
        "# Command: python -m tpudet.detection.commands.train --config THIS_FILE --model_dir DIR \\",
        "#            --set data.directory=DIR_OF_TFRECORDS",
        "# Expect:  no figure that the converter knows of; not measured here.",
        "# What is different from there:",
    ]
    lines += [f"# {line}" for line in _listed(remarks)] or ["# - nothing"]
    return "\n".join(lines) + "\n"


def _listed(remarks: Sequence[str]) -> list[str]:
    """Lines of at most 98 characters, but patterns and paths stay whole."""
    wrapper = textwrap.TextWrapper(98, initial_indent="- ", subsequent_indent="  ")
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return [line for remark in remarks for line in wrapper.wrap(remark)]


if __name__ == "__main__":
    sys.exit(main())
