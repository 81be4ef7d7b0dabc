"""Shows versions, devices and folders, and says whether training can run.

`--storage gs://bucket/folder` also lists, writes and reads there, and says which role is missing.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = """
exit codes: 0 training can run, 1 something that it needs is missing, 2 the storage cannot be used
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet check", __doc__, epilog=_EPILOG)
    parser.add_argument("--storage", default="", metavar="DIR", help="folder or bucket to try")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.detection.inspection.installation import describe_installation, format_facts
    from tpudet.trainkit.files.preflight import check_storage

    facts = describe_installation()
    print(format_facts(facts))
    if arguments.storage:
        print(f"{arguments.storage}: {check_storage(arguments.storage)}")
    return int(any(fact.prevents_training for fact in facts))
