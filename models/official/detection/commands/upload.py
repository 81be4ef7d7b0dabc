"""Copies prepared sets to a bucket or another folder and verifies the copies; resumable."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, positive_integer, run_command

_EPILOG = """examples:
  tpudet upload output/converted/part_* gs://bucket/converted
  tpudet upload --checksum output/converted output/prepared /mnt/backup

An existing file is the same if it has the source's size and is not older or, with --checksum, has
the same content. It is not copied again, so the same command resumes an interrupted run. Any other
existing file is an error before anything is copied, unless --overwrite is given. The size of every
copy is verified, with --checksum also its content, which is read back. --delete_source deletes the
sources, but only after the contents of all copies are verified.

Versions of a prepared set are told apart by their manifests. Where the destination may have another
version, files of equal size are compared by content; --overwrite then copies all that differ, and
removes shards of another number of shards. Until its manifest, the last file, is there, a folder
SPLIT_PART.progress beside the copies makes train and the other verbs refuse the set.
Buckets need the credentials of TensorFlow's file systems (gcloud auth application-default login).
exit codes: 0 done, 2 wrong arguments or a copy failed (the others are kept), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet upload", __doc__, epilog=_EPILOG)
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="files, or folders with all their contents"
    )
    parser.add_argument("destination", metavar="DESTINATION", help="folder, local or gs://bucket")
    parser.add_argument("--checksum", action="store_true", help="compare SHA-256 instead of times")
    parser.add_argument("--overwrite", action="store_true", help="replace files that differ")
    parser.add_argument("--dry_run", action="store_true", help="list what would be copied")
    parser.add_argument(
        "--delete_source",
        action="store_true",
        help="delete the source files after all copies are verified; implies --checksum",
    )
    parser.add_argument(
        "--threads",
        type=positive_integer,
        default=8,
        metavar="N",
        help="copies at the same time (default 8)",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.preparation.records.upload import upload

    return upload(
        arguments.sources,
        arguments.destination,
        threads=arguments.threads,
        checksum=arguments.checksum,
        overwrite=arguments.overwrite,
        dry_run=arguments.dry_run,
        delete_source=arguments.delete_source,
    )
