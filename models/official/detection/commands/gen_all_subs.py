"""The command `tpudet gen_all_subs`: writes the submission of every predictions file."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import add_generating_arguments
from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = """\
example: tpudet gen_all_subs --hierarchy data/challenge-2019-label500-hierarchy.json

Reads $STORAGE/predictions/*.parquet and *.pkl and writes each submission beside its file. Parts
that are not joined yet (tpudet join_predicted_parts) and submissions that exist are skipped, so a
stopped run resumes with the same command. $STORAGE is `output` by default. FILE.csv.gen.json beside
each submission records its SHA-256, its predictions and the options: one that is out of date or was
made with other options is named, as is one without a record, such as of gen_sub; -f replaces all.

exit codes: 0 done, 1 some submissions could not be written or are out of date, 2 wrong arguments or
nothing to read
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet gen_all_subs",
        "Write the submission of every predictions file in $STORAGE/predictions.",
        epilog=_EPILOG,
    )
    add_generating_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.detection.inference.submissions import generate_all_submissions
    from tpudet.trainkit.files.locations import storage_path

    return generate_all_submissions(storage_path("predictions"), **vars(arguments))
