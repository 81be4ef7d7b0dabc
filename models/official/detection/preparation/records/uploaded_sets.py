"""Prepared sets of an upload: whose shards are at the destination, and how they are replaced.

Two versions of a shard may have the same size; only the manifest, which names the inputs of every
shard, tells them apart. While a set is copied, there is `<split>_<part>.progress/` at the
destination, so that readers refuse the set as they do while it is written. `upload.sha256` in it
holds the digest of the manifest whose shards are copied; it is empty until those of another version
are gone. The manifest is removed first and copied last.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tpudet.detection.preparation.records.transfers import Transfer
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.digests import file_digest
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, PROGRESS_SUFFIX

_SHARD_ENDING = re.compile(r"-\d{5}-of-\d{5}\.tfrecord(\.[^/]*)?$")


class UploadedSet(NamedTuple):
    """A prepared set to upload."""

    manifest: Transfer
    digest: str  # of the source's manifest

    @property
    def folder(self) -> str:
        """Where it is copied to."""
        return os.path.dirname(self.manifest.destination)

    @property
    def prefix(self) -> str:
        """The beginning of the paths of its files at the destination."""
        return self.manifest.destination.removesuffix(MANIFEST_SUFFIX)

    @property
    def progress_folder(self) -> str:
        """The folder that makes readers refuse the set."""
        return self.prefix + PROGRESS_SUFFIX

    @property
    def note_path(self) -> str:
        """The file with the digest of the manifest whose shards are being copied."""
        return f"{self.progress_folder}/upload.sha256"

    def is_known(self) -> bool:
        """Whether the shards at the destination, as far as there are any, are of this version."""
        note = storage.read_text(self.note_path)
        if note is not None:
            return note == self.digest
        path = self.manifest.destination
        is_there = storage.is_file(path) and file_digest(path) == self.digest
        return is_there and not self.is_written_by_others()

    def is_written_by_others(self) -> bool:
        """Whether a run that writes such a set at the destination was not finished."""
        names = storage.list_names(self.progress_folder)
        own = os.path.basename(self.note_path)
        return own not in names and not all(name.startswith(own) for name in names)


def find_sets(transfers: Sequence[Transfer]) -> list[UploadedSet]:
    """Finds the manifests among files to copy."""
    found = [t for t in transfers if t.destination.endswith(MANIFEST_SUFFIX)]
    return [UploadedSet(transfer, file_digest(transfer.source)) for transfer in found]


def find_owner(transfer: Transfer, sets: Iterable[UploadedSet]) -> UploadedSet | None:
    """Finds the set of which a file is; None for one beside sets, as classes.csv, or elsewhere."""
    path = transfer.destination
    owners = [one for one in sets if path.startswith((f"{one.prefix}-", f"{one.prefix}."))]
    return max(owners, key=lambda one: len(one.prefix), default=None)


def require_manifests(transfers: Iterable[Transfer], sets: Sequence[UploadedSet]) -> None:
    """Raises if shards, named without their manifest, would be copied under one of another version.

    Raises:
        UserError: names these manifests.
    """
    lone = [t for t in transfers if find_owner(t, sets) is None]
    manifests = {
        _SHARD_ENDING.sub(MANIFEST_SUFFIX, t.destination): _SHARD_ENDING.sub(
            MANIFEST_SUFFIX, t.source
        )
        for t in lone
        if _SHARD_ENDING.search(t.destination)
    }
    others = [
        there
        for there, own in manifests.items()
        if storage.is_file(there)
        and not (storage.is_file(own) and file_digest(own) == file_digest(there))
    ]
    if others:
        raise UserError(
            f"Nothing was copied. The shards to copy are not those that {listing(others)} "
            f"describe{'s' * (len(others) == 1)}: name their manifest, or their folder, as SOURCE "
            "too."
        )


def may_be_of_others(
    transfer: Transfer, sets: Sequence[UploadedSet], unknown: Sequence[UploadedSet]
) -> bool:
    """Whether an equal size at the destination may belong to another version of a set.

    Args:
        transfer: a file to copy.
        sets: all sets of the upload.
        unknown: those of which other versions may be there.
    """
    owner = find_owner(transfer, sets)
    if owner is not None:
        return owner in unknown
    return any(one.folder == os.path.dirname(transfer.destination) for one in unknown)


def find_others(unknown: Iterable[UploadedSet], transfers: Iterable[Transfer]) -> list[str]:
    """Lists what else is at the destination under the names of sets that are to be copied.

    These are shards of another number of shards, and the folder of a run that writes such a set.
    """
    copied = {transfer.destination for transfer in transfers}
    others = []
    for one in unknown:
        names = storage.list_names(one.folder)
        stem = os.path.basename(one.prefix)
        if one.is_written_by_others():
            others.append(one.progress_folder)
        shards = [
            name for name in names if _SHARD_ENDING.fullmatch(name.removeprefix(stem)) is not None
        ]
        paths = [os.path.join(one.folder, name) for name in shards if name.startswith(stem)]
        others += [path for path in paths if path not in copied]
    return others


def begin_sets(
    begun: Sequence[UploadedSet],
    unknown: Sequence[UploadedSet],
    outdated: Sequence[str],
    *,
    verify_claims: Callable[[str], None],
) -> None:
    """Makes readers refuse the sets to copy, and removes what other versions have left of them.

    Args:
        begun: sets to copy.
        unknown: those of which other versions may be there.
        outdated: paths of files of these versions.
        verify_claims: called with each path before it changes.
    """
    for one in unknown:
        verify_claims(one.note_path)
        storage.make_folder(one.progress_folder)
        storage.write_text(one.note_path, "")
        storage.remove_if_there(one.manifest.destination)
    for path in outdated:
        verify_claims(path)
        storage.remove_if_there(path)
    for one in begun:
        verify_claims(one.note_path)
        storage.make_folder(one.progress_folder)
        storage.write_text(one.note_path, one.digest)


def require_unchanged(sets: Sequence[UploadedSet]) -> None:
    """Raises if a source was rewritten while it was copied.

    Raises:
        UserError: names the manifest; that at the destination is not replaced.
    """
    for one in sets:
        path = one.manifest.source
        if not storage.is_file(path) or file_digest(path) != one.digest:
            raise UserError(
                f"{path} was changed while its set was copied, so the copy is not whole: it stays "
                f"marked as unfinished by {one.progress_folder}. Run the command again with "
                "--overwrite."
            )


def end_sets(sets: Sequence[UploadedSet]) -> None:
    """Lets readers have the sets, whose manifests are copied."""
    for one in sets:
        if storage.is_folder(one.progress_folder):
            storage.remove_folder(one.progress_folder)
