"""Shows versions, devices and folders, and says whether training can run."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = """
exit codes: 0 training can run, 1 something that it needs is missing
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run_command(new_parser("tpudet check", __doc__, epilog=_EPILOG), argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.detection.inspection.installation import describe_installation, format_facts

    facts = describe_installation()
    print(format_facts(facts))
    return int(any(fact.prevents_training for fact in facts))
