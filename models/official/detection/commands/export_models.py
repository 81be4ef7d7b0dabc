"""Exports several trained models as SavedModels, each in a process of its own.

LIST is a YAML list of {dataset, version, step, resolution}, as `tpudet predict --models` reads it.
An entry exports $STORAGE/saved/<version>-<dataset> to $STORAGE/final.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.locations import storage_path
from tpudet.trainkit.jobs.child_process import run_child

_EPILOG = """
examples:
  tpudet export_models models.yml
  tpudet export_models --all_folds --step best

exit codes: 0 all exported, 1 some could not be exported, 2 wrong usage or nothing to export
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet export_models", __doc__, epilog=_EPILOG)
    parser.add_argument("list", metavar="LIST", nargs="?", help="YAML file")
    parser.add_argument(
        "--all_folds",
        action="store_true",
        help="export every $STORAGE/saved/<version>-<part>-fold_<number>, in place of a LIST",
    )
    parser.add_argument(
        "--step", help="checkpoint that --all_folds exports (default: best); a LIST has its own"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing SavedModels")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    root = storage_path()
    flags = ["--overwrite"] if arguments.overwrite else []
    if bool(arguments.list) == arguments.all_folds:
        raise UserError("give either LIST or --all_folds")
    if arguments.list and arguments.step:
        raise UserError(
            f"--step {arguments.step} is for --all_folds; the entries of LIST name theirs"
        )
    step = arguments.step or "best"
    exports = list(_folds(root, step) if arguments.all_folds else _listed(arguments.list))
    if not exports:
        raise UserError(
            f"no fold below {root}/saved; they are named <version>-<part>-fold_<number>"
        )
    failed = []
    for name, *options in exports:
        command = ["--model_dir", f"{root}/saved/{name}", "--export_root", f"{root}/final"]
        # A process of its own gives the memory of an accelerator back.
        export = [sys.executable, "-m", "tpudet", "export", *command, *options, *flags]
        if run_child(export):
            failed.append(name)
    if failed:
        print(f"not exported: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _listed(path: str) -> Iterator[list[str]]:
    """Yields the name of a model_dir and the flags of its export."""
    from tpudet.detection.inference.model_list import ModelEntry
    from tpudet.trainkit.config.decode import load_list

    entries, mistakes = load_list(ModelEntry, path)
    if mistakes:
        raise UserError("\n".join(mistakes))
    for entry, _ in entries:
        flags = ["--step", str(entry.step), "--resolution", str(entry.resolution)]
        yield [f"{entry.version}-{entry.dataset}", *flags]


def _folds(root: str, step: str) -> Iterator[list[str]]:
    """Yields the name of a model_dir and the flags of its export."""
    for path in sorted(storage.glob(f"{root}/saved/*-fold_*")):
        yield [os.path.basename(path.rstrip("/")), "--step", step]
